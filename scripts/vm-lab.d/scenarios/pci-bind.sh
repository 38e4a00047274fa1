# shows: an e1000 and a virtio NIC go from their kernel drivers to vfio-pci, an IOMMU group each, with huge pages
# options: --iommu --nic e1000:virtio
# slice: yes

kernel_drivers=
for nic in $NICS; do
    within 10 interface "$nic" || fail "the kernel drives no NIC at $nic"
    kernel_drivers+="$(driver "$nic") "
done
[ "$kernel_drivers" = "e1000 virtio-pci " ] || fail "the NICs' drivers are $kernel_drivers"
# shellcheck disable=SC2086 # addresses are words
vfio $NICS
groups=
for nic in $NICS; do
    group=$(iommu_group "$nic")
    members=$(ls "/sys/kernel/iommu_groups/$group/devices")
    [ "$members" = "$nic" ] || fail "IOMMU group $group has more than $nic in it: $members"
    echo "$nic: $(lspci -s "$nic" | cut -d ' ' -f 2-): $(driver "$nic"), /dev/vfio/$group"
    groups+="$group "
done
dmesg | grep -E 'DMAR: (IOMMU|Intel)' || fail "the kernel found no IOMMU"
shown "groups ${groups% }, $(awk '/HugePages_Total/ { print $2 }' /proc/meminfo) huge pages"
