# shows: no device, no permission, too little locked memory, a link that is down, a GID of the wrong kind: each error names its remedy
# options: --nic rxe --timeout 300
# needs: shouter

export SHOUTER_HEARTBEAT_TIMEOUT=20s
# says WORDS COMMAND...: the command must fail with these words.
says() {
    local words=$1
    shift
    "$@" >/tmp/said 2>&1 && fail "\`$*\` succeeded"
    grep -q -- "$words" /tmp/said || fail "\`$*\` does not say \`$words\`: $(cat /tmp/said)"
}
bench=(shouter bench allreduce --hosts 2 --transport verbs --rdma-device rxe1,rxe2 --bytes 4 --seconds 0.05)

says 'modprobe rdma_rxe' "${bench[@]}"
two_rxe
"${bench[@]}" >/dev/null || fail "with two devices it does not work"
says 'there is no RDMA device rxe9' shouter bench allreduce --hosts 2 --transport verbs --rdma-device rxe1,rxe9 --bytes 4
says 'rdma_memory_mb = 1 is too little' env SHOUTER_RDMA_MEMORY_MB=1 "${bench[@]}"
chmod 600 /dev/infiniband/uverbs*
cp "$(command -v shouter)" /tmp/shouter
says 'no permission to open /dev/infiniband' setpriv --reuid 65534 --clear-groups env XDG_RUNTIME_DIR=/tmp HOME=/tmp /tmp/shouter "${bench[@]:1}"
chmod 666 /dev/infiniband/uverbs*
says 'RLIMIT_MEMLOCK' setpriv --reuid 65534 --clear-groups --bounding-set=-all --inh-caps=-all env XDG_RUNTIME_DIR=/tmp HOME=/tmp \
    bash -c 'ulimit -l 64; exec /tmp/shouter "$@"' bash "${bench[@]:1}"
ip link set vb down
says 'not active' "${bench[@]}"
ip link set vb up
within 10 gid_index rxe2 || fail "rxe2 does not come back"
ip address flush dev va
says 'no RDMA port\|no RoCE v2 address\|no way' "${bench[@]}"
# auto reports why it does not use verbs, and works.
SHOUTER_TRANSPORT=auto SHOUTER_LOG=info shouter bench allreduce --hosts 2 --transport auto --rdma-device rxe1,rxe2 --bytes 4 --seconds 0.05 >/tmp/said 2>&1 ||
    fail "auto does not fall back: $(cat /tmp/said)"
grep -q 'no verbs:' /tmp/said || fail "auto does not say why: $(cat /tmp/said)"
shown "eight errors with their remedies; auto falls back and says why"
