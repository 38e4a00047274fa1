//! An endpoint's counters, over all connections.

use crate::counters::counters;

counters! {
    /// An endpoint's counters. Every segment that is dropped before it reaches a connection is counted once, under the
    /// reason.
    pub struct Counters {
        /// Segments taken in.
        received,
        /// Connections opened by this side.
        active_opens,
        /// Connections opened by a peer: handshakes that were completed.
        passive_opens,
        /// Connections that ended, for any reason.
        ended,
        /// SYN that made a half-open connection.
        syn_received,
        /// SYN answered by a cookie.
        cookies_sent,
        /// Connections made from a cookie.
        cookies_accepted,
        /// Segments dropped: an acknowledgement of no cookie of ours, while cookies are out.
        cookies_refused,
        /// Segments dropped: the listener's accept queue is full.
        accept_queue_full,
        /// SYN dropped: the endpoint has all the connections it may.
        too_many,
        /// Segments dropped: a header that cannot be.
        malformed,
        /// Segments for which there is neither a connection nor a listener.
        no_connection,
        /// Segments answered by a reset, those of connections included.
        resets_sent,
        /// Answers left out because there were too many in the last second, or no room for them.
        answers_suppressed,
        /// Connections that went into TIME-WAIT.
        time_wait,
        /// Connections in TIME-WAIT that were replaced by a new one of the same pair.
        time_wait_reused,
        /// Connections in TIME-WAIT that went early because there were too many.
        time_wait_overflow,
        /// Connections that their users had closed and that were reset because there were too many, or to make room for
        /// other writers.
        orphans_ended,
        /// Answers and segments lost for want of a route.
        no_route,
    }
}
