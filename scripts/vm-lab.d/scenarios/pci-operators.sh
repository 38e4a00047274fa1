# shows: scripts/bind-nic and scripts/hugepages on real devices: taken, given back, taken again; the default route is refused
# options: --iommu --nic e1000:virtio --share scripts --timeout 400
# slice: no
#
# The two NICs are the ends of one cable, so each can be reached from the other while the kernel has both.
read -r e1000 virtio <<<"$NICS"
modprobe -a e1000 virtio_net || fail "the kernel has no e1000 or virtio_net"
within 10 interface "$e1000" && within 10 interface "$virtio" || fail "the kernel did not bring both NICs up"

# expect STATUS COMMAND...: runs it, prints its output, and fails unless it ends with STATUS. The output stays in $said.
expect() {
    local wanted=$1 status=0
    shift
    said=$("$@" 2>&1) || status=$?
    printf '$ %s\n%s\n' "${*/#\/share/scripts}" "$said"
    [ "$status" = "$wanted" ] || fail "${*##*/} ended with $status, not with $wanted"
}

# says PATTERN: checks that a line of the last output matches.
says() { grep -qE -- "$1" <<<"$said" || fail "nothing like /$1/ was said"; }

# there COMMAND...: fails unless the command succeeds.
there() { "$@" || fail "not so: $*"; }

# on PCI DRIVER: whether the device has that driver.
on() { [ "$(driver "$1")" = "$2" ]; }

# bare PCI: whether the device has no override, so that the kernel chooses at the next probe.
bare() { [ "$(cat "/sys/bus/pci/devices/$1/driver_override")" = "(null)" ]; }

bind=/share/bind-nic pages=/share/hugepages
within 10 ip link set "$(interface "$e1000")" up && within 10 ip address add 198.51.100.1/24 dev "$(interface "$e1000")" ||
    fail "cannot bring the e1000 up"

expect 0 $bind list
says "^$e1000 .*82540EM.* drv=e1000 "
says "^$e1000 .* $(iommu_group "$e1000") +$(interface "$e1000") carries the routes 198\.51\.100\.0/24 198\.51\.100\.1$"
says "^$virtio +-?[0-9]+ +$(iommu_group "$virtio") *$"

# The refusal, without any change.
ip route add default via 198.51.100.254 dev "$(interface "$e1000")" || fail "no default route"
expect 3 $bind bind "$virtio" "$e1000"
says "$(interface "$e1000") carries the routes .*default"
there on "$e1000" e1000
there on "$virtio" virtio-pci
ip route del default
expect 3 $bind bind "$e1000"
says "carries the routes 198\.51\.100\.0/24 198\.51\.100\.1;"
ip address flush dev "$(interface "$e1000")" || fail "the address did not go"
ip link add name br0 type bridge && ip link set "$(interface "$virtio")" master br0 || fail "no bridge"
expect 3 $bind bind "$virtio"
says "is part of br0"
ip link delete br0
ip netns add other && ip link set "$(interface "$virtio")" netns other || fail "no network namespace"
expect 3 $bind bind "$virtio"
says "may be in another network namespace"
ip netns delete other
within 10 interface "$virtio" || fail "the interface did not come back from its namespace"

# Hugepages: reserved, too many, released, reserved again.
expect 0 $pages reserve 64
expect 0 $pages show
says '^0 +64 +2Mb +128Mb'
says '^node 0: 64 of 64 pages of 2 MiB are free'
expect 3 $pages reserve 100000
expect 0 $pages release
there test "$(cat /proc/sys/vm/nr_hugepages)" = 0
expect 0 $pages reserve 256 --node 0

# Both are bound; a second time; given back; bound again; by the other driver.
expect 0 $bind bind "$virtio" "$e1000"
says "^$e1000: e1000 -> vfio-pci, /dev/vfio/$(iommu_group "$e1000")$"
for nic in "$e1000" "$virtio"; do
    there test -c "/dev/vfio/$(iommu_group "$nic")"
    there test ! -e "/sys/bus/pci/devices/$nic/net"
done
expect 0 $bind list
says "^$e1000 .* drv=vfio-pci "
expect 0 $bind bind "$virtio" "$e1000"
says "^$virtio: on vfio-pci already"
# A process with the group open prevents a change.
exec 8<>"/dev/vfio/$(iommu_group "$e1000")"
expect 3 $bind unbind "$e1000"
says "in use by process .*$$"
exec 8>&-
expect 0 $bind unbind "$e1000" "$virtio"
there on "$e1000" e1000
there on "$virtio" virtio-pci
there bare "$e1000"
there bare "$virtio"
within 10 interface "$e1000" && within 10 interface "$virtio" || fail "the interfaces did not come back"
expect 0 $bind bind --driver uio_pci_generic "$e1000"
says ", /dev/uio0$"
there test -c /dev/uio0
expect 0 $bind unbind "$e1000"
there on "$e1000" e1000
expect 0 $bind bind "$e1000" "$virtio"
there on "$e1000" vfio-pci
there on "$virtio" vfio-pci

# A device that is no NIC, and a word that is no address.
expect 3 $bind bind 0000:00:00.0
says "no network controller"
expect 2 $bind bind eth0
shown "e1000 and virtio-net to vfio-pci and back twice, 256 pages; default route, address, bridge, namespace and open group refused"
