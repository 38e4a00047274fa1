# shows: a dead wire ends a job with the error that names the peer and the reason, and so does kill -9 of a rank; a pause does not
# options: --nic rxe --timeout 400
# needs: shouter

two_rxe
export SHOUTER_HEARTBEAT_TIMEOUT=10s

# start: a long all-reduce between two ranks in the background; returns when its figures begin to come. Its output is in /tmp/job.
start() {
    shouter bench allreduce --hosts 2 --transport verbs --rdma-device rxe1,rxe2 --bytes 64Ki,1Mi --seconds "$1" --json >/tmp/job 2>&1 &
    job=$!
    within 60 grep -q '"bytes":65536' <(wait_for_traffic) || fail "the job does not start: $(cat /tmp/job)"
}

# wait_for_traffic: says so once packets cross the wire steadily.
wait_for_traffic() {
    local before
    before=$(packets va)
    for _ in $(seq 300); do
        sleep 0.2
        if [ $(($(packets va) - before)) -gt 2000 ]; then
            echo '"bytes":65536'
            return
        fi
    done
}

# The wire is dead: the queue pairs cannot be kept up, although the control connections can.
start 60
tc qdisc replace dev va root netem loss 100%
begun=$SECONDS
wait $job && fail "a job over a dead wire succeeded"
took=$((SECONDS - begun))
tc qdisc delete dev va root
grep -q 'retries exceeded' /tmp/job || fail "the reason is not named: $(tail -n 20 /tmp/job)"
[ $took -le 40 ] || fail "it took $took s"

# A pause that is shorter than the patience costs time and nothing else.
start 4
tc qdisc replace dev va root netem loss 100%
sleep 3
tc qdisc delete dev va root
wait $job || fail "a pause of 3 s ended the job: $(tail -n 20 /tmp/job)"
again=$(grep -c 'set up again' /tmp/job)

# kill -9 in mid-step: the survivor names the rank.
start 60
victim=$(pgrep -f 'allreduce-worker' | tail -n 1)
begun=$SECONDS
kill -9 "$victim"
wait $job && fail "a job succeeded without one of its ranks"
[ $((SECONDS - begun)) -le 40 ] || fail "it took $((SECONDS - begun)) s to notice"
grep -q 'rank [01]: the process is dead or unreachable' /tmp/job || fail "the dead rank is not named: $(tail -n 20 /tmp/job)"
shown "dead wire: named after $took s; pause of 3 s: $again warnings, sums right; kill -9: named"
