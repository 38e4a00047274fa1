# shows: all-reduce of 1 B to 4 MiB over RDMA verbs between two kernels, over a cable; transport auto takes verbs by itself, and says so
# options: --guests 2 --nic rxe --timeout 400
# needs: shouter
# slice: yes

rxe_between_guests
export SHOUTER_SIZE=2 SHOUTER_LOCAL_SIZE=1 SHOUTER_LOCAL_RANK=0 SHOUTER_RANK=$GUEST SHOUTER_NODE=$GUEST \
    SHOUTER_ADDR=${RXE_ADDRESS[0]} SHOUTER_KEY=a-key-for-two-guests-in-a-laboratory SHOUTER_HEARTBEAT_TIMEOUT=60s SHOUTER_LOG=info

# job PORT TRANSPORT BYTES [DTYPE]: one rank in each guest.
job() {
    barrier "job-$1"
    SHOUTER_PORT=$1 SHOUTER_TRANSPORT=$2 timeout 150 shouter bench collective-worker --bytes "$3" --dtype "${4:-f32}" --seconds 0.2 >/tmp/out 2>/tmp/err ||
        fail "the rank ended with $?: $(cat /tmp/err)"
}

# measured: checks that six sizes were measured over verbs; adds their times to TIMES.
measured() {
    [ "$GUEST" = 0 ] || return 0
    [ "$(grep -c '"transport":"verbs"' /tmp/out)" = 6 ] || fail "it was not verbs: $(cat /tmp/out)"
    TIMES+=$(sed -n 's/.*"p50_us":\([0-9.]*\).*/\1/p' /tmp/out | tr '\n' ' ')
}

TIMES=
job 29501 verbs 1..1Ki u8
measured
job 29506 verbs 4Ki..4Mi
measured
job 29502 auto 4,64Ki
if [ "$GUEST" = 0 ]; then
    grep -q '"transport":"verbs"' /tmp/out || fail "auto took something else: $(cat /tmp/out /tmp/err)"
    grep -q 'a channel was chosen.*verbs' /tmp/err || fail "it does not say so: $(cat /tmp/err)"
fi
job 29503 kernel 4,64Ki
# The peer has no RDMA device any more: auto uses the kernel's sockets on both sides, explicit verbs fails by name.
if [ "$GUEST" = 1 ]; then
    rdma link delete rxe1
fi
job 29504 auto 4,64Ki
if [ "$GUEST" = 0 ]; then
    grep -q '"transport":"kernel"' /tmp/out || fail "auto took something else: $(cat /tmp/out /tmp/err)"
    shown "verbs: $TIMES us; auto takes verbs, and the kernel's sockets when one side has no RDMA device"
fi
barrier verbs-without
SHOUTER_PORT=29505 SHOUTER_TRANSPORT=verbs timeout 60 shouter bench collective-worker --bytes 4 --seconds 0.1 >/tmp/out 2>/tmp/err &&
    fail "verbs without a device at one side succeeded"
grep -qE 'no RDMA (port|device)|left during' /tmp/err || fail "the error does not say why: $(cat /tmp/err)"
