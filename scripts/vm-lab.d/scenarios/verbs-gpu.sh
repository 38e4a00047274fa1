# shows: tensors on GPUs (of a simulated CUDA driver) and in host memory, reduced in one operation over RDMA verbs; the page-locked lanes are the device's to read and write
# options: --nic rxe --timeout 200
# needs: shouter cuda-sim/libcuda.so.1

two_rxe
export SHOUTER_HEARTBEAT_TIMEOUT=60s LD_LIBRARY_PATH=/lab/bin

# reduced RANKS MEMORY: every rank checks every sum.
reduced() {
    shouter bench allreduce --ranks "$1" --hosts 2 --transport verbs --rdma-device rxe1,rxe2 --memory "$2" --bytes 4,64Ki,1Mi \
        --seconds 0.1 --json >/tmp/bench || fail "the bench ended with $? over --memory $2"
    [ "$(grep -c '"transport":"\(shm+\)\?verbs"' /tmp/bench)" = 3 ] || fail "it was not verbs: $(cat /tmp/bench)"
}

reduced 2 gpu
reduced 2 gpu,private
reduced 4 private,gpu,gpu
shown "2 and 4 ranks, with tensors on GPUs and in host memory"
