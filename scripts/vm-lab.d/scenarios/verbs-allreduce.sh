# shows: all-reduce of 4 B to 4 MiB over RDMA verbs, four ranks on two hosts, every sum checked; the same where 1% of packets is lost
# options: --nic rxe --timeout 400
# needs: shouter
# slice: yes

two_rxe
# Emulation is slow, and a slow rank is no dead one.
export SHOUTER_HEARTBEAT_TIMEOUT=60s

# reduced BYTES...: runs the bench, whose ranks check every sum; the median times of the sizes are in TIMES.
reduced() {
    shouter bench allreduce --ranks "$1" --hosts 2 --transport verbs --rdma-device rxe1,rxe2 --bytes "$2" --seconds 0.2 --json >/tmp/bench ||
        fail "the bench ended with $?"
    grep -q '"transport":"\(shm+\)\?verbs"' /tmp/bench || fail "it was not verbs: $(cat /tmp/bench)"
    TIMES=$(sed -n 's/.*"p50_us":\([0-9.]*\).*/\1/p' /tmp/bench | tr '\n' ' ')
}

before=$(packets va)
reduced 2 4..4Mi
crossed=$(($(packets va) - before))
[ $crossed -ge 1024 ] || fail "only $crossed packets crossed the wire"
two=$TIMES
reduced 4 4,64Ki,1Mi
lossy va 1%
lossy vb 1%
reduced 2 4,64Ki,1Mi
dropped=$(($(lost va) + $(lost vb)))
[ $dropped -gt 0 ] || fail "nothing was lost"
shown "2 ranks: $two us; $crossed packets crossed; with loss ($dropped packets): $TIMES us"
