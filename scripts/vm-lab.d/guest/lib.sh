# Loaded by every bash in a guest of scripts/vm-lab. A guest has in its environment
#   GUEST    its number: 0, or 1
#   GUESTS   how many there are
#   NICS     the PCI addresses of its NICs, in the order of --nic
# and the folders /lab (read-only: bin/, this file), /share (the host's, and the same in both guests; the working directory).

# The addresses of the two ends, whether they are in one guest or in two.
RXE_ADDRESS=(10.9.0.1 10.9.0.2)
# Leaves room for RoCE's headers around a path MTU of 4096.
RXE_MTU=4200

# fail WHY: ends the scenario as failed. It ends one shell only: not for use in $(...).
fail() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}

# skip WHY: ends the scenario as skipped.
skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}

# shown WHAT: the scenario's result, for the table.
shown() { printf 'shown: %s\n' "$*"; }

# within SECONDS COMMAND...: repeats the command until it succeeds; fails after that time.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

# barrier NAME [SECONDS]: waits until the other guest has arrived too (60 s by default). Each name can be used once.
barrier() {
    [ "$GUESTS" = 2 ] || return 0
    touch "/meet/$1-$GUEST"
    within "${2:-60}" test -e "/meet/$1-$((1 - GUEST))" || fail "guest $((1 - GUEST)) did not come to \`$1\` within ${2:-60} s"
}

# cable NUMBER on|off: puts this guest's end of that cable, from 0, in, or pulls it out (in one guest its first end); returns when
# that is done.
cable() {
    touch "/meet/link-$GUEST-$1-$2"
    within 20 gone "/meet/link-$GUEST-$1-$2" || fail "the lab did not switch cable $1 $2"
}

# gone FILE: whether there is no such file.
gone() { [ ! -e "$1" ]; }

# interface PCI: the kernel's name of that NIC, such as eth0.
interface() { ls "/sys/bus/pci/devices/$1/net" 2>/dev/null || ls "/sys/bus/pci/devices/$1"/virtio*/net 2>/dev/null; }

# no_ipv6 INTERFACE: the interface then sends nothing by itself, and IPv4 has the same GID index everywhere.
no_ipv6() { echo 1 >"/proc/sys/net/ipv6/conf/$1/disable_ipv6"; }

# interface_up INTERFACE ADDRESS: for an rxe device over it.
interface_up() {
    no_ipv6 "$1"
    if ! ip link set "$1" mtu "$RXE_MTU" up || ! ip address add "$2/24" dev "$1"; then
        fail "cannot bring $1 up with $2"
    fi
}

# one_rxe INTERFACE ADDRESS: a soft-RoCE device rxe1 over that interface, which gets the IPv4 address.
one_rxe() {
    modprobe -a rdma_rxe ib_uverbs rdma_ucm || fail "the kernel has no rdma_rxe"
    interface_up "$1" "$2"
    rdma link add rxe1 type rxe netdev "$1" || fail "cannot make rxe1 over $1"
    within 10 gid_index rxe1 || fail "rxe1 has no GID for IPv4"
}

# two_rxe: rxe1 (10.9.0.1) over va and rxe2 (10.9.0.2) over vb, the ends of a veth pair. Up to Linux 6.1 rxe devices
# exist only in the first network namespace. To keep their traffic on the wire there, this host's addresses are looked
# up after the routes of sockets that are bound to an interface, as rxe's are.
two_rxe() {
    local side key=0
    modprobe -a veth rdma_rxe ib_uverbs rdma_ucm || fail "the kernel has no rdma_rxe"
    ip link add va type veth peer name vb || fail "cannot make a veth pair"
    for side in all default va vb; do
        echo 1 >/proc/sys/net/ipv4/conf/$side/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/$side/rp_filter
    done
    ip rule add pref 100 lookup local || fail "cannot add a rule for local addresses"
    ip rule delete pref 0 || fail "cannot remove the first rule for local addresses"
    for side in va vb; do
        interface_up "$side" "${RXE_ADDRESS[key]}"
        ip route add "${RXE_ADDRESS[1 - key]}" dev "$side" table $((101 + key)) || fail "cannot route out of $side"
        ip rule add pref $((10 + key)) oif "$side" lookup $((101 + key)) || fail "cannot route out of $side"
        key=$((key + 1))
        rdma link add "rxe$key" type rxe netdev "$side" || fail "cannot make rxe$key over $side"
        within 10 gid_index "rxe$key" || fail "rxe$key has no GID for IPv4"
    done
}

# rxe_between_guests: two guests get an rxe1 each, over their first NIC, and wait until they reach each other.
rxe_between_guests() {
    local nic=${NICS%% *}
    within 10 interface "$nic" || fail "the kernel drives no NIC at \`$nic\`: start with --nic rxe"
    one_rxe "$(interface "$nic")" "${RXE_ADDRESS[GUEST]}"
    within 30 ping -c 1 -W 1 "${RXE_ADDRESS[1 - GUEST]}" || fail "no answer from ${RXE_ADDRESS[1 - GUEST]}"
    barrier rxe
}

# gid_index RXE: the index of the device's GID for RoCE v2 over IPv4.
gid_index() {
    local gid folder=/sys/class/infiniband/$1/ports/1
    for gid in "$folder"/gids/*; do
        if grep -q '^0000:0000:0000:0000:0000:ffff:' "$gid" && grep -q 'RoCE v2' "$folder/gid_attrs/types/${gid##*/}" 2>/dev/null; then
            echo "${gid##*/}"
            return 0
        fi
    done
    return 1
}

# rxe_counter RXE NAME: one of the device's counters, such as sent_pkts.
rxe_counter() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/$2"; }

# packets INTERFACE: the number of packets it has sent.
packets() { cat "/sys/class/net/$1/statistics/tx_packets"; }

# lossy INTERFACE SHARE: drops that share of the packets that the interface sends, such as 1%.
lossy() {
    modprobe sch_netem || fail "the kernel has no sch_netem"
    tc qdisc replace dev "$1" root netem loss "$2" || fail "cannot lose $2 on $1"
}

# lost INTERFACE: the number of packets that `lossy` has dropped there.
lost() { tc -s qdisc show dev "$1" | awk '/netem/ { ours = 1 } ours && /dropped/ { sub(/,/, "", $7); print $7; exit }'; }

# perftest TOOL [ARGUMENT...]: runs a program of perftest, 60 s at most: from rxe1 to rxe2 in one guest, or from guest 1 to guest
# 0, where only the client prints. The client's last row of figures is in RESULT afterwards, split into words.
perftest() {
    local server=rxe2 to=${RXE_ADDRESS[1]} listener status=0
    if [ "$GUESTS" = 2 ]; then
        server=rxe1 to=${RXE_ADDRESS[0]}
    fi
    RESULT=()
    perftests=$((${perftests:-0} + 1))
    if [ "$GUEST" = 0 ]; then
        timeout 60 "$@" -d "$server" -x "$(gid_index "$server")" >/tmp/server.log 2>&1 &
        listener=$!
        if ! within 20 listening 18515; then
            cat /tmp/server.log
            fail "$1 does not listen"
        fi
    fi
    barrier "perftest-$perftests"
    if [ "$GUEST" = $((GUESTS - 1)) ]; then
        timeout 60 "$@" -d rxe1 -x "$(gid_index rxe1)" "$to" >/tmp/client.log 2>&1 || status=$?
        if [ $status != 0 ]; then
            tail -n 5 /tmp/client.log
            fail "the client of $* ended with $status"
        fi
        read -ra RESULT < <(awk '/^ *[0-9]+ +[0-9]/ { row = $0 } END { print row }' /tmp/client.log)
        if [ ${#RESULT[@]} -lt 4 ]; then
            cat /tmp/client.log
            fail "$1 printed no figures"
        fi
        printf '%s: %s\n' "$*" "${RESULT[*]}"
    fi
    if [ "$GUEST" = 0 ]; then
        if ! wait "$listener"; then
            tail -n 5 /tmp/server.log
            fail "the server of $* failed"
        fi
    fi
}

# listening PORT: whether a process here listens on that TCP port.
listening() { [ -n "$(ss -Hltn "sport = :$1")" ]; }

# hugepages COUNT: that many of 2 MiB, mounted on /dev/hugepages.
hugepages() {
    local count=$1 folder=/sys/kernel/mm/hugepages/hugepages-2048kB
    echo "$count" >$folder/nr_hugepages
    [ "$(cat $folder/nr_hugepages)" = "$count" ] || fail "only $(cat $folder/nr_hugepages) of $count huge pages; start with more --memory"
    mountpoint -q /dev/hugepages || mount -t hugetlbfs hugetlbfs /dev/hugepages || fail "cannot mount /dev/hugepages"
}

# driver PCI: the driver that the device is bound to.
driver() { basename "$(readlink "/sys/bus/pci/devices/$1/driver")"; }

# iommu_group PCI: the number of the device's group.
iommu_group() { basename "$(readlink "/sys/bus/pci/devices/$1/iommu_group")"; }

# vfio PCI...: binds these devices to vfio-pci, behind the IOMMU of --iommu, and makes 256 huge pages if there are none.
vfio() {
    local pci device
    modprobe vfio-pci || fail "the kernel has no vfio-pci"
    mountpoint -q /dev/hugepages || hugepages 256
    for pci in "$@"; do
        device=/sys/bus/pci/devices/$pci
        [ -e "$device/iommu_group" ] || fail "$pci has no IOMMU: start with --iommu"
        if [ -e "$device/driver" ]; then
            echo "$pci" >"$device/driver/unbind"
        fi
        echo vfio-pci >"$device/driver_override"
        echo "$pci" >/sys/bus/pci/drivers_probe
        [ "$(driver "$pci")" = vfio-pci ] || fail "$pci is bound to $(driver "$pci"), not to vfio-pci"
        [ -c "/dev/vfio/$(iommu_group "$pci")" ] || fail "$pci has no /dev/vfio/$(iommu_group "$pci")"
    done
}
