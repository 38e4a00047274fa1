# shows: rings, buffers and memory of an e1000 on NUMA node 1: warnings of far cores, and of a cable that is pulled, put back, and pulled for good
# options: --guests 2 --iommu --nic e1000 --nic virtio --cpus 2 --nodes 2 --share . --timeout 500
# needs: shouter
# slice: no
#
# The first cable is DPDK's; ranks meet over the second, which stays the kernel's. Emulated NICs know of no node: the kernel is told one.
read -r nic manage <<<"$NICS"
modprobe -a e1000 virtio_net || fail "the kernel has no e1000 or virtio_net"
within 30 interface "$nic" && within 30 interface "$manage" || fail "the kernel did not bring both NICs up"
interface=$(interface "$manage")
if ! ip link set "$interface" up || ! ip address add "10.9.1.$((GUEST + 1))/24" dev "$interface"; then
    fail "cannot bring $interface up"
fi
echo 1 >"/sys/bus/pci/devices/$nic/numa_node" || fail "the NIC took no node"
# As many as the default of dpdk_memory_mb takes, on the NIC's node; and some on the other one, which are to stay free.
/share/scripts/hugepages reserve 256 --node 1 && /share/scripts/hugepages reserve 32 --node 0 || fail "no hugepages"
/share/scripts/bind-nic bind "$nic" || fail "not bound"
shouter info | grep -E "nic $nic .*driver vfio-pci, NUMA node 1" || fail "shouter info does not say the NIC's node: $(shouter info)"

export SHOUTER_NODE=$GUEST SHOUTER_ADDR=10.9.1.1 SHOUTER_TRANSPORT=rud SHOUTER_MTU=9000 SHOUTER_HEARTBEAT_TIMEOUT=60s SHOUTER_DEADLINE=60s \
    SHOUTER_SIZE=2 SHOUTER_LOCAL_SIZE=1 SHOUTER_LOCAL_RANK=0 SHOUTER_RANK=$GUEST SHOUTER_METRICS=/tmp/metrics SHOUTER_LOG=info \
    SHOUTER_KEY=a-key-for-two-guests-in-a-laboratory \
    SHOUTER_PORTS="[{device = \"pci:$nic\", address = \"10.77.0.$((GUEST + 1))/24\"}]"

# rank PORT CORES SECONDS: starts all-reduces of 64 KiB, which check every sum, on these cores; the rank is $pid, its output in /tmp/rank.
rank() {
    barrier "job-$1"
    SHOUTER_PORT=$1 timeout 150 taskset -c "$2" shouter bench collective-worker --dtype u8 --bytes 64Ki --seconds "$3" >/tmp/rank 2>&1 &
    rank=$!
    within 100 grep -q "a port is open" /tmp/rank || fail "no port was opened: $(tail -n 20 /tmp/rank)"
    pid=$(pgrep -f "shouter bench" | tail -n 1)
}

# says TEXT: waits until the rank's log has that.
says() { within 60 grep -q -- "$1" /tmp/rank || fail "nothing of \`$1\` in: $(tail -n 30 /tmp/rank)"; }

# ended STATUS: waits for the end of the rank.
ended() {
    local status=0
    wait "$rank" || status=$?
    [ "$status" = "$1" ] || fail "the rank ended with $status, not with $1: $(tail -n 30 /tmp/rank)"
}

# on_node NODE PATTERN: pages of 4 KiB, or of 2 MiB, of the rank's mappings that match, on that node.
on_node() { awk -v node="N$1=" -v pattern="$2" '$0 ~ pattern { for (i = 1; i <= NF; i++) if (index($i, node) == 1) sum += substr($i, length(node) + 1) } END { print sum + 0 }' "/proc/$pid/numa_maps"; }

# Hugepages of the NIC's node, on which a core is; a cable that is pulled out for two seconds.
# The log says every 10 s at most that a link is down or back, so that the rank has to last longer than that.
SHOUTER_HUGEPAGES=on rank 29501 0-1 30
says 'receive=1024 transmit=1024 buffers=3392 room=9216 node=Some(1)'
# DPDK takes a page or two for itself where its first core is.
near=$(on_node 1 huge) far=$(on_node 0 huge)
[ "$near" -ge 256 ] && [ "$far" -le 2 ] || fail "$near hugepages of node 1 and $far of node 0: $(grep huge "/proc/$pid/numa_maps")"
! grep "other NUMA nodes" /tmp/rank || fail "a rank with a core on the NIC's node was warned"
if [ "$GUEST" = 0 ]; then
    sleep 3
    cable 0 off
    says "a port's link is down.*pci:$nic (10.77.0.1)"
    sleep 1
    cable 0 on
    says "the links of all ports are up again"
fi
ended 0
[ "$GUEST" = 1 ] || grep '^shouter_link' /tmp/metrics
[ "$GUEST" = 1 ] || grep -qE '^shouter_link_losses_total\{.*\} 1$' /tmp/metrics || fail "no loss was counted: $(cat /tmp/metrics)"

# Without hugepages the memory is of the NIC's node too, whatever core the rank is on; this one is warned.
/share/scripts/hugepages release --node 1 || fail "the hugepages were not given back"
SHOUTER_HEARTBEAT_TIMEOUT=10s rank 29502 0 60
pages=$(on_node 1 'anon|memfd|zero') others=$(on_node 0 'anon|memfd|zero')
echo "without hugepages: $pages pages of node 1, $others of node 0"
[ "$pages" -ge 131072 ] && [ "$others" -lt 16384 ] || fail "$pages pages of node 1 and $others of node 0"
says "all of this rank's cores are on other NUMA nodes than the NIC"
# A cable that is pulled out for good: the error has the port.
sleep 3
[ "$GUEST" = 1 ] || cable 0 off
status=0
wait "$rank" || status=$?
[ "$status" != 0 ] || fail "the rank did not hear that the cable is out: $(tail -n 30 /tmp/rank)"
[ "$GUEST" = 1 ] || says "The link of port pci:$nic (10.77.0.1) of this host is down"
tail -n 3 /tmp/rank
shown "1,024 descriptors at MTU 9000; $near hugepages, and $pages pages of 4 KiB, on the NIC's node; link down, up and down named"
