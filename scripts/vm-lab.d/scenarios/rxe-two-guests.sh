# shows: RoCE v2 between two kernels, over a cable
# options: --guests 2 --nic rxe

rxe_between_guests
interface=$(interface "$NICS")
before=$(packets "$interface")
perftest ib_write_bw -s 65536 -n 300
crossed=$(($(packets "$interface") - before))
if [ "$GUEST" = 1 ]; then
    [ $crossed -ge $((300 * 65536 / 4096)) ] || fail "only $crossed packets left guest 1"
    wrote=${RESULT[3]}
fi
perftest ib_send_lat -s 64 -n 300
if [ "$GUEST" = 1 ]; then
    shown "write $wrote MB/s in $crossed packets, 64 B send ${RESULT[4]} us (median)"
fi
