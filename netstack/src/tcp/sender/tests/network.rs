//! A sender, a way that loses, delays and reorders, and a peer that reassembles, with delayed and selective
//! acknowledgements. Everything follows from a seed.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::*;
use crate::cc::Algorithm;
use crate::wire::tcp::{SackBlocks, SeqRange};

const MSS: u16 = 1448;
const ISS: SeqNumber = SeqNumber(u32::MAX - 5_000);

/// The way and the peer.
#[derive(Clone, Debug)]
struct World {
    seed: u64,
    bytes: usize,
    one_way: Duration,
    /// Probability of losing a segment, and an acknowledgement.
    loss: f64,
    ack_loss: f64,
    /// Probability of a segment being late, and by how much.
    late: f64,
    lateness: Duration,
    /// Bytes per second of the bottleneck, and what its queue holds in bytes.
    rate: u64,
    buffer: u64,
    ack_delay: Duration,
    sack: bool,
    window: u32,
    /// Super-segments up to so many bytes.
    max_payload: u32,
    /// Transmissions to lose, by their number.
    lose: BTreeSet<u64>,
    /// Packets longer than this payload get lost.
    hole: u32,
    options: Options,
}

impl Default for World {
    fn default() -> Self {
        Self {
            seed: 0,
            bytes: 1 << 20,
            one_way: Duration::from_millis(5),
            loss: 0.0,
            ack_loss: 0.0,
            late: 0.0,
            lateness: Duration::ZERO,
            rate: 125_000_000,
            buffer: 1 << 20,
            ack_delay: Duration::from_millis(40),
            sack: true,
            window: 4 << 20,
            max_payload: 1448,
            lose: BTreeSet::new(),
            hole: u32::MAX,
            options: Options { congestion: Algorithm::NewReno, ..Options::internet() },
        }
    }
}

#[derive(Debug)]
struct Outcome {
    /// When the last byte arrived, and when all was acknowledged.
    arrived: Duration,
    finished: Duration,
    info: Counts,
    transmissions: u64,
    duplicates: u64,
    mss: u16,
}

enum Happening {
    Segment { start: u64, bytes: Vec<u8>, fin: bool },
    Ack { ack: u64, window: u32, blocks: Vec<(u64, u64)> },
    DelayedAck(u64),
}

/// Reassembles.
#[derive(Default)]
struct Peer {
    next: u64,
    data: Vec<u8>,
    /// start -> end, and which was touched last.
    ahead: BTreeMap<u64, u64>,
    recent: Vec<u64>,
    fin_at: Option<u64>,
    unacked: u32,
    delayed: u64,
    pending: bool,
}

impl Peer {
    /// Takes a segment; returns whether to acknowledge at once and a duplicate block.
    fn take(&mut self, start: u64, bytes: &[u8], fin: bool) -> (bool, Option<(u64, u64)>, bool) {
        let end = start + bytes.len() as u64 + u64::from(fin);
        if fin {
            self.fin_at = Some(end - 1);
        }
        let need = end as usize;
        if self.data.len() < need {
            self.data.resize(need, 0);
        }
        self.data[start as usize..start as usize + bytes.len()].copy_from_slice(bytes);
        if end <= self.next {
            return (true, Some((start, end)), true);
        }
        if start > self.next {
            if let Some((&s, &e)) = self.ahead.range(..=start).next_back()
                && e >= end
            {
                let _ = s;
                return (true, Some((start, end)), true);
            }
            let (mut from, mut to) = (start, end);
            let touching: Vec<u64> =
                self.ahead.iter().filter(|(s, e)| **s <= to && **e >= from).map(|(s, _)| *s).collect();
            for s in touching {
                let e = self.ahead.remove(&s).unwrap();
                from = from.min(s);
                to = to.max(e);
                self.recent.retain(|r| *r != s);
            }
            self.ahead.insert(from, to);
            self.recent.insert(0, from);
            return (true, None, false);
        }
        let gap = !self.ahead.is_empty();
        self.next = end;
        while let Some((&s, &e)) = self.ahead.first_key_value() {
            if s > self.next {
                break;
            }
            self.next = self.next.max(e);
            self.ahead.remove(&s);
            self.recent.retain(|r| *r != s);
        }
        self.unacked += 1;
        (gap || self.unacked >= 2 || fin, None, false)
    }

    fn blocks(&self, duplicate: Option<(u64, u64)>) -> Vec<(u64, u64)> {
        let mut blocks: Vec<_> = duplicate.into_iter().collect();
        blocks.extend(self.recent.iter().take(3).map(|s| (*s, self.ahead[s])));
        blocks
    }
}

fn content(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn seq(position: u64) -> SeqNumber {
    ISS + 1 + position as u32
}

/// Transfers everything and closes; panics if it takes more than ten minutes of virtual time.
fn run(world: &World) -> Outcome {
    run_with(world, Arc::new(world.options.clone()))
}

fn run_with(world: &World, options: Arc<Options>) -> Outcome {
    let mut rng = SmallRng::seed_from_u64(world.seed);
    let mut memory = Memory::new(usize::MAX);
    let mut released = Vec::new();
    let mut sender = Sender::new(ISS, options);
    let mut now = Instant::from_nanos(1_000_000_000);
    let start = now;
    let terms = Terms { mss: MSS, overhead: 52, timestamps: false, sack: world.sack, ecn: false };
    sender.establish(now, &terms, world.window, SeqNumber(7), Some(world.one_way * 2), false);
    let path = Path { mtu: 1500, max_payload: world.max_payload, max_extents: 16, max_segments: u32::MAX };
    let mut peer = Peer::default();
    let mut events: BTreeMap<(Instant, u64), Happening> = BTreeMap::new();
    let mut order = 0u64;
    let mut link_free = now;
    let mut written = 0usize;
    let (mut transmissions, mut duplicates) = (0u64, 0u64);
    let mut arrived = Duration::ZERO;
    let mut extents = Vec::new();
    loop {
        while written < world.bytes {
            let part: Vec<u8> =
                (written..(written + 10_000).min(world.bytes)).map(|at| content(at as u64)).collect();
            let taken = sender.write(&mut memory, &part);
            written += taken;
            if taken < part.len() {
                break;
            }
        }
        if written == world.bytes {
            sender.finish();
        }
        while let Some(out) = sender.next(now, &path) {
            assert!(out.len + u32::from(out.fin) > 0, "seed {}: {out:?}", world.seed);
            extents.clear();
            sender.extents(&out, &mut extents);
            let all: Vec<u8> = extents.iter().flat_map(|extent| extent.as_bytes().to_vec()).collect();
            assert_eq!(all.len(), out.len as usize, "seed {}: {out:?}", world.seed);
            sender.on_sent(now, &out, 0);
            sender.board.check();
            let first = u64::from(out.seq.distance(seq(0)));
            let base = if out.probe == Probe::Window { peer.next } else { first };
            let mut at = 0;
            loop {
                let end = (at + out.segment_size as usize).min(all.len());
                let last = end == all.len();
                transmissions += 1;
                // The bottleneck.
                let size = (end - at) as u64 + 60;
                link_free = link_free.max(now);
                let backlog = (link_free - now).as_nanos() as u64 * (world.rate / 1000) / 1_000_000;
                let dropped = backlog > world.buffer
                    || rng.random_bool(world.loss)
                    || world.lose.contains(&transmissions)
                    || (end - at) as u32 > world.hole;
                if !dropped {
                    link_free += Duration::from_nanos(size * 1_000_000_000 / world.rate);
                    let mut at_peer = link_free + world.one_way;
                    if rng.random_bool(world.late) {
                        at_peer += world.lateness.mul_f64(rng.random_range(0.0..1.0));
                    }
                    order += 1;
                    let segment = Happening::Segment {
                        start: base + at as u64,
                        bytes: all[at..end].to_vec(),
                        fin: out.fin && last,
                    };
                    events.insert((at_peer, order), segment);
                }
                at = end;
                if last {
                    break;
                }
            }
        }
        if sender.is_empty() && sender.fin_sent() {
            break;
        }
        let next = [sender.next_deadline(), events.keys().next().map(|(at, _)| *at)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| panic!("seed {}: stuck: {sender:?}", world.seed));
        now = now.max(next);
        assert!(now - start < Duration::from_secs(600), "seed {}: too slow: {sender:?}", world.seed);
        assert_ne!(sender.on_timer(now), TimerOut::GiveUp, "seed {}", world.seed);
        while let Some(entry) = events.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let mut send_ack = None;
            match entry.remove() {
                Happening::Segment { start: at, bytes, fin } => {
                    let (at_once, duplicate, was_duplicate) = peer.take(at, &bytes, fin);
                    duplicates += u64::from(was_duplicate);
                    if peer.fin_at.is_some_and(|fin| peer.next > fin) && arrived.is_zero() {
                        arrived = now - start;
                    }
                    if at_once {
                        send_ack = Some(duplicate);
                    } else if !peer.pending {
                        peer.pending = true;
                        peer.delayed += 1;
                        order += 1;
                        events.insert((now + world.ack_delay, order), Happening::DelayedAck(peer.delayed));
                    }
                }
                Happening::DelayedAck(number) => {
                    if peer.pending && number == peer.delayed {
                        send_ack = Some(None);
                    }
                }
                Happening::Ack { ack, window, blocks } => {
                    let mut sack = SackBlocks::NONE;
                    if world.sack {
                        for (s, e) in blocks {
                            sack.push(SeqRange { start: seq(s), end: seq(e) });
                        }
                    }
                    let ack = AckIn {
                        ack: seq(ack),
                        seq: SeqNumber(7),
                        window,
                        sack,
                        rtt: None,
                        echo: None,
                        ece: false,
                        has_data: false,
                    };
                    sender.on_ack(now, &ack, &mut memory, &mut released);
                    sender.board.check();
                    memory.frames_gone();
                }
            }
            if let Some(duplicate) = send_ack {
                peer.pending = false;
                peer.unacked = 0;
                if !rng.random_bool(world.ack_loss) {
                    order += 1;
                    let ack = Happening::Ack {
                        ack: peer.next,
                        window: world.window,
                        blocks: peer.blocks(duplicate),
                    };
                    events.insert((now + world.one_way, order), ack);
                }
            }
        }
    }
    assert_eq!(peer.next, world.bytes as u64 + 1, "seed {}", world.seed);
    for (at, byte) in peer.data[..world.bytes].iter().enumerate() {
        assert_eq!(*byte, content(at as u64), "seed {}: byte {at}", world.seed);
    }
    assert_eq!(sender.queued(), 0);
    assert_eq!(sender.in_flight(), 0);
    Outcome {
        arrived,
        finished: now - start,
        mss: sender.mss(),
        info: sender.counts(),
        transmissions,
        duplicates,
    }
}

#[test]
fn a_clean_way_needs_no_resend() {
    let outcome = run(&World::default());
    assert_eq!((outcome.info.retransmitted, outcome.info.timeouts), (0, 0), "{outcome:?}");
    // Slow start from ten segments: 1 MiB needs 7 round trips at most.
    assert!(outcome.arrived < Duration::from_millis(90), "{outcome:?}");
}

#[test]
fn losses_are_repaired_without_time_outs() {
    let mut timeouts = 0;
    for seed in 0..20 {
        let outcome = run(&World { seed, loss: 0.01, ..World::default() });
        timeouts += outcome.info.timeouts;
    }
    // Only a lost retransmission at the very end can need one.
    assert!(timeouts <= 2, "{timeouts} time-outs");
}

#[test]
fn heavy_loss_both_ways_delivers_everything() {
    for seed in 0..20 {
        let world = World { seed, bytes: 300_000, loss: 0.2, ack_loss: 0.2, ..World::default() };
        run(&world);
        run(&World { sack: false, ..world.clone() });
        run(&World { max_payload: 65_160, ..world });
    }
}

#[test]
fn one_lost_segment_anywhere_is_repaired_by_one_resend() {
    let clean = run(&World { bytes: 200_000, ..World::default() });
    for number in 1..=clean.transmissions {
        let world = World { bytes: 200_000, lose: [number].into(), ..World::default() };
        let outcome = run(&world);
        assert_eq!(outcome.info.timeouts, 0, "transmission {number}: {outcome:?}");
        assert_eq!(outcome.transmissions, clean.transmissions + 1, "transmission {number}: {outcome:?}");
    }
}

#[test]
fn a_lost_tail_is_repaired_within_two_round_trips_the_delay_and_a_millisecond() {
    let clean = run(&World { bytes: 200_000, ..World::default() });
    let tail = World { bytes: 200_000, lose: [clean.transmissions].into(), ..World::default() };
    let outcome = run(&tail);
    assert_eq!(outcome.info.timeouts, 0, "{outcome:?}");
    let late = outcome.arrived - clean.arrived;
    let bound = tail.one_way * 4 + tail.ack_delay + Duration::from_millis(1);
    assert!(late <= bound, "{late:?} above {bound:?}: {outcome:?}");
}

#[test]
fn reordering_makes_no_time_outs_and_soon_no_resends() {
    for seed in 0..10 {
        let world = World {
            seed,
            bytes: 8 << 20,
            late: 0.05,
            lateness: Duration::from_millis(5),
            ..World::default()
        };
        let outcome = run(&world);
        assert_eq!(outcome.info.timeouts, 0, "seed {seed}: {outcome:?}");
        assert!(
            outcome.duplicates * 100 <= outcome.transmissions,
            "seed {seed}: more than 1% for nothing: {outcome:?}"
        );
    }
}

#[test]
fn without_sack_losses_are_repaired_by_duplicate_acknowledgements() {
    let clean = run(&World { bytes: 200_000, sack: false, ..World::default() });
    // From the tenth to the tenth but last there are three duplicates.
    for number in 10..clean.transmissions - 10 {
        let world = World { bytes: 200_000, sack: false, lose: [number].into(), ..World::default() };
        let outcome = run(&world);
        assert_eq!(outcome.info.timeouts, 0, "transmission {number}: {outcome:?}");
        assert!(outcome.transmissions <= clean.transmissions + 1, "transmission {number}: {outcome:?}");
    }
}

#[test]
fn a_black_hole_is_found_and_the_size_found_again() {
    // Full segments vanish; 1000 bytes get through.
    let world = World { bytes: 2 << 20, hole: 1000, ..World::default() };
    let outcome = run(&world);
    assert!((900..=1000).contains(&outcome.mss), "{outcome:?}");
    assert!(outcome.finished < Duration::from_secs(20), "{outcome:?}");
}

#[test]
fn an_outage_does_not_leave_small_segments_behind() {
    let world = World { bytes: 4 << 20, lose: (200..400).collect(), ..World::default() };
    let outcome = run(&world);
    assert_eq!(outcome.mss, MSS, "{outcome:?}");
}

#[test]
fn paced_segments_arrive_as_well() {
    for seed in 0..5 {
        let options = Options { pacing: true, ..World::default().options };
        let outcome = run(&World { seed, loss: 0.01, options, ..World::default() });
        assert!(outcome.finished < Duration::from_secs(5), "seed {seed}: {outcome:?}");
    }
}

#[test]
fn every_controller_copes_with_every_ill() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp, Algorithm::Bbr] {
        for seed in 0..8 {
            let options = Options { congestion: algorithm, ..Options::internet() };
            run(&World {
                seed,
                bytes: 500_000,
                loss: 0.03,
                ack_loss: 0.05,
                late: 0.02,
                lateness: Duration::from_millis(20),
                rate: 2_000_000,
                buffer: 30_000,
                max_payload: if seed % 2 == 0 { 1448 } else { 65_000 },
                window: if seed % 3 == 0 { 20_000 } else { 1 << 20 },
                options,
                ..World::default()
            });
        }
    }
}

#[test]
fn heavy_loss_does_not_leave_small_segments_behind() {
    for seed in 0..10 {
        let world = World {
            seed,
            loss: 0.15,
            ack_loss: 0.15,
            one_way: Duration::from_micros(50),
            ..World::default()
        };
        let outcome = run(&World { bytes: 2 << 20, ..world });
        assert!(outcome.mss > 1400, "seed {seed}: {outcome:?}");
        assert!(outcome.finished < Duration::from_secs(60), "seed {seed}: {outcome:?}");
    }
}
