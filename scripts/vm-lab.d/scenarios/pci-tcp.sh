# shows: our TCP/IP on an e1000 through DPDK and vfio-pci answers a kernel at the other end of the cable: ping, and 1 MiB echoed
# options: --iommu --nic virtio:e1000
# needs: examples/echo

read -r kernels ours <<<"$NICS"
within 10 interface "$kernels" || fail "the kernel drives no NIC at $kernels"
kernels=$(interface "$kernels")
vfio "$ours"
ip address add 10.8.0.1/24 dev "$kernels"
ip link set "$kernels" up
timeout 100 /lab/bin/echo --device "pci:$ours" --address 10.8.0.2/24 >/tmp/echo.log 2>&1 &
if ! within 60 ping -c 1 -W 1 10.8.0.2; then
    cat /tmp/echo.log
    fail "no answer to ping"
fi
ping -c 20 -i 0.2 -s 1000 10.8.0.2 >/tmp/ping || fail "pings were lost: $(tail -n 2 /tmp/ping)"
head -c 1048576 /dev/urandom >/tmp/sent
exec {echo}<>/dev/tcp/10.8.0.2/7 || fail "no TCP connection"
cat /tmp/sent >&$echo &
timeout 60 head -c 1048576 <&$echo >/tmp/received || fail "only $(stat -c %s /tmp/received) bytes came back in 60 s"
cmp /tmp/sent /tmp/received || fail "what came back is not what was sent"
shown "1 MiB echoed; ping $(awk -F / '/^rtt/ { print $5 }' /tmp/ping) ms on average"
