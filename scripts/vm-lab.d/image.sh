# Sourced by scripts/vm-lab: builds what guests boot. Needs root for nothing but the installation of packages.
#
# An image is a folder of three files: `kernel` (Debian's, unchanged), `initrd` (busybox, guest/init and the modules that it
# takes to mount the root) and `root` (a squashfs of unpacked Debian packages; no package's scripts are run). Its name holds a
# digest of what it is made from, it appears by a rename when it is complete, and guests only read it: so any number of guests
# share one, and a new one may be built meanwhile.

# Debian's release in the guest: that of the hosts that build the binaries which the guest runs.
guest_release=bookworm

guest_packages=(
    base-files libc-bin bash dash coreutils util-linux mount hostname mawk grep sed findutils diffutils busybox-static kmod procps
    iproute2 iputils-ping ethtool pciutils tcpdump
    # Depends on the newest kernel that apt offers: the full one, for the cloud's has neither rdma_rxe nor 9p.
    linux-image-amd64
    rdma-core ibverbs-utils ibverbs-providers perftest rdmacm-utils
    # What binaries with DPDK and verbs in them link: shouter.pc and ldd name them.
    libnuma1 libfdt1 libbsd0 libmd0 libpcap0.8 libdbus-1-3 libelf1 libjansson4 libxdp1 libbpf1 libarchive13 zlib1g libssl3
    libgcc-s1 libstdc++6 libibverbs1 librdmacm1
    # What scripts/bind-nic and scripts/hugepages call: dpdk-devbind.py, which wants `which`, and dpdk-hugepages.py. With python3.
    dpdk debianutils
)

# What mounts the root and reports: see guest/init.
boot_modules=(virtio_pci virtio_blk squashfs overlay virtio_console 9pnet_virtio 9p virtio_rng)

# Folders of the kernel's modules that no scenario needs; half of the image otherwise.
unneeded_modules=(sound drivers/{ata,bluetooth,char/ipmi,firewire,gpu,hid,iio,input,isdn,md,media,mfd,mmc,mtd,nfc,nvme,platform}
    drivers/{power,scsi,staging,target,usb,video} drivers/net/{usb,wireless,wwan} fs/{btrfs,ceph,ocfs2,xfs})

# image_digest: names the image that this checkout asks for.
image_digest() {
    cat "$vm_lab_d/image.sh" "$vm_lab_d/guest/init" | sha256sum | cut -c 1-12
}

# build_image [again]: sets `image` to the image's folder, and builds it where it is missing or `again` is given.
build_image() {
    local digest held began=$SECONDS
    digest=$(image_digest)
    image=$lab/image-$digest
    if [ -d "$image" ] && [ -z "${1:-}" ]; then
        return
    fi
    install_packages "to build the guest" "${PACKAGES_VM_LAB[@]}"
    mkdir -p "$lab"
    exec {held}>"$lab/lock"
    flock -w 900 "$held" || fail "another build holds $lab/lock for 15 minutes; wait for it, or end it"
    if [ ! -d "$image" ] || [ -n "${1:-}" ]; then
        say "building the guest in $image"
        new_image=$(mktemp -d "$lab/new.XXXXXX")
        unpack_root "$new_image/unpacked"
        pack_image "$new_image" "$new_image/unpacked"
        rm -rf "$new_image/unpacked" "$image"
        # What other versions of these files made, and what was killed, if it is a day old.
        find "$lab" -maxdepth 1 \( -name 'image-*' -o -name 'job.*' -o -name 'new.*' \) -mmin +1440 -exec rm -rf {} +
        chmod 755 "$new_image"
        mv "$new_image" "$image"
        new_image=''
        say "built in $((SECONDS - began)) s: Linux $(cat "$image/version"), $(du -sm "$image" | cut -f 1) MB"
    fi
    exec {held}>&-
}

# unpack_root FOLDER: Debian's packages, unpacked, with /usr merged as Debian has it.
unpack_root() {
    local each
    mkdir -p "$1"/usr/{bin,sbin,lib,lib64}
    for each in bin sbin lib lib64; do
        ln -s "usr/$each" "$1/$each"
    done
    # Nothing of theirs is run, which is what the check of that mode fears when root uses it.
    mmdebstrap --quiet --mode=chrootless --skip=check/chrootless --variant=extract --format=tar --include="$(IFS=, && printf '%s' "${guest_packages[*]}")" "$guest_release" - |
        tar -x -C "$1" --no-same-owner --keep-directory-symlink --exclude=./dev --exclude='./boot/System.map*' \
            --exclude=./usr/share/{doc,man,info,locale,perl,bash-completion}
    mkdir -p "$1"/{dev,proc,sys,run,tmp,lab,meet,share} "$1/etc"
    printf '%s\n' 'root:x:0:0:root:/root:/bin/bash' 'tcpdump:x:100:100::/:/bin/false' >"$1/etc/passwd"
    printf '%s\n' 'root:x:0:' 'tcpdump:x:100:' >"$1/etc/group"
    printf '127.0.0.1 localhost\n' >"$1/etc/hosts"
    # What Debian's alternatives would link.
    ln -sf mawk "$1/usr/bin/awk"
    ln -sf which.debianutils "$1/usr/bin/which"
}

# pack_image IMAGE UNPACKED: moves the kernel out, and packs the initramfs and the root.
pack_image() {
    local kernels version modules initrd=$1/initramfs each number=10
    kernels=("$2"/boot/vmlinuz-6.1.*-amd64)
    [ -f "${kernels[-1]}" ] || fail "apt offers no linux-image-6.1.*-amd64 for $guest_release; see \`apt-cache policy linux-image-amd64\`"
    mv "${kernels[-1]}" "$1/kernel"
    version=${kernels[-1]##*/vmlinuz-}
    printf '%s\n' "$version" >"$1/version"
    modules=$2/usr/lib/modules/$version
    for each in "${unneeded_modules[@]}"; do
        rm -rf "${modules:?}/kernel/$each"
    done
    /sbin/depmod -b "$2" "$version"

    mkdir -p "$initrd"/{bin,dev,proc,sys,image,changes,root,modules}
    cp "$2/bin/busybox" "$initrd/bin/busybox"
    cp "$vm_lab_d/guest/init" "$initrd/init"
    chmod 755 "$initrd/init"
    # In the order in which they must be loaded, which their names keep.
    for each in $(/sbin/modprobe -d "$2" -S "$version" --show-depends -a "${boot_modules[@]}" | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'); do
        cp "$each" "$initrd/modules/$number-${each##*/}"
        number=$((number + 1))
    done
    (cd "$initrd" && find . -print0 | cpio --quiet --null -o -H newc -R 0:0 | gzip -1) >"$1/initrd"
    rm -rf "$initrd"
    # lz4: emulated processors unpack it fastest.
    mksquashfs "$2" "$1/root" -quiet -no-progress -all-root -comp lz4 >/dev/null
}
