# shellcheck shell=bash
# Sourced by scripts/bind-nic: what NICs there are, who uses them, and what speaks against taking them. Needs scripts/lib/sysfs.sh.

devices=$SYSFS/bus/pci/devices

# What routes and sessions need, by interface. Filled by `look`.
declare -A addresses_of=() is_default=()
ssh_interface=

# look: asks iproute2 for what sysfs does not know.
look() {
    local line name rest words word previous addresses routes
    command -v ip >/dev/null || die "$REFUSED" "no program 'ip', so nobody knows which interface must stay; install iproute2"
    # Not knowing is no reason to believe that nothing is there.
    addresses=$(ip -o addr show) && routes=$(ip -4 -o route show table all && ip -6 -o route show table all) ||
        die "$REFUSED" "'ip' fails, so nobody knows which interface must stay"
    while read -r _ name _ rest; do
        [ -n "$name" ] || continue
        word=${rest%% *}
        case $word in
        fe80:*) ;;
        *) addresses_of[$name]+="${addresses_of[$name]:+ }$word" ;;
        esac
    done <<<"$addresses"
    while IFS= read -r line; do
        read -ra words <<<"$line"
        # Two halves of everything are a default route too: so do tunnels set theirs.
        case ${words[0]:-} in
        default | 0.0.0.0/1 | 128.0.0.0/1 | ::/1 | 8000::/1) ;;
        *) continue ;;
        esac
        previous=
        for word in "${words[@]}"; do
            if [ "$previous" = dev ]; then
                is_default[$word]=1
            fi
            previous=$word
        done
    done <<<"$routes"
    ssh_interface=$(interface_of_session)
}

# session: what SSH_CONNECTION says here or, as sudo removes it, in a process above this one.
session() {
    if [ -n "${SSH_CONNECTION+set}" ]; then
        printf '%s' "$SSH_CONNECTION"
        return
    fi
    local pid=$$ entry
    while [ "$pid" -gt 1 ]; do
        while IFS= read -r -d '' entry; do
            case $entry in
            SSH_CONNECTION=*)
                printf '%s' "${entry#*=}"
                return
                ;;
            esac
        done 2>/dev/null <"/proc/$pid/environ" || true
        pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null || true)
        pid=${pid:-0}
    done
}

# interface_of_session: the one that this SSH session comes in by, or nothing.
interface_of_session() {
    local client server name address
    read -r client _ server _ <<<"$(session)" || true
    [ -n "$server" ] || return 0
    for name in "${!addresses_of[@]}"; do
        for address in ${addresses_of[$name]}; do
            if [ "${address%/*}" = "${server%%%*}" ]; then
                printf '%s' "$name"
                return
            fi
        done
    done
    ip -o route get "${client%%%*}" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p' || true
}

# interfaces ADDRESS: the kernel's interfaces on it; those of virtio sit one level lower.
interfaces() {
    local path
    for path in "$devices/$1/net/"* "$devices/$1"/virtio*/net/*; do
        if [ -e "$path" ]; then
            printf '%s\n' "${path##*/}"
        fi
    done
}

# above INTERFACE: those that are built on it (bond, bridge, VLAN, ...), and on these in turn.
above() {
    local path name
    for path in "$SYSFS/class/net/$1/upper_"*; do
        [ -e "$path" ] || [ -L "$path" ] || continue
        name=${path##*/upper_}
        printf '%s\n' "$name"
        above "$name"
    done
}

driver_of() { name_of_link "$devices/$1/driver"; }

group_of() { name_of_link "$devices/$1/iommu_group"; }

class_of() { attribute "$devices/$1/class"; }

id_of() {
    local vendor device
    vendor=$(attribute "$devices/$1/vendor") device=$(attribute "$devices/$1/device")
    printf '%s:%s' "${vendor#0x}" "${device#0x}"
}

# is_network ADDRESS: PCI class 0x02 (PCI Code and ID Assignment, section 1.3).
is_network() { [[ $(class_of "$1") == 0x02* ]]; }

# bifurcated ADDRESS: the kernel's driver with which user space shares it, or nothing.
bifurcated() {
    case $(driver_of "$1") in
    mlx4_core) echo mlx4_core && return ;;
    mlx5_core) echo mlx5_core && return ;;
    esac
    case $(id_of "$1") in
    # ConnectX-3 and older.
    15b3:100[0-9a-f] | 15b3:63* | 15b3:67*) echo mlx4_core ;;
    15b3:*) echo mlx5_core ;;
    esac
}

# companions ADDRESS: the other devices of its IOMMU group that somebody must take with it: no bridges.
companions() {
    local path name
    for path in "$devices/$1/iommu_group/devices/"*; do
        [ -e "$path" ] || [ -L "$path" ] || continue
        name=${path##*/}
        if [ "$name" != "$1" ] && [[ $(class_of "$name") != 0x06* ]]; then
            printf '%s\n' "$name"
        fi
    done
}

# in_use ADDRESS: what would be lost by taking it, a reason a line.
in_use() {
    local interface name found='' functions
    functions=$(attribute "$devices/$1/sriov_numvfs")
    if [ "${functions:-0}" != 0 ]; then
        echo "it has $functions virtual functions, which would go with its driver"
    fi
    for interface in $(interfaces "$1"); do
        found=1
        for name in "$interface" $(above "$interface" | sort -u); do
            local what=$name
            [ "$name" = "$interface" ] || what="$name, on $interface,"
            if [ -n "${is_default[$name]:-}" ]; then
                echo "$what carries the default route"
            fi
            if [ "$name" = "$ssh_interface" ]; then
                echo "$what carries this SSH session"
            fi
            if [ "$name" != "$interface" ]; then
                echo "$interface is part of $name"
            fi
        done
    done
    if [ -z "$found" ]; then
        case $(driver_of "$1") in
        '' | vfio-pci | uio_pci_generic | igb_uio) ;;
        *) echo "its interface is not in sight; it may be in another network namespace (a container's)" ;;
        esac
    fi
}

# why_not_ever ADDRESS: why no flag helps, a reason a line.
why_not_ever() {
    local kernel_driver
    if ! is_network "$1"; then
        echo "no network controller (class $(class_of "$1"))"
        return
    fi
    kernel_driver=$(bifurcated "$1")
    if [ -n "$kernel_driver" ]; then
        echo "bifurcated: leave on $kernel_driver, beside which DPDK and RDMA use it"
    fi
}

# list_addresses: network devices, those of one IOMMU group together, otherwise by address.
list_addresses() {
    local path address group
    for path in "$devices"/*; do
        address=${path##*/}
        if [ -e "$path" ] && is_network "$address"; then
            group=$(group_of "$address")
            # A group stands where its first device does.
            printf '%s %s\n' "$(first_of_group "$address" "$group")" "$address"
        fi
    done | sort | cut -d ' ' -f 2
}

first_of_group() {
    local path
    if [ -n "$2" ]; then
        for path in "$devices/$1/iommu_group/devices/"*; do
            if is_network "${path##*/}"; then
                printf '%s' "${path##*/}"
                return
            fi
        done
    fi
    printf '%s' "$1"
}

# link_of INTERFACE: up, down, or whatever else the kernel calls it.
link_of() { attribute "$SYSFS/class/net/$1/operstate"; }

# list FORMAT: json, or a table with tabs between its columns.
list() {
    local json=
    [ "$1" != json ] || json=1
    local address interface group numa name note notes=() names=() ips=() links=() mates=() rdma=() reasons=() path
    if [ "$json" != 1 ]; then
        printf 'ADDRESS\tID\tDRIVER\tINTERFACE\tLINK\tADDRESSES\tNUMA\tGROUP\tNOTES\n'
    fi
    for address in $(list_addresses); do
        mapfile -t names < <(interfaces "$address")
        mapfile -t mates < <(companions "$address")
        mapfile -t notes < <(in_use "$address")
        mapfile -t reasons < <(why_not_ever "$address")
        ips=() links=() rdma=()
        for interface in "${names[@]}"; do
            links+=("$(link_of "$interface")")
            read -ra path <<<"${addresses_of[$interface]:-}"
            ips+=("${path[@]}")
        done
        for path in "$devices/$address/infiniband/"*; do
            [ ! -e "$path" ] || rdma+=("${path##*/}")
        done
        group=$(group_of "$address")
        numa=$(attribute "$devices/$address/numa_node")
        # Firmware that says nothing is shown as -1.
        [ "$numa" != -1 ] || numa=
        name=
        if command -v lspci >/dev/null; then
            name=$(lspci -D -s "$address" 2>/dev/null || true)
            name=${name#*: }
        fi
        if [ "$json" = 1 ]; then
            printf '{"address":"%s","id":"%s","name":%s,"driver":%s,"interfaces":%s,"links":%s,"addresses":%s,' "$address" \
                "$(id_of "$address")" "$(json_string "$name")" "$(json_string "$(driver_of "$address")")" \
                "$(json_strings "${names[@]}")" "$(json_strings "${links[@]}")" "$(json_strings "${ips[@]}")"
            printf '"numa_node":%s,"iommu_group":%s,"group_companions":%s,"rdma_devices":%s,"default_route":%s,"refusals":%s}\n' \
                "$(json_number "$numa")" "$(json_number "$group")" "$(json_strings "${mates[@]}")" \
                "$(json_strings "${rdma[@]}")" "$(has_default_route "${names[@]}")" \
                "$(json_strings "${reasons[@]}" "${notes[@]}")"
            continue
        fi
        notes=("${reasons[@]}" "${notes[@]}")
        [ ${#rdma[@]} -eq 0 ] || notes+=("RDMA ${rdma[*]}")
        [ ${#mates[@]} -eq 0 ] || notes+=("goes with ${mates[*]}")
        [ -z "$name" ] || notes+=("$name")
        note=
        for path in "${notes[@]}"; do
            note+="${note:+; }$path"
        done
        printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$address" "$(id_of "$address")" "$(or_dash "$(driver_of "$address")")" \
            "$(or_dash "${names[*]}")" "$(or_dash "${links[*]}")" "$(or_dash "${ips[*]}")" "$(or_dash "$numa")" \
            "$(or_dash "$group")" "$note"
    done
}

or_dash() { printf '%s' "${1:--}"; }

# has_default_route INTERFACE...: true or false.
has_default_route() {
    local interface name
    for interface in "$@"; do
        for name in "$interface" $(above "$interface"); do
            if [ -n "${is_default[$name]:-}" ]; then
                echo true
                return
            fi
        done
    done
    echo false
}

# align: columns from fields with tabs between them. `column` is not on every host.
align() {
    awk -F '\t' '
        { fields[NR] = NF; for (i = 1; i <= NF; i++) { cell[NR, i] = $i; if (i < NF && length($i) > width[i]) width[i] = length($i) } }
        END { for (row = 1; row <= NR; row++) { line = ""
            for (i = 1; i < fields[row]; i++) line = line sprintf("%-" width[i] "s  ", cell[row, i])
            line = line cell[row, fields[row]]; sub(/ +$/, "", line); print line } }'
}
