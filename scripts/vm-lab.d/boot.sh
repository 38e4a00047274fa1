# Sourced by scripts/vm-lab: starts guests on emulated processors, follows their output, and ends them.

# Set by the options of `run`.
# Queue pairs of a NIC of kind virtio-rss.
RSS_QUEUES=4

guests=1 cables=() iommu='' memory=2048 cpus='' nodes=1 seconds=300 share='' command='' command_file='' bins=()

# The folder of this run and the processes in it, for `end_guests`.
job='' machines=() printers=()

# boot: runs $command_file, or else the text $command, in $guests guests; sets `status` to the result of `vm-lab run`.
boot() {
    local guest each
    job=$(mktemp -d "$lab/job.XXXXXX")
    mkdir -p "$job"/lab/bin "$job/meet" "$job/share"
    cp "$vm_lab_d/guest/session" "$vm_lab_d/guest/lib.sh" "$job/lab/"
    if [ -n "$command_file" ]; then
        cp "$command_file" "$job/lab/command"
    else
        printf '%s\n' "$command" >"$job/lab/command"
    fi
    # `build` removes images that were not used for long.
    touch "$image"
    for each in "${bins[@]}"; do
        cp -L --reflink=auto "$each" "$job/lab/bin/" || lab_failed "cannot copy $each"
    done
    chmod -R a+rX "$job/lab"
    machines=() printers=()
    for ((guest = 0; guest < guests; guest++)); do
        mkdir "$job/$guest"
        : >"$job/$guest/output"
        start_guest "$guest"
        print_output "$guest"
        if [ "$guest" = 0 ] && [ "$guests" = 2 ]; then
            await_cables
        fi
    done
    for each in "${machines[@]}"; do
        wait "$each" || true
    done
    for each in "${printers[@]}"; do
        wait "$each" || true
    done
    status=0
    for ((guest = 0; guest < guests; guest++)); do
        judge "$guest"
    done
    machines=() printers=()
    rm -rf "$job"
    job=''
}

# start_guest NUMBER: QEMU, within the time limit; it ends with this script in any case.
start_guest() {
    local guest=$1 kernel_arguments arguments nics=()
    name_nics "$guest"
    kernel_arguments="console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable nokaslr random.trust_cpu=on"
    # On a busy host an emulated processor may pause for longer than the kernel expects.
    kernel_arguments+=" no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
    kernel_arguments+=" GUEST=$guest GUESTS=$guests NICS=$(IFS=, && printf '%s' "${nics[*]}")"
    arguments=(
        -machine q35 -accel "tcg,thread=multi" -cpu max -m "$memory" -smp "${cpus:-$((guests == 2 ? 1 : 2))}"
        -nodefaults -no-user-config -no-reboot -display none -monitor none
        -kernel "$image/kernel" -initrd "$image/initrd"
        -chardev "file,id=console,path=console" -serial chardev:console
        -object "rng-random,id=random,filename=/dev/urandom" -device "virtio-rng-pci,rng=random"
        -drive "if=none,id=root,format=raw,readonly=on,file=${image//,/,,}/root" -device "virtio-blk-pci,drive=root"
        -device virtio-serial-pci
        -chardev "file,id=output,path=output" -device "virtserialport,chardev=output,nr=1"
        -chardev "file,id=status,path=status" -device "virtserialport,chardev=status,nr=2"
        -fsdev "local,id=lab,path=../lab,security_model=none,readonly=on" -device "virtio-9p-pci,fsdev=lab,mount_tag=lab"
        -fsdev "local,id=meet,path=../meet,security_model=none" -device "virtio-9p-pci,fsdev=meet,mount_tag=meet"
        -fsdev "local,id=share,path=${share:-../share},security_model=none,multidevs=remap"
        -device "virtio-9p-pci,fsdev=share,mount_tag=share"
    )
    if [ -n "$iommu" ]; then
        kernel_arguments+=" intel_iommu=on"
        # Before the devices whose addresses it translates; 48 bits of them, as a process has.
        arguments=(-device "intel-iommu,intremap=on,device-iotlb=on,aw-bits=48" "${arguments[@]}")
    fi
    arguments+=(-append "$kernel_arguments")
    plug_cables "$guest"
    split_nodes
    # Commands for QEMU's monitor, by name: see pull_cables.
    mkfifo "$job/$guest/monitor.in" "$job/$guest/monitor.out"
    arguments+=(-chardev "pipe,id=monitor,path=monitor" -mon chardev=monitor)
    # The subshell becomes the program, so that its process id is the program's.
    (
        cd "$job/$guest"
        exec setpriv --pdeathsig TERM timeout -k 5 "$seconds" qemu-system-x86_64 "${arguments[@]}" </dev/null >qemu.log 2>&1
    ) &
    machines+=($!)
    pull_cables "$guest" &
    printers+=($!)
}

# split_nodes: appends to the caller's `arguments` the guest's NUMA nodes, if there are several.
split_nodes() {
    local node processors=${cpus:-$((guests == 2 ? 1 : 2))}
    [ "$nodes" -gt 1 ] || return 0
    [ "$processors" -ge "$nodes" ] || lab_failed "$nodes NUMA nodes need --cpus $nodes or more"
    for ((node = 0; node < nodes; node++)); do
        arguments+=(
            -object "memory-backend-ram,id=node$node,size=$((memory / nodes))M"
            -numa "node,nodeid=$node,memdev=node$node,cpus=$((processors * node / nodes))-$((processors * (node + 1) / nodes - 1))"
        )
    done
}

# pull_cables GUEST: pulls the guest's end of a cable, and puts it back, as the guest asks for by files (see lib.sh), until its machine ends.
pull_cables() {
    local asked cable state machine=${machines[-1]}
    exec {monitor}<>"$job/$1/monitor.in" {answers}<>"$job/$1/monitor.out"
    while kill -0 "$machine" 2>/dev/null; do
        for asked in "$job"/meet/link-"$1"-*; do
            [ -e "$asked" ] || continue
            IFS=- read -r _ _ cable state <<<"${asked##*/}"
            printf 'set_link nic%s %s\n' "$cable$([ "$guests" = 1 ] && printf 0 || printf '%s' "$1")" "$state" >&"$monitor"
            rm -f "$asked"
        done
        # What QEMU answers must not fill the pipe.
        read -r -t 0.2 -N 4096 _ <&"$answers" || true
    done
}

# A cable KIND:KIND has two ends: NICs of one guest at 00:10.0 and 00:11.0, 00:12.0 and 00:13.0, ..., or one in each of two guests.

# name_nics GUEST: appends to the caller's `nics` the PCI addresses of that guest's NICs.
name_nics() {
    local cable end
    for ((cable = 0; cable < ${#cables[@]}; cable++)); do
        for end in 0 1; do
            if [ "$guests" = 1 ] || [ "$end" = "$1" ]; then
                nics+=("0000:00:$(nic_slot $cable $end).0")
            fi
        done
    done
}

# nic_slot CABLE END: the slot of that NIC on the PCI bus.
nic_slot() {
    printf '%x' $((guests == 1 ? 16 + 2 * $1 + $2 : 16 + $1))
}

# plug_cables GUEST: appends to the caller's `arguments` the guest's NICs and their cables.
plug_cables() {
    local cable end kind device wire more
    for ((cable = 0; cable < ${#cables[@]}; cable++)); do
        for end in 0 1; do
            [ "$guests" = 1 ] || [ "$end" = "$1" ] || continue
            more=''
            kind=$([ $end = 0 ] && printf '%s' "${cables[cable]%:*}" || printf '%s' "${cables[cable]#*:}")
            case $kind in
            virtio)
                device=virtio-net-pci,host_mtu=9000
                [ -z "$iommu" ] || device+=,disable-legacy=on,iommu_platform=on
                ;;
            virtio-rss)
                # Vectors: two for each queue pair, one for the control queue, one for changes.
                device=virtio-net-pci,host_mtu=9000,mq=on,rss=on,vectors=$((2 * RSS_QUEUES + 2))
                [ -z "$iommu" ] || device+=,disable-legacy=on,iommu_platform=on
                more=1
                ;;
            *) device=$kind ;;
            esac
            if [ -n "$more" ]; then
                wire=tap,ifname=rss$cable$end,queues=$RSS_QUEUES,script=no,downscript=no
            elif [ "$guests" = 1 ]; then
                wire=hubport,hubid=$cable
            else
                wire=stream,server=$([ "$1" = 0 ] && echo on || echo off),addr.type=unix,addr.path=../cable$cable
            fi
            arguments+=(
                -netdev "$wire,id=nic$cable$end"
                -device "$device,netdev=nic$cable$end,mac=52:54:00:00:0$cable:0$end,addr=0x$(nic_slot "$cable" "$end")"
            )
        done
    done
}

# has_rss CABLE: whether its NICs have several queues: QEMU gives them to TAP interfaces alone.
has_rss() { [[ ${cables[$1]} =~ ^virtio-rss(:virtio-rss)?$ ]]; }

# enter_namespace COMMAND...: lays cables of TAP interfaces and bridges in a network namespace of their own, and goes on with COMMAND there.
enter_namespace() {
    local cable lay='set -e; '
    for ((cable = 0; cable < ${#cables[@]}; cable++)); do
        has_rss $cable || continue
        lay+="ip link add wire$cable type bridge; ip link set wire$cable up; for end in rss${cable}0 rss${cable}1; do "
        lay+="ip tuntap add name \$end mode tap multi_queue vnet_hdr; ip link set \$end mtu 9000 master wire$cable up; done; "
    done
    # Without root in a user namespace, too.
    local own=(--net)
    [ "$(id -u)" = 0 ] || own+=(--map-root-user)
    exec unshare "${own[@]}" bash -c "$lay"'exec "$@"' vm-lab "$@"
}

# await_cables: until guest 0 listens on every cable, which is before it boots.
await_cables() {
    local cable tries
    for ((cable = 0; cable < ${#cables[@]}; cable++)); do
        ! has_rss $cable || continue
        for ((tries = 0; tries < 200; tries++)); do
            [ ! -S "$job/cable$cable" ] || continue 2
            sleep 0.1
        done
        lab_failed "guest 0 did not offer its end of cable $cable within 20 s: $(tail -n 3 "$job/0/qemu.log")"
    done
}

# print_output GUEST: prints its output as it arrives, until its machine ends.
print_output() {
    local prefix=
    if [ "$guests" = 2 ]; then
        prefix="[$1] "
    fi
    tail -s 0.2 -c +1 -f --pid="${machines[-1]}" "$job/$1/output" 2>/dev/null | sed -u "s/^/$prefix/" &
    printers+=($!)
}

# judge GUEST: sets `status` to the guest's, if that is not 0; reports a guest that never finished.
judge() {
    local its
    its=$(cat "$job/$1/status" 2>/dev/null || true)
    if [ -z "$its" ]; then
        {
            printf 'error: guest %s did not finish (time limit: %s s). The end of its console:\n' "$1" "$seconds"
            tail -n 40 "$job/$1/console" | tr -d '\r'
            tail -n 5 "$job/$1/qemu.log"
        } >&2 || true
        its=125
    fi
    if [ "$its" != 0 ] && [ "$status" != 125 ]; then
        status=$its
    fi
}

# end_guests: leaves no process and no folder of this run. QEMU gets SIGTERM first, and is killed by timeout 5 s later.
end_guests() {
    local each
    for each in "${machines[@]}"; do
        kill -TERM "$each" 2>/dev/null || true
        wait "$each" 2>/dev/null || true
    done
    for each in "${printers[@]}"; do
        wait "$each" 2>/dev/null || true
    done
    machines=() printers=()
    if [ -n "$job" ]; then
        rm -rf "$job"
    fi
}

# lab_failed WHY: reports a failure of the lab itself, not of the command in it.
lab_failed() {
    printf 'error: %s\n' "$*" >&2
    exit 125
}
