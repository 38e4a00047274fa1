use super::device::are_far;

#[test]
fn cores_are_far_from_a_nic_where_none_is_of_its_node() {
    for (cores, near, expected) in [
        (&[0, 1][..], "0-3", false),
        (&[0, 1], "2-3,6-7", true),
        (&[0, 6], "2-3,6-7", false),
        // A node of memory alone, or a kernel without NUMA.
        (&[0], "", false),
        (&[], "0-3", false),
    ] {
        assert_eq!(are_far(cores, near), expected, "{cores:?} and {near}");
    }
}
