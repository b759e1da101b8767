# Applies firewall rules in a router and restarts its proxy: restrict.sh HOST...
set -e
B=/opt/tbench/bin/busybox N=/opt/tbench/nft
[ "$($B cat /proc/sys/net/ipv4/ip_forward)" = 1 ]
if ! $B ip -o addr show dev inside | $B grep -q "inet $ROUTER/"; then
    $B ip addr add "$ROUTER/$PREFIX" dev inside
    $B ip link set inside up
fi
[ ! -e /proc/net/if_inet6 ] || RULES="$RULES$RULES_OF_IPV6"
# One transaction, so that there is no moment without rules.
printf '%s\n' "$RULES" | $N/ld.so --library-path $N $N/nft -f -
# Killing the proxy ends all connections through it.
for _ in $($B seq 100); do
    $B killall -q -9 proxy || break
done
/opt/tbench/bin/proxy "$ROUTER" "$PORT" "$@"
