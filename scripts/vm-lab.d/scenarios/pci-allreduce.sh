# shows: two ranks all-reduce over RUD between two virtio NICs through DPDK and vfio-pci; every sum is checked
# options: --iommu --nic virtio
# needs: shouter

# shellcheck disable=SC2086 # addresses are words
vfio $NICS
# Both ranks' share of the huge pages.
export SHOUTER_HUGEPAGES=on SHOUTER_DPDK_MEMORY_MB=192 SHOUTER_HEARTBEAT_TIMEOUT=60s
# The launcher gives each rank an emulated link, which the NIC replaces.
cat >/tmp/rank <<'RANK'
read -ra nics <<<"$NICS"
address=10.8.0.$((SHOUTER_NODE + 1))
export SHOUTER_PORTS="[{device = \"pci:${nics[SHOUTER_NODE]}\", address = \"$address/24\", mtu = 1500}]"
exec shouter bench allreduce-worker --bytes 4,64Ki,1Mi --seconds 0.2
RANK
timeout 200 shouter run -n 2 --hosts 2 -- bash /tmp/rank 2>&1 | tee /tmp/lines
[ "${PIPESTATUS[0]}" = 0 ] || fail "the ranks did not come to an end: $(tail -n 1 /tmp/lines)"
sizes=$(grep -o '"transport":"rud","bytes":[0-9]*' /tmp/lines | grep -o '[0-9]*$' | paste -sd ' ')
[ "$sizes" = "4 65536 1048576" ] || fail "the sizes measured over RUD are: $sizes"
shown "$(sed -En 's/.*"bytes":1048576,.*"p50_us":([0-9]+).*/1 MiB in \1 us (median)/p' /tmp/lines)"
