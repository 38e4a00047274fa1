# shows: all-reduce of 1 B to 256 KiB over RDMA verbs, four ranks on two hosts, every sum checked; the same where 1% of packets is lost; nothing is registered but once
# options: --nic rxe --timeout 400
# needs: shouter
# slice: yes

two_rxe
# Emulation is slow: a slow rank must not count as dead.
export SHOUTER_HEARTBEAT_TIMEOUT=60s

# reduced RANKS DTYPE BYTES: runs the bench, whose ranks check every sum; the median times of the sizes are added to TIMES.
reduced() {
    shouter bench allreduce --ranks "$1" --hosts 2 --transport verbs --rdma-device rxe1,rxe2 --dtype "$2" --bytes "$3" --seconds 0.2 --json >/tmp/bench ||
        fail "the bench ended with $?"
    grep -q '"transport":"\(shm+\)\?verbs"' /tmp/bench || fail "it was not verbs: $(cat /tmp/bench)"
    TIMES+=$(sed -n 's/.*"p50_us":\([0-9.]*\).*/\1/p' /tmp/bench | tr '\n' ' ')
}

# more_packets COUNT: waits until COUNT more packets have crossed the wire.
more_packets() {
    local before
    before=$(packets va)
    within 60 eval "[ \$((\$(packets va) - $before)) -ge $1 ]" || fail "no $1 packets in 60 s: $(cat /tmp/job)"
}

# registered: the memory that is registered with both devices. A registration has a key of its own.
registered() { rdma resource show mr | sort; }

before=$(packets va)
TIMES=
reduced 4 u8 1,4Ki,64Ki
reduced 4 f32 256Ki
crossed=$(($(packets va) - before))
[ $crossed -ge 1024 ] || fail "only $crossed packets crossed the wire"
four=$TIMES

# Steps over the same tensor, in the middle of a job: two slot buffers and the tensor at each end, and nothing more.
shouter bench allreduce --hosts 2 --transport verbs --rdma-device rxe1,rxe2 --bytes 64Ki --seconds 1000 --json >/tmp/job 2>&1 &
job=$!
more_packets 2000
first=$(registered)
more_packets 2000
[ "$(registered)" = "$first" ] || fail "further steps registered memory: $first, then $(registered)"
[ "$(grep -c ' mrlen 65536 ' <<<"$first")" = 2 ] && [ "$(wc -l <<<"$first")" = 6 ] || fail "not three registrations at each end: $first"
kill $job
wait $job && fail "a job that was ended succeeded"

lossy va 1%
lossy vb 1%
TIMES=
reduced 2 u8 1,64Ki,256Ki
dropped=$(($(lost va) + $(lost vb)))
[ $dropped -gt 0 ] || fail "nothing was lost"
shown "4 ranks: $four us; $crossed packets crossed; 2 ranks with loss ($dropped packets): $TIMES us; 3 registrations a rank, before and after more steps"
