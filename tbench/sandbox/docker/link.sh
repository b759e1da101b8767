# Links the current network namespace with that of process 1, by a pair of devices.
set -e
B=/opt/tbench/bin/busybox
# eth0 exists already if the container is on networks of the engine.
device=eth0
[ ! -e /sys/class/net/eth0 ] || device=way-out
$B ip link add name $device type veth
# The kernel names the other end veth0: there is no other veth here.
$B ip link set veth0 name inside
$B ip link set inside netns 1
$B ip addr add "$TRIAL/$PREFIX" dev $device
$B ip link set $device up
$B ip route replace default via "$ROUTER" dev $device
# Containers that share a network also share this file.
$B grep -q "^nameserver $ROUTER" /etc/resolv.conf || echo "nameserver $ROUTER" >/etc/resolv.conf
