# shows: a dead wire, an address or an interface that goes, and kill -9 of a rank end a job with the error that names rank and reason; what comes back does not
# options: --nic rxe --timeout 400
# needs: shouter

two_rxe
export SHOUTER_HEARTBEAT_TIMEOUT=10s

# start SECONDS: a job of two ranks in the background; returns when packets cross the wire steadily. Its output is in /tmp/job.
start() {
    local before
    before=$(packets va)
    shouter bench allreduce --hosts 2 --transport verbs --rdma-device rxe1,rxe2 --bytes 64Ki,1Mi --seconds "$1" --json >/tmp/job 2>&1 &
    job=$!
    within 60 eval "[ \$((\$(packets va) - $before)) -gt 2000 ]" || fail "the job does not start: $(cat /tmp/job)"
    begun=$SECONDS
}

# ends WORDS CULPRIT: the job fails in time, which is set in `took`, with these words and that rank as unreachable.
ends() {
    wait $job && fail "a job succeeded that could not"
    took=$((SECONDS - begun))
    [ $took -le 40 ] || fail "it took $took s"
    grep -q -- "$1" /tmp/job || fail "the reason is not named, \`$1\`: $(tail -n 20 /tmp/job)"
    grep -Eq "rank $2: (the process is dead or unreachable|it has lost its network port)" /tmp/job || fail "rank $2 is not named: $(tail -n 20 /tmp/job)"
}

# give_address: restores the address of rxe1, which the last scenario has removed.
give_address() {
    if ! ip address add "${RXE_ADDRESS[0]}/24" dev va || ! ip route add "${RXE_ADDRESS[1]}" dev va table 101; then
        fail "the address cannot be given back"
    fi
    within 10 gid_index rxe1 || fail "rxe1 has no GID again"
}

# The wire is dead: the queue pairs fail, although the control connections work.
start 60
tc qdisc replace dev va root netem loss 100%
ends 'retries exceeded' '[01]'
tc qdisc delete dev va root
dead=$took

# A pause that is shorter than the time-out only costs time.
start 4
tc qdisc replace dev va root netem loss 100%
sleep 3
tc qdisc delete dev va root
wait $job || fail "a pause of 3 s ended the job: $(tail -n 20 /tmp/job)"
again=$(grep -c 'set up again' /tmp/job)

# kill -9 in mid-step: the survivor names the rank.
start 60
kill -9 "$(pgrep -f 'collective-worker' | tail -n 1)"
ends 'a leader is lost' '[01]'

# An address that is removed and restored in time has another place in the port's table, which the queue pairs find.
start 10
ip address delete "${RXE_ADDRESS[0]}/24" dev va || fail "the address cannot be taken"
sleep 2
give_address
wait $job || fail "a job ended because its address was gone for 2 s: $(tail -n 20 /tmp/job)"
grep -q 'set up again.*address of this host.s RDMA port has changed' /tmp/job || fail "nobody noticed that the address was gone: $(cat /tmp/job)"

# An address that is not restored. Both ranks name the rank with that address.
start 100
ip address delete "${RXE_ADDRESS[0]}/24" dev va || fail "the address cannot be taken"
ends 'lost.*has changed; keep addresses fixed' 0
[ "$(grep -c 'given up: rank 0: it has lost its network port' /tmp/job)" = 2 ] || fail "the ranks name others: $(tail -n 20 /tmp/job)"
changed=$took
give_address

# A device is deleted in use. Up to Linux 6.1 soft-RoCE cannot remove an open device: it is in no list any more, and is
# gone after the job has ended well. If the kernel can, the job's error reports it.
start 10
rdma link delete rxe2 &
within 10 test ! -e /sys/class/infiniband_verbs/uverbs1 || fail "rxe2 is not being deleted"
if wait $job; then
    deleted="held until the job has ended"
else
    deleted="the job's error"
    grep -q 'RDMA device is gone' /tmp/job || fail "the reason is not named: $(tail -n 20 /tmp/job)"
fi
within 10 test ! -e /sys/class/infiniband/rxe2 || fail "rxe2 is still there"
rdma link add rxe2 type rxe netdev vb || fail "cannot make rxe2 again"
within 10 gid_index rxe2 || fail "rxe2 has no GID again"

# The interfaces themselves, both ends of the pair: last, because both are lost afterwards.
start 100
ip link delete va &
ends 'lost.*RDMA \(device is gone or has failed\|port is down\); look at' '[01]'
shown "dead wire: named after $dead s; pause of 3 s: $again warnings, sums right; kill -9: named; address gone: named after $changed s," \
    "back after 2 s: sums right; rdma link delete: $deleted; interface deleted: named after $took s"
