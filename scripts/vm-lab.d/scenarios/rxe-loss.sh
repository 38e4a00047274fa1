# shows: RDMA writes complete over a wire that loses 1% of the packets in each direction
# options: --nic rxe

two_rxe
lossy va 1%
lossy vb 1%
perftest ib_write_bw -s 65536 -n 300
dropped=$(($(lost va) + $(lost vb)))
[ $dropped -gt 0 ] || fail "nothing was lost"
repeated=$(($(rxe_counter rxe1 sent_pkts) - 300 * 65536 / 4096))
[ $repeated -gt 0 ] || fail "nothing was sent again"
shown "${RESULT[3]} MB/s; $dropped packets lost, $repeated sent beyond those needed"
