# shows: sends, writes and reads between two soft-RoCE devices, in packets that cross the wire between them
# options: --nic rxe

two_rxe
[ "$(ibv_devinfo -d rxe1 | awk '/active_mtu/ { print $2 }')" = 4096 ] || fail "the path MTU is not 4096"

# crossed INTERFACE BYTES COMMAND...: the command must send at least BYTES from there, in packets of the path MTU.
crossed() {
    local interface=$1 bytes=$2 before after
    shift 2
    before=$(packets "$interface")
    "$@"
    after=$(packets "$interface")
    [ $((after - before)) -ge $((bytes / 4096)) ] || fail "only $((after - before)) packets left $interface for $bytes bytes"
    echo "$((after - before)) packets left $interface for $bytes bytes"
}

crossed va $((300 * 65536)) perftest ib_write_bw -s 65536 -n 300
wrote=${RESULT[3]}
# In a read the peer sends.
crossed vb $((100 * 65536)) perftest ib_read_bw -s 65536 -n 100
read=${RESULT[3]}
crossed va $((300 * 4096)) perftest ib_send_lat -s 64 -n 300
shown "write $wrote MB/s, read $read MB/s, 64 B send ${RESULT[4]} us (median)"
