# shows: from bare NICs to an all-reduce: hugepages, bind-nic, shouter info, then two ranks over DPDK's driver behind the IOMMU
# options: --iommu --nic virtio --nic e1000 --share scripts --memory 2560 --timeout 500
# needs: shouter
# slice: no
#
# One job for each cable; its two ends are the ports of two ranks, which are hosts of their own.
modprobe -a e1000 virtio_net || fail "the kernel has no e1000 or virtio_net"
read -ra nics <<<"$NICS"
for nic in "${nics[@]}"; do
    within 30 interface "$nic" || fail "the kernel did not bring $nic up"
done
/share/hugepages reserve 256 || fail "no hugepages"
/share/bind-nic bind "${nics[@]}" || fail "not bound"
info=$(shouter info)
for nic in "${nics[@]}"; do
    grep -qE "^ +ok +nic $nic .*driver vfio-pci" <<<"$info" || fail "shouter info does not take $nic for its own: $info"
done

# Emulation is slow, and a slow rank is no dead one.
export SHOUTER_SIZE=2 SHOUTER_LOCAL_SIZE=1 SHOUTER_ADDR=127.0.0.1 SHOUTER_PORT=29501 SHOUTER_TRANSPORT=rud SHOUTER_HUGEPAGES=on \
    SHOUTER_DPDK_MEMORY_MB=128 SHOUTER_MTU=1500 SHOUTER_HEARTBEAT_TIMEOUT=60s SHOUTER_DEADLINE=60s
SHOUTER_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export SHOUTER_KEY

# job NIC NIC: an all-reduce of 4 bytes and of 64 KiB.
job() {
    local rank pids=() status=0
    for rank in 0 1; do
        SHOUTER_RANK=$rank SHOUTER_NODE=$rank SHOUTER_PORTS="[{device = \"pci:$1\", address = \"10.77.0.$((rank + 1))/24\"}]" \
            timeout 120 shouter bench allreduce-worker --bytes 4,64Ki --seconds 0.2 >"/tmp/rank$rank" 2>&1 &
        pids+=($!)
        shift
    done
    for rank in 0 1; do
        wait "${pids[rank]}" || status=$?
    done
    cat /tmp/rank0
    [ "$status" = 0 ] || { cat /tmp/rank1 && fail "a rank ended with $status"; }
    [ "$(grep -c '"hosts":2,"transport":"rud"' /tmp/rank0)" = 2 ] || fail "not two lines of figures"
}

models=()
for ((cable = 0; cable < ${#nics[@]}; cable += 2)); do
    job "${nics[cable]}" "${nics[cable + 1]}"
    models+=("$(cat "/sys/bus/pci/devices/${nics[cable]}/vendor"):$(cat "/sys/bus/pci/devices/${nics[cable]}/device")")
done
shown "two ranks reduced 4 B and 64 KiB by RUD over ${models[*]}"
