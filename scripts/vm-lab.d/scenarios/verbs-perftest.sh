# shows: what channel verbs reaches of perftest between the same devices: writes of 64 KiB with and without CRC, and a round trip of 64 B
# options: --nic rxe --timeout 400
# needs: shouter

two_rxe
export SHOUTER_HEARTBEAT_TIMEOUT=60s

# ratio FIELD ARGUMENT...: our figure over perftest's, both from one call.
ratio() {
    local field=$1
    shift
    shouter bench "$@" --protocol verbs --rdma-device rxe1,rxe2 --passes 5 --seconds 1 --against perftest --json >/tmp/bench ||
        fail "the bench ended with $?"
    cat /tmp/bench
    sed -n "s/.*\"who\":\"\([a-z]*\)\".*\"$field\":\([0-9.]*\).*/\1 \2/p" /tmp/bench |
        awk '{ figure[$1] = $2 } END { if (!figure["perftest"]) exit 1; printf "%.2f", figure["shouter"] / figure["perftest"] }' ||
        fail "no figures"
}

on=$(ratio goodput_gbits stream --crc on | tail -n 1)
off=$(ratio goodput_gbits stream --crc off | tail -n 1)
trip=$(ratio p50_us pingpong --crc on | tail -n 1)
# The aim is 0.80, 0.60 and 1.6. Figures of an emulated machine on a busy host vary by a factor of two, so the limits
# allow for that.
shown "64 KiB: $off of ib_write_bw, $on with CRC; 64 B: $trip times ib_send_lat"
for least in "$off 0.40 bandwidth" "$on 0.30 bandwidth-with-CRC" "3.2 $trip round-trip"; do
    read -r figure bound what <<<"$least"
    awk -v figure="$figure" -v bound="$bound" 'BEGIN { exit !(figure >= bound) }' || fail "$what: $figure against $bound"
done
