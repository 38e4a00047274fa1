# shows: what the guest offers the other scenarios: modules, programs, AVX2, folders

modprobe -n -a rdma_rxe ib_uverbs rdma_ucm sch_netem vfio-pci e1000 e1000e vmxnet3 virtio_net tun ||
    fail "the kernel lacks a module"
for program in ibv_devinfo ib_write_bw rping ethtool lspci tcpdump tc rdma ping ss ps; do
    command -v "$program" >/dev/null || fail "there is no $program"
done
grep -qw avx2 /proc/cpuinfo || fail "the processor has no AVX2"
# The C library's own choice of routines: AVX2, FMA and BMI2 for v3, AVX-512 for v4.
levels=$(/lib64/ld-linux-x86-64.so.2 --help)
grep -q 'x86-64-v3 (supported' <<<"$levels" || fail "the C library finds no x86-64-v3 here"
if grep -q 'x86-64-v4 (supported' <<<"$levels"; then
    fail "AVX-512 is emulated now: say so in vm-lab --help, and cover it"
fi
if touch /lab/probe 2>/dev/null; then
    fail "/lab can be written to"
fi
echo hello >/share/probe || fail "/share cannot be written to"
[ "$(cat /share/probe)" = hello ] || fail "/share does not keep what is written to it"
shown "Linux $(uname -r), AVX2 and no AVX-512, $(nproc) processors"
