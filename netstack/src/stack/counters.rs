//! Why frames were dropped: one counter a reason.

use crate::counters::counters;

counters! {
    /// Frames, as the protocols of a stack count them. Every frame that is dropped is counted once, under the reason.
    pub struct Counters {
        /// RUD datagrams handed to the endpoint.
        rx_rud,
        /// UDP datagrams queued at a socket.
        rx_udp,
        /// ARP packets understood.
        rx_arp,
        /// Echo requests answered.
        rx_echo_requests,
        /// Echo replies received.
        rx_echo_replies,
        /// Dropped: no whole Ethernet header or VLAN tag.
        rx_ethernet_truncated,
        /// Dropped: for another station.
        rx_other_station,
        /// Dropped: of another virtual LAN, or not tagged where it should be.
        rx_other_vlan,
        /// Dropped: neither IP nor ARP.
        rx_unknown_ethertype,
        /// Dropped: not an ARP packet for IPv4 over Ethernet.
        rx_arp_malformed,
        /// Dropped: a station claims our address, or that of a configured neighbour.
        rx_arp_conflict,
        /// Dropped: an IPv4 header that cannot be.
        rx_ipv4_malformed,
        /// Dropped: the IPv4 header checksum is wrong.
        rx_ipv4_checksum,
        /// Dropped: for another address.
        rx_ipv4_other_host,
        /// Dropped: from an address that no host can have.
        rx_ipv4_bad_source,
        /// Dropped: an IPv6 header that cannot be, or an extension header that is cut off.
        rx_ipv6_malformed,
        /// Dropped: an extension header demands it, or has an unknown part.
        rx_ipv6_extension,
        /// Dropped: for another address, or for a group that we do not listen to.
        rx_ipv6_other_host,
        /// Dropped: from an address that no host can have.
        rx_ipv6_bad_source,
        /// Dropped: TCP or UDP for a group, or from nowhere.
        rx_ipv6_group,
        /// Fragments kept until their datagram is whole.
        rx_fragments,
        /// Datagrams put together from fragments: each counts again under its protocol.
        rx_reassembled,
        /// Dropped: a fragment that overlaps another one, or belongs to one that did.
        rx_fragment_overlap,
        /// Dropped: a fragment with a length or an offset that cannot be.
        rx_fragment_malformed,
        /// Datagrams dropped because not all of their fragments came in time.
        rx_fragment_timeout,
        /// Datagrams dropped, incomplete, because newer fragments needed the room.
        rx_fragment_evicted,
        /// Dropped: TCP or UDP put together from fragments that the device should have given to another shard.
        rx_other_shard,
        /// Dropped: neither ICMP, TCP nor UDP.
        rx_unknown_protocol,
        /// Neighbour solicitations and advertisements understood.
        rx_neighbour,
        /// Dropped: a neighbour message that crossed a router.
        rx_neighbour_forged,
        /// Neighbour messages of a station that claims our address, or that of a configured neighbour.
        rx_neighbour_conflict,
        /// TCP segments handed to the endpoint.
        rx_tcp,
        /// Dropped: a TCP header that cannot be.
        rx_tcp_malformed,
        /// Dropped: the TCP checksum is wrong.
        rx_tcp_checksum,
        /// Dropped: an ICMP message of a kind that is not read, or that cannot be.
        rx_icmp_unsupported,
        /// ICMP errors handed to the protocol whose packet they are about.
        rx_icmp_errors,
        /// Dropped: an ICMP error about a packet that is not ours, or of no interest to any protocol.
        rx_icmp_ignored,
        /// Dropped: the ICMP checksum is wrong.
        rx_icmp_checksum,
        /// Dropped: the user does not take the echo replies.
        rx_echo_queue_full,
        /// Dropped: a UDP header that cannot be.
        rx_udp_malformed,
        /// Dropped: the UDP checksum is wrong.
        rx_udp_checksum,
        /// Dropped: no socket is bound to the port.
        rx_udp_no_socket,
        /// Dropped: the socket's queue is full.
        rx_udp_queue_full,
        /// RUD datagrams handed to a device's batch.
        tx_rud,
        /// ICMP errors sent.
        tx_icmp_errors,
        /// Not sent: ICMP errors above the rate.
        tx_icmp_limited,
        /// TCP segments, or super-segments, handed to a device's batch.
        tx_tcp,
        /// Packets held back until their neighbour's address is known.
        tx_held,
        /// Dropped: no route to the destination, or not a unicast address.
        tx_no_route,
        /// Dropped: the next hop does not answer.
        tx_unreachable,
        /// Dropped: the next hop is not known, and too many are being resolved already.
        tx_neighbour_limited,
        /// Dropped: longer than the port's MTU, or with headers that are too long.
        tx_too_long,
        /// Dropped: an answer of the stack's own found no room in the batch.
        tx_full,
        /// Dropped: held back, and the queue overflowed.
        tx_held_overflow,
        /// Times that a port's link went down after it was up.
        link_losses,
    }
}
