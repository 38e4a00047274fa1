# shows: tensors in the memory of (simulated) GPUs go straight between GPU and RDMA device, which takes no dma-bufs and is told their address; with a pause of the wire, and with a rank whose tensor is in host memory
# options: --nic rxe --timeout 400
# needs: shouter cuda-sim/libcuda.so.1 cuda-sim/libnvrtc.so.12 cuda-sim/kernels.tar

two_rxe
mkdir -p /tmp/cache
tar -C /tmp/cache -xf /lab/bin/kernels.tar || fail "there are no kernels"
# The device's memory is accessible to this process, as nvidia-peermem makes a GPU's memory accessible to the NIC.
export SHOUTER_HEARTBEAT_TIMEOUT=60s LD_LIBRARY_PATH=/lab/bin XDG_CACHE_HOME=/tmp/cache CUDA_SIM=protect=0,trace=/tmp/trace SHOUTER_LOG=shouter=info
export SHOUTER_GPU_DIRECT=on

# reduced MEMORY SECONDS BYTES: every rank checks every sum. The log is in /tmp/log, the driver's calls in /tmp/trace.
reduced() {
    rm -f /tmp/trace
    shouter bench allreduce --ranks 2 --hosts 2 --transport verbs --rdma-device rxe1,rxe2 --memory "$1" --bytes "$3" \
        --seconds "$2" --json >/tmp/bench 2>/tmp/log || fail "the bench ended with $? over --memory $1: $(tail -n 20 /tmp/log)"
    grep -q '"transport":"verbs"' /tmp/bench || fail "it was not verbs: $(cat /tmp/bench)"
}

calls() { grep -c "$1\$" /tmp/trace; }
straight() { grep -c 'reads and writes tensors where they lie on this GPU.*nvidia-peermem' /tmp/log; }

reduced gpu 0.01 64Ki,256Ki
[ "$(straight)" = 2 ] || fail "the tensors do not go straight: $(grep -v DEBUG /tmp/log)"
grep -q 'by way of the host.s memory' /tmp/log && fail "some were staged: $(cat /tmp/log)"
[ "$(calls cuFlushGPUDirectRDMAWrites)" -gt 0 ] || fail "what the NIC wrote was never flushed"
launches=$(calls cuLaunchKernel)

SHOUTER_GPU_DIRECT=off reduced gpu 0.01 64Ki
[ "$(straight)" = 0 ] || fail "gpu_direct = off is not heeded: $(cat /tmp/log)"
grep -q 'gpu_direct = .*off' /tmp/log || fail "gpu_direct = off does not say so: $(cat /tmp/log)"
[ "$(calls cuFlushGPUDirectRDMAWrites)" = 0 ] || fail "something was flushed"

# A GPU whose memory no NIC can access.
CUDA_SIM=protect=0,dmabuf=0 reduced gpu 0.01 64Ki
grep -q 'no GPUDirect RDMA' /tmp/log || fail "the reason is not named: $(cat /tmp/log)"

# The other rank uses host memory that is not registered: its data goes through slots, and is copied to the GPU.
reduced gpu,private 0.01 64Ki
[ "$(straight)" = 1 ] || fail "the tensor on the GPU does not go straight: $(cat /tmp/log)"

# Queue pairs fail in the middle: transfers in progress are repeated through slots.
reduced gpu 12 256Ki &
job=$!
sleep 8
tc qdisc replace dev va root netem loss 100%
sleep 3
tc qdisc delete dev va root
wait $job || fail "a pause of 3 s ended the job: $(tail -n 20 /tmp/log)"
again=$(grep -c 'set up again' /tmp/log)
[ "$again" -gt 0 ] || fail "no queue pair failed"
shown "sums right: both straight ($launches kernels), off, without GPUDirect RDMA, with a rank in host memory, and over a pause of 3 s ($again warnings)"
