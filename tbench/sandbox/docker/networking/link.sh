# Links the network that this runs in with the one of process 1: a pair of devices, one end in each.
set -e
B=/opt/tbench/bin/busybox
$B ip link add name eth0 type veth
# The kernel's name for the other end: there is no other of its kind here.
$B ip link set veth0 name inside
$B ip link set inside netns 1
$B ip addr add "$TRIAL/$PREFIX" dev eth0
$B ip link set eth0 up
$B ip route add default via "$ROUTER"
