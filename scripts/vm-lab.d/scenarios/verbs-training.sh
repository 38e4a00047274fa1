# shows: the demo's training over verbs ends with the same bits as over DPDK's links and over the kernel's sockets
# options: --nic rxe --share data --timeout 400
# needs: shouter trainer

two_rxe
export SHOUTER_HEARTBEAT_TIMEOUT=60s
busybox gunzip -c /share/digits.csv.gz >/tmp/digits.csv || fail "no digits"

# hash TRANSPORT ARGUMENT...: trains for three epochs, and prints the common hash of all ranks' parameters.
hash() {
    local transport=$1
    shift
    shouter run -n 4 --hosts 2 --transport "$transport" "$@" -- /lab/bin/trainer --data /tmp/digits.csv --epochs 3 \
        --dump-params "/tmp/$transport-%r.params" >"/tmp/$transport.log" 2>&1 || fail "training over $transport: $(tail -n 20 "/tmp/$transport.log")"
    sha256sum /tmp/"$transport"-?.params | cut -d ' ' -f 1 | sort | uniq -c | awk 'NR > 1 { exit 1 } { print $1, $2 }' ||
        fail "ranks differ over $transport"
}

before=$(packets va)
verbs=$(hash verbs --rdma-device rxe1,rxe2)
crossed=$(($(packets va) - before))
kernel=$(hash kernel)
rud=$(hash auto)
[ "$verbs" = "$rud" ] && [ "$kernel" = "$rud" ] || fail "verbs: $verbs; kernel: $kernel; rud: $rud"
[ "${verbs%% *}" = 4 ] || fail "only ${verbs%% *} ranks wrote their parameters"
shown "${verbs#* } on four ranks over verbs ($crossed packets), kernel sockets and RUD"
