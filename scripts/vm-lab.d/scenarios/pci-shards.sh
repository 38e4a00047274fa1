# shows: several shards over a NIC whose queues its RSS fills: all-reduces by RUD and TCP with 2 and 3 shards; receive interrupts of shards that wait; an e1000, which hashes no ports, is refused
# options: --guests 2 --iommu --nic virtio-rss --nic e1000 --nic virtio --cpus 2 --share . --timeout 500
# needs: shouter
# slice: no
#
# The first two cables are DPDK's; ranks meet over the third, which stays the kernel's.
read -r spreads single manage <<<"$NICS"
modprobe -a e1000 virtio_net || fail "the kernel has no e1000 or virtio_net"
for nic in $NICS; do
    within 30 interface "$nic" || fail "the kernel did not bring $nic up"
done
interface=$(interface "$manage")
if ! ip link set "$interface" up || ! ip address add "10.9.1.$((GUEST + 1))/24" dev "$interface"; then
    fail "cannot bring $interface up"
fi
/share/scripts/hugepages reserve 384 || fail "no hugepages"
/share/scripts/bind-nic bind "$spreads" "$single" || fail "not bound"

# Emulation is slow: a slow rank must not count as dead.
export SHOUTER_NODE=$GUEST SHOUTER_ADDR=10.9.1.1 SHOUTER_HUGEPAGES=on SHOUTER_DPDK_MEMORY_MB=256 SHOUTER_MTU=1500 \
    SHOUTER_HEARTBEAT_TIMEOUT=60s SHOUTER_DEADLINE=60s SHOUTER_MODE=dedicated SHOUTER_SIZE=2 SHOUTER_LOCAL_SIZE=1 SHOUTER_LOCAL_RANK=0 \
    SHOUTER_RANK=$GUEST SHOUTER_METRICS=/tmp/metrics SHOUTER_LOG=info SHOUTER_KEY=a-key-for-two-guests-in-a-laboratory

# job PORT NIC COMMAND...: a rank in each guest, over that NIC; its output is in /tmp/rank.
job() {
    local port=$1 nic=$2
    shift 2
    barrier "job-$port"
    SHOUTER_PORT=$port SHOUTER_PORTS="[{device = \"pci:$nic\", address = \"10.77.0.$((GUEST + 1))/24\"}]" timeout 200 "$@" >/tmp/rank 2>&1
}

# reduced PORT TRANSPORT SHARDS: all-reduces, which check every sum, and what each queue received.
reduced() {
    SHOUTER_TRANSPORT=$2 SHOUTER_SHARDS=$3 job "$1" "$spreads" shouter bench collective-worker --dtype u8 --bytes 64Ki,256Ki --seconds 0.2 ||
        fail "$2 with $3 shards: $(tail -n 20 /tmp/rank)"
    # By the emulated NIC's RSS, and not by the first shard.
    ! grep "the first shard hands them on" /tmp/rank || fail "the NIC did not spread the flows"
    grep '^{' /tmp/rank || [ "$GUEST" = 1 ]
    grep resent /tmp/metrics
}

# interrupts: those of the NIC's queues that the kernel has passed on to the rank; the first vector is not a queue's.
interrupts() {
    awk -v nic="($spreads)" 'index($0, "vfio-msix") && !index($0, "[0]") && index($0, nic) { for (i = 2; $i ~ /^[0-9]+$/; i++) sum += $i } END { print sum + 0 }' \
        /proc/interrupts
}

# more COUNT: whether the rank has had more interrupts than that.
more() { [ "$(interrupts)" -gt "$1" ]; }

# interrupted PORT: all-reduces of two shards whose rank in guest 0 is stopped for a second, again and again, until the shards of guest 1, which wait
# meanwhile, were interrupted three times.
interrupted() {
    local rank pid before status=0
    SHOUTER_TRANSPORT=rud SHOUTER_SHARDS=2 SHOUTER_IDLE=yield job "$1" "$spreads" \
        shouter bench collective-worker --dtype u8 --bytes 64Ki --seconds 20 &
    rank=$!
    within 100 grep -q "come together" /tmp/rank || fail "no group: $(tail -n 20 /tmp/rank)"
    if [ "$GUEST" = 0 ]; then
        pid=$(pgrep -f "shouter bench" | tail -n 1)
        while [ ! -e /meet/interrupted ] && kill -STOP "$pid" 2>/dev/null; do
            sleep 1
            kill -CONT "$pid"
            sleep 0.5
        done
    else
        before=$(interrupts)
        within 60 more $((before + 2)) || fail "shards that waited were not interrupted: $(grep vfio /proc/interrupts)"
        grep vfio-msix /proc/interrupts
        touch /meet/interrupted
    fi
    wait "$rank" || status=$?
    [ "$status" = 0 ] || fail "the rank ended with $status: $(tail -n 20 /tmp/rank)"
}

reduced 29501 rud 2
reduced 29502 rud 3
reduced 29503 tcp 2
interrupted 29505
SHOUTER_TRANSPORT=rud SHOUTER_SHARDS=2 job 29504 "$single" shouter bench collective-worker --dtype u8 --bytes 64Ki --seconds 0.2 &&
    fail "an e1000 took two shards"
grep "it does not hash the ports of TCP and UDP; take one queue" /tmp/rank || fail "the e1000 was not refused by name: $(tail -n 20 /tmp/rank)"
[ "$GUEST" = 1 ] || shown "64 KiB and 256 KiB by RUD with 2 and 3 shards and by TCP with 2 over virtio-net's RSS; receive interrupts counted; an e1000 refused"
