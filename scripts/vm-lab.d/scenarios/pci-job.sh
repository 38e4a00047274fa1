# shows: two guests on two cables, from bare NICs (e1000, virtio) to all-reduces over DPDK behind the IOMMU, and to the demo's training
# options: --guests 2 --iommu --nic e1000 --nic virtio:e1000 --nic virtio --share . --timeout 900
# needs: shouter trainer
# slice: no
#
# The first two cables are DPDK's, each with a job of its own; ranks meet over the third, which stays the kernel's.
read -ra nics <<<"$NICS"
manage=${nics[2]} nics=("${nics[@]:0:2}")
modprobe -a e1000 virtio_net || fail "the kernel has no e1000 or virtio_net"
for nic in "${nics[@]}" "$manage"; do
    within 30 interface "$nic" || fail "the kernel did not bring $nic up"
done
interface=$(interface "$manage")
if ! ip link set "$interface" up || ! ip address add "10.9.1.$((GUEST + 1))/24" dev "$interface"; then
    fail "cannot bring $interface up"
fi
/share/scripts/hugepages reserve 256 || fail "no hugepages"
/share/scripts/bind-nic bind "${nics[@]}" || fail "not bound"
info=$(shouter info)
for nic in "${nics[@]}"; do
    grep -qE "^ +ok +nic $nic .*driver vfio-pci" <<<"$info" || fail "shouter info does not take $nic for its own: $info"
done
busybox gunzip -c /share/data/digits.csv.gz >/tmp/digits.csv || fail "no digits"

# Emulation is slow: a slow rank must not count as dead.
export SHOUTER_NODE=$GUEST SHOUTER_ADDR=10.9.1.1 SHOUTER_TRANSPORT=rud SHOUTER_HUGEPAGES=on SHOUTER_DPDK_MEMORY_MB=128 \
    SHOUTER_MTU=1500 SHOUTER_HEARTBEAT_TIMEOUT=60s SHOUTER_DEADLINE=60s SHOUTER_KEY=a-key-for-two-guests-in-a-laboratory

# job PORT CABLE LOCAL-SIZE COMMAND...: starts LOCAL-SIZE ranks in each guest, the first of which has the guest's NIC on
# that cable. A rank's output is in /tmp/rank and its local rank.
job() {
    local port=$1 cable=$2 here=$3 local_rank pids=() status=0
    shift 3
    barrier "job-$port"
    for ((local_rank = 0; local_rank < here; local_rank++)); do
        SHOUTER_PORT=$port SHOUTER_SIZE=$((2 * here)) SHOUTER_LOCAL_SIZE=$here SHOUTER_LOCAL_RANK=$local_rank \
            SHOUTER_RANK=$((GUEST * here + local_rank)) \
            SHOUTER_PORTS="[{device = \"pci:${nics[cable]}\", address = \"10.77.$cable.$((GUEST + 1))/24\"}]" \
            timeout 200 "$@" >"/tmp/rank$local_rank" 2>&1 &
        pids+=($!)
    done
    for ((local_rank = 0; local_rank < here; local_rank++)); do
        wait "${pids[local_rank]}" || status=$?
    done
    [ "$status" = 0 ] || fail "a rank of the job on cable $cable ended with $status: $(tail -n 20 /tmp/rank*)"
}

# reduced PORT CABLE [MEMORY]: all-reduces of one rank in each guest, which check every sum, from memory of Group::alloc (`shared`) or of the rank's own
# (`private`).
reduced() {
    job "$1" "$2" 1 shouter bench collective-worker --dtype u8 --bytes 1,4,64Ki,1Mi --seconds 0.2 --memory "${3:-shared}"
    [ "$GUEST" = 0 ] || return 0
    cat /tmp/rank0
    [ "$(grep -c "\"hosts\":2,\"transport\":\"$SHOUTER_TRANSPORT\"" /tmp/rank0)" = 4 ] || fail "not four lines of figures"
    models+="$SHOUTER_TRANSPORT over $(lspci -s "${nics[$2]}" | sed 's/.*: //; s/ (rev.*//'), "
}

# uncopied CABLE WANTED: of the all-reduces just made, those of 64 KiB and 1 MiB sent frames that were not copied (`some`), or none did (`none`).
uncopied() {
    [ "$GUEST" = 0 ] || return 0
    local some
    some=$(grep -cE '"uncopied":[1-9].*"bytes":(65536|1048576),' /tmp/rank0 || true)
    case $2 in
        some) [ "$some" = 2 ] && ! grep "some memory is copied" /tmp/rank0 ;;
        none) [ "$(grep -c '"uncopied":0,' /tmp/rank0)" = 4 ] ;;
    esac || fail "not $2 of the frames on cable $1 went without a copy: $(tail -n 20 /tmp/rank0)"
}

# sent: bytes that the kernel's interface has sent.
sent() { cat "/sys/class/net/$interface/statistics/tx_bytes"; }

# hash FILE...: of parameters that must all be the same.
hash() { sha256sum "$@" | cut -d ' ' -f 1 | sort -u | paste -sd ' '; }

models=
reduced 29501 0 && uncopied 0 some
reduced 29502 1 && uncopied 1 some
reduced 29506 0 private && uncopied 0 none
reduced 29507 1 private && uncopied 1 none
# TCP, which leaves what it can to the NICs, with jumbo frames.
SHOUTER_TRANSPORT=tcp SHOUTER_OFFLOAD=on SHOUTER_MTU=9000 SHOUTER_DPDK_MEMORY_MB=256 reduced 29504 0
SHOUTER_TRANSPORT=tcp SHOUTER_OFFLOAD=on SHOUTER_MTU=9000 SHOUTER_DPDK_MEMORY_MB=256 reduced 29505 1
# The demo's training, four ranks on two hosts for an epoch, over the two e1000.
# The gradients of its 22 steps have 1.5 MB, of which almost none goes through the kernel.
before=$(sent)
SHOUTER_TRANSPORT=auto job 29503 0 2 /lab/bin/trainer --data /tmp/digits.csv --epochs 1 --dump-params /tmp/pci-%r.params
[ $(($(sent) - before)) -lt 100000 ] || fail "$(($(sent) - before)) bytes of the training went by the kernel's interface"
ours=$(hash /tmp/pci-?.params)
echo "$ours" >"/meet/hash-$GUEST"
barrier trained
[ "$(cat /meet/hash-0)" = "$(cat /meet/hash-1)" ] || fail "the guests ended with different parameters: $(cat /meet/hash-*)"
if [ "$GUEST" = 0 ]; then
    env -u SHOUTER_PORTS -u SHOUTER_NODE -u SHOUTER_ADDR shouter run -n 4 --hosts 2 --transport kernel -- /lab/bin/trainer \
        --data /tmp/digits.csv --epochs 1 --dump-params /tmp/kernel-%r.params >/tmp/kernel.log 2>&1 || fail "training: $(tail -n 20 /tmp/kernel.log)"
    kernel=$(hash /tmp/kernel-?.params)
    [ "$ours" = "$kernel" ] || fail "over DPDK: $ours; over the kernel's sockets: $kernel"
    shown "1 B to 1 MiB by ${models}by RUD from Group::alloc without a copy, and training to $ours, as over the kernel's sockets"
fi
