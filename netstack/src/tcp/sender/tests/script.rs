//! One connection, step by step: the segments that leave in answer to each input.

use std::sync::Mutex;

use super::super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cc::{AckSample, Congestion, Controller};
use crate::region::Region;
use crate::wire::tcp::{SackBlocks, SeqRange};

const MSS: u32 = 1000;
const RTT: Duration = Duration::from_millis(100);

/// The calls that the controller got.
#[derive(Debug, Default)]
struct ControllerCalls {
    congestion: Vec<Congestion>,
    undone: u32,
    ended: u32,
    idle: u32,
    samples: Vec<AckSample>,
    mss: Vec<u32>,
}

/// A window that halves at most, so that tests can count.
#[derive(Debug)]
struct Fixed {
    window: u64,
    threshold: u64,
    rate: Option<u64>,
    calls: Arc<Mutex<ControllerCalls>>,
}

impl Controller for Fixed {
    fn window(&self) -> u64 {
        self.window
    }
    fn slow_start_threshold(&self) -> u64 {
        self.threshold
    }
    fn pacing_rate(&self) -> Option<u64> {
        self.rate
    }
    fn uses_rate(&self) -> bool {
        true
    }
    fn set_mss(&mut self, mss: u32) {
        self.calls.lock().unwrap().mss.push(mss);
    }
    fn on_sent(&mut self, _: Instant, _: u64, _: u64, _: bool) {}
    fn on_ack(&mut self, sample: &AckSample) {
        self.calls.lock().unwrap().samples.push(*sample);
        if self.window < self.threshold {
            self.window += sample.acked;
        }
    }
    fn on_congestion(&mut self, _: Instant, kind: Congestion, in_flight: u64) {
        self.calls.lock().unwrap().congestion.push(kind);
        self.threshold = (in_flight / 2).max(2 * u64::from(MSS));
        self.window = if kind == Congestion::Timeout { u64::from(MSS) } else { self.threshold };
    }
    fn on_recovery_end(&mut self, _: Instant) {
        self.calls.lock().unwrap().ended += 1;
    }
    fn undo(&mut self, _: Instant) {
        self.calls.lock().unwrap().undone += 1;
        self.window = 100_000;
        self.threshold = u64::MAX;
    }
    fn on_idle_restart(&mut self, _: Instant, _: Duration, _: Duration) {
        self.calls.lock().unwrap().idle += 1;
    }
}

struct Script {
    now: Instant,
    sender: Sender,
    memory: Memory,
    released: Vec<ReleaseToken>,
    calls: Arc<Mutex<ControllerCalls>>,
    window: u32,
    path: Path,
    /// The timestamp that the next segment carries.
    clock: u32,
    peer_seq: SeqNumber,
    /// Acknowledgements that were expected are worked in like all others.
    long_way: bool,
}

/// A segment that left: position, length, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    at: u32,
    len: u32,
    fin: bool,
    resend: bool,
    probe: Probe,
}

const ISS: SeqNumber = SeqNumber(u32::MAX - 2_500);

fn options() -> Options {
    Options { mtu_probing: false, ..Options::internet() }
}

impl Script {
    fn new() -> Self {
        Self::with(options(), 100_000, None)
    }

    fn with(options: Options, congestion_window: u64, rate: Option<u64>) -> Self {
        let calls = Arc::new(Mutex::new(ControllerCalls::default()));
        let mut sender = Sender::new(ISS, Arc::new(options));
        let controller =
            Fixed { window: congestion_window, threshold: u64::MAX, rate, calls: Arc::clone(&calls) };
        let now = Instant::from_nanos(5_000_000_000);
        let negotiated = SenderOptions { mss: MSS as u16, overhead: 52, sack: true, ecn: true };
        sender.begin(now, &negotiated, 100_000, SeqNumber(1), 10);
        sender.control.replace(Box::new(controller));
        sender.rtt.sample(RTT, sender.una(), sender.nxt());
        Self {
            now,
            sender,
            memory: Memory::new(usize::MAX),
            released: Vec::new(),
            calls,
            window: 100_000,
            path: Path { mtu: 1500, max_payload: MSS, max_extents: 16, max_segments: u32::MAX },
            clock: 0,
            peer_seq: SeqNumber(1),
            long_way: false,
        }
    }

    fn seq(at: u32) -> SeqNumber {
        ISS + 1 + at
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        assert_ne!(self.sender.on_timer(self.now), TimerOut::GiveUp);
    }

    /// To the next deadline.
    fn wait_timer(&mut self) -> (Duration, TimerOut) {
        let at = self.sender.next_deadline().expect("a timer runs");
        let waited = at - self.now;
        self.now = self.now.max(at);
        (waited, self.sender.on_timer(self.now))
    }

    fn write(&mut self, len: u32) {
        assert_eq!(self.sender.write(&mut self.memory, &vec![7; len as usize]), len as usize);
    }

    /// One segment, if one leaves.
    fn step(&mut self) -> Option<Outgoing> {
        let wants = self.sender.wants_transmit(self.now);
        let out = self.sender.next(self.now, &self.path);
        assert!(wants || out.is_none(), "wants_transmit missed {out:?}");
        let out = out?;
        self.sender.on_sent(self.now, &out, Some(self.clock));
        self.sender.board.check();
        Some(out)
    }

    fn left(out: Outgoing) -> Left {
        let at = out.seq.distance(Self::seq(0));
        Left { at, len: out.len, fin: out.fin, resend: out.resend, probe: out.probe }
    }

    /// Everything that leaves now.
    fn flush(&mut self) -> Vec<Left> {
        core::iter::from_fn(|| self.step()).map(Self::left).collect()
    }

    fn blocks(blocks: &[(u32, u32)]) -> SackBlocks {
        let mut sack = SackBlocks::NONE;
        for (start, end) in blocks {
            sack.push(SeqRange { start: Self::seq(*start), end: Self::seq(*end) });
        }
        sack
    }

    fn ack_with(&mut self, at: u32, change: impl FnOnce(&mut AckIn)) -> AckOut {
        let mut ack = AckIn {
            ack: Self::seq(at),
            seq: self.peer_seq,
            window: self.window,
            sack: SackBlocks::NONE,
            rtt: None,
            echo: None,
            ece: false,
            has_data: false,
        };
        change(&mut ack);
        let out = match self.long_way {
            true => self.sender.on_any_ack(self.now, &ack, &mut self.memory, &mut self.released),
            false => self.sender.on_ack(self.now, &ack, &mut self.memory, &mut self.released),
        };
        self.sender.board.check();
        out
    }

    fn ack(&mut self, at: u32) -> AckOut {
        self.ack_with(at, |_| {})
    }

    fn sack(&mut self, at: u32, blocks: &[(u32, u32)]) -> AckOut {
        self.ack_with(at, |ack| ack.sack = Self::blocks(blocks))
    }

    /// Nothing is left to do but to give memory back.
    fn is_idle(&mut self) {
        assert_eq!(self.wait_timer(), (Duration::from_secs(1), TimerOut::None));
        assert_eq!(self.sender.next_deadline(), None);
        assert_eq!(self.sender.board.capacity(), 0);
        assert_eq!(self.sender.queue.capacity(), 0);
    }

    fn congestion(&self) -> Vec<Congestion> {
        self.calls.lock().unwrap().congestion.clone()
    }

    fn undone(&self) -> u32 {
        self.calls.lock().unwrap().undone
    }
}

fn new(at: u32, len: u32) -> Left {
    Left { at, len, fin: false, resend: false, probe: Probe::None }
}

fn again(at: u32, len: u32) -> Left {
    Left { resend: true, ..new(at, len) }
}

#[test]
fn an_idle_sender_is_small() {
    let size = size_of::<Sender>();
    assert!(size <= 512, "{size} bytes");
}

#[test]
fn whole_segments_and_then_the_rest() {
    let mut s = Script::new();
    s.write(2500);
    assert_eq!(s.flush(), [new(0, 1000), new(1000, 1000), new(2000, 500)]);
    assert_eq!(s.ack(2500), AckOut { acked: 2500, fin_acked: false, became_writable: false, progress: true });
    assert!(s.sender.is_empty());
    s.is_idle();
}

#[test]
fn super_segments_are_whole_and_within_half_the_window() {
    let mut s = Script::with(options(), 20_000, None);
    s.path.max_payload = 65_000;
    s.write(50_500);
    assert_eq!(s.flush(), [new(0, 10_000), new(10_000, 10_000)]);
    // One acknowledged segment lets one leave.
    s.wait(RTT);
    s.ack(1000);
    assert_eq!(s.flush(), [new(20_000, 2000)]);
}

#[test]
fn a_super_segment_of_which_a_part_is_lost_is_repaired_in_part() {
    let mut s = Script::with(options(), 1_000_000, None);
    s.path.max_payload = 65_000;
    s.write(10_000);
    assert_eq!(s.flush(), [new(0, 10_000)]);
    s.wait(RTT);
    assert_eq!(s.sack(3000, &[(4000, 10_000)]).acked, 3000);
    assert_eq!(s.flush(), [again(3000, 1000)]);
    assert_eq!(s.congestion(), [Congestion::Loss]);
    s.wait(RTT);
    s.ack(10_000);
    assert!(s.sender.is_empty());
}

#[test]
fn blocks_that_cut_segments_do_not_make_records_smaller() {
    let mut s = Script::new();
    s.path.max_payload = 65_000;
    s.write(10_000);
    s.flush();
    for at in (1..9_999).step_by(2) {
        s.sack(0, &[(at, at + 1)]);
    }
    assert_eq!(s.sender.board.records().count(), 1);
    // Blocks that grow to whole segments count in the end.
    s.sack(0, &[(1500, 2500)]);
    s.sack(0, &[(1500, 4500)]);
    s.sack(0, &[(1000, 5000)]);
    assert_eq!(s.sender.board.sacked(), 4000);
}

#[test]
fn a_closed_window_whose_probes_nobody_answers_is_given_up() {
    let mut s = Script::new();
    s.window = 0;
    s.ack(0);
    s.write(100);
    s.flush();
    let start = s.now;
    while s.wait_timer().1 != TimerOut::GiveUp {
        s.flush();
        assert!(s.now - start < Duration::from_secs(3600));
    }
    assert!(s.now - start >= Duration::from_secs(100));
}

#[test]
fn a_probe_whose_byte_is_taken_moves_on() {
    let mut s = Script::new();
    s.window = 0;
    s.ack(0);
    s.write(100);
    s.flush();
    let _ = s.wait_timer();
    assert_eq!(s.flush().len(), 1);
    assert_eq!(s.sender.max_sent(), Script::seq(1));
    assert_eq!(s.ack(1).acked, 1);
    assert_eq!(s.sender.nxt(), Script::seq(1));
    s.window = 1000;
    s.ack(1);
    assert_eq!(s.flush(), [new(1, 99)]);
}

#[test]
fn a_fin_before_a_closed_window_is_probed_with() {
    let mut s = Script::new();
    s.write(1000);
    s.window = 1000;
    s.ack(0);
    s.sender.finish();
    assert_eq!(s.flush(), [new(0, 1000)]);
    s.window = 0;
    s.ack(1000);
    assert_eq!(s.flush(), []);
    let _ = s.wait_timer();
    assert_eq!(s.flush(), [Left { fin: true, probe: Probe::Window, ..new(1000, 0) }]);
    assert!(s.ack(1001).fin_acked);
    assert!(s.sender.is_empty());
}

#[test]
fn the_last_byte_before_a_closed_window_is_probed_with_alone() {
    let mut s = Script::new();
    s.write(1001);
    s.window = 1000;
    s.ack(0);
    s.sender.finish();
    assert_eq!(s.flush(), [new(0, 1000)]);
    s.window = 0;
    s.ack(1000);
    assert_eq!(s.flush(), []);
    let _ = s.wait_timer();
    assert_eq!(s.flush(), [Left { probe: Probe::Window, ..new(1000, 1) }]);
    assert_eq!(s.sender.max_sent(), Script::seq(1001));
    s.window = 1000;
    assert_eq!(s.ack(1001).acked, 1);
    assert_eq!(s.flush(), [Left { fin: true, ..new(1001, 0) }]);
    assert!(s.ack(1002).fin_acked);
}

#[test]
fn tiny_segments_do_not_make_a_super_segment_of_more_than_the_port_takes() {
    let mut s = Script::new();
    s.path = Path { max_payload: 65_000, max_segments: 3, ..s.path };
    s.write(10 * MSS);
    assert_eq!(s.step().map(|out| out.len), Some(3 * MSS));
}

#[test]
fn a_window_that_shrinks_is_borne() {
    let mut s = Script::new();
    s.write(5000);
    assert_eq!(s.flush().len(), 5);
    s.window = 500;
    s.ack(1000);
    assert_eq!(s.sender.control_seq(), Script::seq(1500));
    s.write(5000);
    assert_eq!(s.flush(), []);
    // Only the oldest is sent again, for any window.
    loop {
        let _ = s.wait_timer();
        let left = s.flush();
        if left.iter().any(|left| left.resend && left.probe == Probe::None) {
            assert_eq!(left, [again(1000, 1000)]);
            break;
        }
    }
    s.window = 50_000;
    s.ack(5000);
    assert!(!s.flush().is_empty());
}

#[test]
fn time_outs_back_off_and_end() {
    let mut s = Script::new();
    s.write(500);
    s.flush();
    // The tail probe comes first.
    let _ = s.wait_timer();
    assert_eq!(s.flush(), [Left { probe: Probe::Tail, ..again(0, 500) }]);
    let mut waits = Vec::new();
    loop {
        let (waited, out) = s.wait_timer();
        waits.push(waited);
        if out == TimerOut::GiveUp {
            break;
        }
        assert_eq!(s.flush(), [again(0, 500)]);
    }
    assert_eq!(waits[0], Duration::from_millis(300));
    for pair in waits.windows(2) {
        assert_eq!(pair[1], (pair[0] * 2).min(Duration::from_secs(120)));
    }
    let all: Duration = waits.iter().sum();
    assert!((Duration::from_secs(600)..Duration::from_secs(1500)).contains(&all), "{all:?}");
    // The threshold was reduced once, for it was always the same data.
    assert_eq!(s.congestion(), [Congestion::Timeout]);
}

#[test]
fn duplicates_widen_the_reordering_window_and_undo_the_reduction() {
    let mut s = Script::new();
    s.write(10_000);
    s.flush();
    s.wait(RTT);
    s.sack(0, &[(1000, 4000)]);
    assert_eq!(s.flush(), [again(0, 1000)]);
    // The original arrives, then the copy.
    s.wait(RTT / 10);
    s.ack(10_000);
    assert_eq!(s.undone(), 0);
    let before = s.sender.rack.window(s.sender.rtt.srtt(), s.sender.rtt.min(), false);
    s.sack(10_000, &[(0, 1000)]);
    assert_eq!(s.undone(), 1);
    let after = s.sender.rack.window(s.sender.rtt.srtt(), s.sender.rtt.min(), false);
    assert_eq!(after, before * 2);
}

#[test]
fn a_time_out_that_only_was_late_is_taken_back_by_f_rto() {
    let mut s = Script::new();
    s.write(10_000);
    s.flush();
    while s.congestion().is_empty() {
        let _ = s.wait_timer();
        s.flush();
    }
    assert_eq!(s.congestion(), [Congestion::Timeout]);
    s.write(10_000);
    // The acknowledgement of the first original.
    s.ack(1000);
    assert!(s.flush().iter().all(|left| !left.resend), "new data to find out");
    s.ack(2000);
    assert_eq!(s.undone(), 1);
    assert_eq!(s.sender.counts().spurious, 1);
    assert!(s.flush().iter().all(|left| !left.resend));
}

#[test]
fn a_time_out_by_loss_is_not_taken_back() {
    let mut s = Script::new();
    s.write(5000);
    s.flush();
    while s.congestion().is_empty() {
        let _ = s.wait_timer();
        s.flush();
    }
    s.write(10_000);
    s.ack(1000);
    let left = s.flush();
    assert!(left.iter().all(|left| !left.resend) && left.len() == 2, "{left:?}");
    // Nothing of the old arrived: the new is reported above the hole.
    s.wait(RTT);
    let (start, end) = (left[0].at, left[0].at + left[0].len);
    s.sack(1000, &[(start, end)]);
    let left = s.flush();
    assert!(left.contains(&again(1000, 1000)), "{left:?}");
    assert_eq!(s.undone(), 0);
}

#[test]
fn a_timestamp_from_before_the_resend_takes_it_back() {
    let mut s = Script::new();
    s.clock = 10;
    s.write(10_000);
    s.flush();
    s.wait(RTT);
    s.clock = 110;
    s.sack(0, &[(1000, 4000)]);
    assert_eq!(s.flush(), [again(0, 1000)]);
    s.ack_with(4000, |ack| ack.echo = Some(10));
    assert_eq!(s.undone(), 1);
    assert!(s.sender.recovery.is_open());
}

#[test]
fn a_timestamp_of_the_resend_does_not() {
    let mut s = Script::new();
    s.clock = 10;
    s.write(10_000);
    s.flush();
    s.wait(RTT);
    s.clock = 110;
    s.sack(0, &[(1000, 4000)]);
    s.flush();
    s.ack_with(4000, |ack| ack.echo = Some(110));
    assert_eq!(s.undone(), 0);
}

#[test]
fn the_window_shrinks_in_proportion_during_recovery() {
    let mut s = Script::with(options(), 20_000, None);
    s.write(100_000);
    assert_eq!(s.flush().len(), 20);
    s.wait(RTT);
    // The first is lost; each acknowledgement reports one more.
    let mut sent = 0;
    for at in 2..=20 {
        s.sack(0, &[(1000, at * 1000)]);
        sent += s.flush().len();
    }
    // Ten for twenty: half of the bytes in flight leave during the round trip, the loss among them.
    assert!((10..=11).contains(&sent), "{sent}");
    s.wait(RTT);
    s.ack(20_000);
    assert_eq!(s.calls.lock().unwrap().ended, 0, "two left before the loss was seen");
    s.ack(22_000);
    assert_eq!(s.calls.lock().unwrap().ended, 1);
    assert_eq!(s.congestion(), [Congestion::Loss]);
}

#[test]
fn a_loss_repaired_by_the_tail_probe_counts_as_congestion() {
    let mut s = Script::new();
    s.write(2000);
    s.flush();
    let _ = s.wait_timer();
    assert_eq!(s.flush(), [Left { probe: Probe::Tail, ..again(1000, 1000) }]);
    s.wait(RTT);
    s.ack(2000);
    s.write(1000);
    s.flush();
    s.ack(3000);
    assert_eq!(s.congestion(), [Congestion::Loss]);
}

#[test]
fn ecn_echo_reduces_once_per_window_and_is_answered() {
    let mut s = Script::with(options(), 4000, None);
    s.write(50_000);
    let first = core::iter::from_fn(|| s.step()).collect::<Vec<_>>();
    assert!(first.iter().all(|out| out.ect && !out.cwr));
    for at in 1..=4 {
        s.ack_with(at * 1000, |ack| ack.ece = true);
    }
    assert_eq!(s.congestion(), [Congestion::Ecn]);
    let next = core::iter::from_fn(|| s.step()).collect::<Vec<_>>();
    assert!(next[0].cwr && next[1..].iter().all(|out| !out.cwr), "{next:?}");
    let end = next.last().unwrap().seq.distance(Script::seq(0)) + 1000;
    s.ack_with(end, |ack| ack.ece = true);
    assert_eq!(s.congestion(), [Congestion::Ecn, Congestion::Ecn]);
    let marked: u64 = s.calls.lock().unwrap().samples.iter().map(|sample| sample.marked).sum();
    assert_eq!(marked, u64::from(end));
}

#[test]
fn a_smaller_path_mtu_is_believed_only_about_what_is_out() {
    let mut s = Script::new();
    s.write(5000);
    s.flush();
    assert!(!s.sender.on_packet_too_big(s.now, 700, Script::seq(5000)));
    assert!(!s.sender.on_packet_too_big(s.now, 700, ISS));
    assert!(!s.sender.on_packet_too_big(s.now, 1500, Script::seq(0)));
    assert!(s.sender.on_packet_too_big(s.now, 652, Script::seq(0)));
    assert_eq!(s.sender.mss(), 600);
    let left = s.flush();
    assert_eq!(left.iter().map(|left| left.len).sum::<u32>(), 5000);
    assert!(left.iter().all(|left| left.resend && left.len <= 600), "{left:?}");
    assert_eq!(s.congestion(), []);
    assert_eq!(s.calls.lock().unwrap().mss, [600]);
    // Nor is anything absurd.
    assert!(s.sender.on_packet_too_big(s.now, 1, Script::seq(0)));
    assert_eq!(s.sender.mss(), 256);
}

/// A sender that has had full segments acknowledged, with one in flight that an ICMP message says is too big.
fn doubted(options: Options) -> Script {
    let mut s = Script::with(options, 100_000, None);
    s.write(5000);
    s.flush();
    s.wait(RTT);
    s.ack(5000);
    s.write(5000);
    s.flush();
    assert!(!s.sender.on_packet_too_big(s.now, 652, Script::seq(5000)), "full segments got through just now");
    assert_eq!(s.sender.mss(), MSS as u16);
    s
}

#[test]
fn a_claim_below_what_was_acknowledged_counts_only_if_what_it_quotes_is_lost() {
    let mut s = doubted(options());
    s.wait(RTT);
    s.ack(10_000);
    assert_eq!(s.sender.mss(), MSS as u16);
    // A later time-out has nothing to do with it; one that finds the quoted segment unacknowledged has.
    s.write(1000);
    s.flush();
    while s.sender.counts().timeouts == 0 {
        let _ = s.wait_timer();
        s.flush();
    }
    assert_eq!(s.sender.mss(), MSS as u16);
    let mut s = doubted(options());
    // Nothing arrives at all: the claim is accepted soon.
    let (waited, _) = s.wait_timer();
    assert!(waited <= 3 * RTT, "{waited:?}");
    assert_eq!((s.sender.mss(), s.sender.counts().timeouts), (600, 0));
    // Others arrive, the quoted data does not: it takes a time-out.
    let mut s = doubted(options());
    s.wait(RTT);
    s.ack(5000);
    s.sack(5000, &[(6000, 7000)]);
    while s.sender.counts().timeouts == 0 {
        assert_eq!(s.sender.mss(), MSS as u16);
        let _ = s.wait_timer();
        s.flush();
    }
    assert_eq!(s.sender.mss(), 600);
    let left = s.flush();
    assert!(left.iter().all(|left| left.len <= 600), "{left:?}");
}

#[test]
fn a_size_that_a_message_ruled_out_is_tried_again_within_seconds() {
    for works in [true, false] {
        let mut s = Script::with(Options::internet(), 100_000, None);
        s.write(5000);
        s.flush();
        assert!(s.sender.on_packet_too_big(s.now, 652, Script::seq(0)));
        let (mut at, mut tries, begun) = (0, Vec::new(), s.now);
        while s.now - begun < Duration::from_secs(60) && s.sender.mss() < MSS as u16 {
            s.write(5000);
            let mut lost = None;
            for left in s.flush() {
                if left.probe == Probe::PathMtu {
                    assert_eq!(left.len, MSS, "the former size at once");
                    tries.push((s.now - begun).as_secs());
                    lost = (!works).then_some((left.at, left.at + left.len));
                }
                at = at.max(left.at + left.len);
            }
            s.wait(RTT);
            if let Some((start, end)) = lost {
                s.sack(start, &[(end, at)]);
                while !s.flush().iter().any(|left| left.resend && left.at == start) {
                    let _ = s.wait_timer();
                }
                s.wait(RTT);
            }
            s.ack(at);
        }
        match works {
            true => assert!(tries.len() == 1 && tries[0] <= 6, "{tries:?}"),
            // Three each time, after 5 s, 10 s more, 20 s more.
            false => {
                assert_eq!(tries.len(), 9, "{tries:?}");
                assert!((14..20).contains(&tries[3]) && (34..45).contains(&tries[6]), "{tries:?}");
            }
        }
    }
}

#[test]
fn the_route_decides_what_a_segment_carries() {
    let mut s = Script::new();
    s.path = Path { mtu: 552, max_payload: 500, ..s.path };
    s.write(1000);
    assert_eq!(s.flush(), [new(0, 500), new(500, 500)]);
    s.path = Path { mtu: 9000, max_payload: 8948, ..s.path };
    s.write(1000);
    assert_eq!(s.flush(), [new(1000, 1000)]);
}

#[test]
fn after_an_idle_time_the_controller_is_notified() {
    let mut s = Script::new();
    s.write(1000);
    s.flush();
    s.wait(RTT);
    s.ack(1000);
    s.wait(Duration::from_secs(1));
    s.write(1000);
    s.flush();
    assert_eq!(s.calls.lock().unwrap().idle, 1);
    s.write(1000);
    s.flush();
    assert_eq!(s.calls.lock().unwrap().idle, 1);
}

#[test]
fn extents_are_sent_as_they_are_and_released_when_all_is_acknowledged() {
    let mut s = Script::new();
    s.path.max_payload = 65_000;
    let bytes: &'static [u8] =
        Box::leak((0..20_000u32).map(|i| i as u8).collect::<Vec<_>>().into_boxed_slice());
    let region = Region::from_static(bytes);
    s.write(100);
    assert!(s.sender.write_extent(region.extent(0, 5000).unwrap(), ReleaseToken(1)));
    assert!(s.sender.write_extent(region.extent(5000, 3000).unwrap(), ReleaseToken(2)));
    s.write(50);
    let out = s.step().unwrap();
    assert_eq!((out.len, out.segment_size), (8150, 1000));
    let mut extents = Vec::new();
    s.sender.extents(&out, &mut extents);
    assert_eq!(extents.len(), 4);
    let all: Vec<u8> = extents.iter().flat_map(|extent| extent.as_bytes().to_vec()).collect();
    assert_eq!(all[..100], [7; 100]);
    assert_eq!(all[100..8100], bytes[..8000]);
    assert_eq!(all[8100..], [7; 50]);
    s.ack(5099);
    assert_eq!(s.released, []);
    s.ack(5100);
    assert_eq!(s.released, [ReleaseToken(1)]);
    s.ack(8150);
    assert_eq!(s.released, [ReleaseToken(1), ReleaseToken(2)]);
}

#[test]
fn a_device_of_few_extents_gets_few() {
    let mut s = Script::new();
    s.path = Path { max_payload: 65_000, max_extents: 2, ..s.path };
    let region = Region::from_static(&[1; 10_000]);
    for index in 0..5 {
        assert!(s.sender.write_extent(region.extent(index * 2000, 1500).unwrap(), ReleaseToken(0)));
    }
    let mut sent = 0;
    while let Some(out) = s.step() {
        let mut extents = Vec::new();
        s.sender.extents(&out, &mut extents);
        assert!(extents.len() <= 2, "{out:?}");
        assert_eq!(extents.iter().map(|extent| extent.len() as u32).sum::<u32>(), out.len);
        sent += out.len;
    }
    assert_eq!(sent, 7500);
}

#[test]
fn a_large_extent_is_taken_by_an_empty_queue_and_a_full_one_says_when_there_is_room() {
    let mut s = Script::with(Options { send_buffer: 4000, ..options() }, 100_000, None);
    let region = Region::from_static(&[1; 10_000]);
    assert!(s.sender.write_extent(region.extent(0, 10_000).unwrap(), ReleaseToken(9)));
    assert!(!s.sender.write_extent(region.extent(0, 1).unwrap(), ReleaseToken(10)));
    assert_eq!(s.sender.write(&mut s.memory, b"x"), 0);
    s.flush();
    assert!(!s.ack(5000).became_writable);
    assert!(s.ack(9000).became_writable);
    assert!(!s.ack(10_000).became_writable);
    assert_eq!(s.sender.write(&mut s.memory, &[0; 5000]), 4000);
    s.flush();
    assert!(s.ack(11_000).became_writable);
}

#[test]
fn pacing_spreads_segments() {
    // 1000 bytes a millisecond.
    let mut s = Script::with(options(), 100_000, Some(1_000_000));
    s.write(10_000);
    let start = s.now;
    let mut left = s.flush().len();
    while left < 10 {
        let (_, out) = s.wait_timer();
        assert_eq!(out, TimerOut::Transmit);
        left += s.flush().len();
    }
    let took = s.now - start;
    assert!((Duration::from_millis(8)..=Duration::from_millis(9)).contains(&took), "{took:?}");
}

#[test]
fn an_aborted_connection_gives_everything_back() {
    let mut s = Script::new();
    let region = Region::from_static(&[1; 100]);
    s.write(3000);
    assert!(s.sender.write_extent(region.extent(0, 100).unwrap(), ReleaseToken(4)));
    s.flush();
    s.sender.abort(&mut s.memory, &mut s.released);
    assert_eq!(s.released, [ReleaseToken(4)]);
    assert_eq!(s.sender.next_deadline(), None);
    assert_eq!(s.flush(), []);
    assert_eq!(s.sender.queued(), 0);
}

#[test]
fn the_user_timeout_counts_from_the_oldest_unanswered_byte() {
    let mut s = Script::new();
    assert_eq!(s.sender.stalled_since(), None);
    s.write(1000);
    s.flush();
    let first = s.now;
    s.wait(RTT / 2);
    s.write(1000);
    s.flush();
    assert_eq!(s.sender.stalled_since(), Some(first));
    s.wait(RTT / 2);
    s.ack(1000);
    assert_eq!(s.sender.stalled_since(), Some(s.now));
    s.ack(2000);
    assert_eq!(s.sender.stalled_since(), None);
}

#[test]
fn delivery_rates_are_measured_and_marked_when_the_application_was_slow() {
    let mut s = Script::with(options(), 10_000, None);
    // Three windows, each twice the last.
    s.write(70_000);
    for _ in 0..3 {
        s.flush();
        s.wait(RTT);
        let end = s.sender.nxt().distance(Script::seq(0));
        s.ack(end);
    }
    let rates: Vec<_> = s.calls.lock().unwrap().samples.iter().filter_map(|sample| sample.rate).collect();
    assert_eq!(rates.len(), 3);
    for (rate, window) in rates.iter().zip([10_000, 20_000, 40_000]) {
        assert_eq!((rate.delivered, rate.interval), (window, RTT));
    }
    assert!(!rates[1].app_limited);
    // Nothing more to send for a while, then a little.
    assert_eq!(s.flush(), []);
    s.write(1000);
    s.flush();
    s.wait(RTT);
    s.ack(71_000);
    let last = s.calls.lock().unwrap().samples.last().unwrap().rate.unwrap();
    assert!(last.app_limited, "{last:?}");
}

/// Its whole state, except for the addresses of its bytes.
fn state_of(value: &impl core::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split("base: 0x").map(|part| part.trim_start_matches(|c: char| c.is_ascii_hexdigit())).collect()
}

#[test]
fn what_was_expected_ends_the_same_by_both_ways() {
    for seed in 0..400 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let nagle = rng.random_bool(0.3);
        let mut twins = [false, true].map(|long_way| Script {
            long_way,
            ..Script::with(Options { nagle, ..options() }, 20_000, None)
        });
        let (mut written, mut acked, mut short) = (0_u32, 0_u32, 0);
        for _ in 0..60 {
            let wait = Duration::from_micros(rng.random_range(1..150_000));
            let len = if rng.random_bool(0.6) { rng.random_range(1..3 * MSS) } else { 0 };
            let sent = twins[0].sender.nxt().distance(Script::seq(0));
            let at = match rng.random_range(0..4) {
                0 => acked,
                1 => rng.random_range(acked..=sent),
                _ => sent,
            };
            let (has_data, echo) = (rng.random_bool(0.5), rng.random_bool(0.7).then_some(1));
            let (ece, window) = (rng.random_bool(0.05), rng.random_range(5_000..100_000));
            let block = rng.random_bool(0.1) && at + MSS <= sent;
            short += u32::from(at == sent && at > acked);
            for twin in &mut twins {
                twin.now += wait;
                let _ = twin.sender.on_timer(twin.now);
                twin.window = window;
                twin.ack_with(at, |ack| {
                    (ack.has_data, ack.echo, ack.ece) = (has_data, echo, ece);
                    if block {
                        ack.sack = Script::blocks(&[(at + MSS / 2, at + MSS)]);
                    }
                });
                if len > 0 {
                    twin.write(len);
                }
                twin.flush();
            }
            (acked, written) = (at, written + len);
            let [a, b] = &twins;
            assert_eq!(state_of(&a.sender), state_of(&b.sender), "seed {seed}");
            assert_eq!(a.released, b.released, "seed {seed}");
        }
        assert!(written > 0 && short > 0, "seed {seed}");
    }
}

#[test]
fn a_segment_ends_where_a_record_does() {
    let mut s = Script::new();
    for len in [2500, 300, 300] {
        s.write(len);
        s.sender.end_record();
    }
    s.write(2200);
    let left = s.flush();
    let wanted = [
        (0, 1000),
        (1000, 1000),
        (2000, 500),
        (2500, 300),
        (2800, 300),
        (3100, 1000),
        (4100, 1000),
        (5100, 200),
    ];
    assert_eq!(left, wanted.map(|(at, len)| new(at, len)));
    // So do segments that are sent again.
    s.wait(RTT);
    s.sack(2000, &[(3100, 5300)]);
    s.wait(RTT);
    assert_eq!(s.flush(), [again(2000, 500), again(2500, 300), again(2800, 300)]);
    s.ack(5300);
    assert!(!s.sender.queue.has_marks());
}

#[test]
fn what_is_held_back_for_more_leaves_in_the_end() {
    for cork in [true, false] {
        let mut s = Script::with(Options { cork, ..options() }, 100_000, None);
        s.write(2100);
        s.sender.expect_more();
        assert_eq!(s.flush(), [new(0, 1000), new(1000, 1000)]);
        // Something was heard: that ends the waiting for more, but not a cork.
        s.wait(RTT);
        s.ack(2000);
        if !cork {
            assert_eq!(s.flush(), [new(2000, 100)]);
            continue;
        }
        assert_eq!(s.flush(), []);
        let (waited, timer) = s.wait_timer();
        assert_eq!(timer, TimerOut::Transmit);
        assert!(waited >= Duration::from_millis(200), "{waited:?}");
        assert_eq!(s.flush(), [new(2000, 100)]);
        s.ack(2100);
        // A push, the end of the cork, and a FIN do not wait.
        s.write(10);
        assert_eq!(s.flush(), []);
        s.sender.push();
        assert_eq!(s.flush(), [new(2100, 10)]);
        s.write(10);
        assert_eq!(s.flush(), []);
        s.sender.set_options(Arc::new(options()));
        assert_eq!(s.flush(), [new(2110, 10)]);
        s.write(10);
        s.sender.expect_more();
        s.sender.finish();
        assert_eq!(s.flush(), [Left { fin: true, ..new(2120, 10) }]);
    }
}
