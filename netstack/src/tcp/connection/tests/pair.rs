//! Two connections against each other, over a link that may lose, repeat and reorder.

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::*;

/// What a link does to segments, in parts of a thousand.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    lose: u32,
    repeat: u32,
    delay: u32,
}

struct Link {
    sides: [Rig; 2],
    /// When it arrives, at whom, what; in order of sending.
    flying: Vec<(Instant, usize, Sent)>,
    random: SmallRng,
    trouble: Trouble,
    over: [bool; 2],
}

const DELAY: Duration = Duration::from_millis(5);

impl Link {
    fn new(seed: u64, options: [Options; 2], trouble: Trouble) -> Self {
        let [client, server] = options;
        let mut client = Rig::connect(client);
        let first = client.sent_one();
        let mirrored = Open {
            local: open().remote,
            remote: open().local,
            iss: SeqNumber(0x7fff_fff0),
            timestamp_offset: 123,
            mtu: 1500,
        };
        let mut server = Rig::around(Connection::accept(
            start(),
            &mirrored,
            Arc::new(server),
            &segment(first.header, &[]),
        ));
        server.now = client.now;
        Self {
            sides: [client, server],
            flying: Vec::new(),
            random: SmallRng::seed_from_u64(seed),
            trouble,
            over: [false; 2],
        }
    }

    fn send(&mut self) {
        for side in 0..2 {
            let now = self.sides[side].now;
            for sent in self.sides[side].sent() {
                let Trouble { lose, repeat, delay } = self.trouble;
                if self.random.random_range(0..1000) < lose {
                    continue;
                }
                let mut at = now + DELAY;
                if self.random.random_range(0..1000) < delay {
                    at += Duration::from_micros(self.random.random_range(0..3000));
                }
                if self.random.random_range(0..1000) < repeat {
                    self.flying.push((at + DELAY, 1 - side, sent.clone()));
                }
                self.flying.push((at, 1 - side, sent));
            }
        }
    }

    /// One step: to the next arrival or timer. False if there is none.
    fn step(&mut self) -> bool {
        self.send();
        let arrival = self.flying.iter().map(|(at, ..)| *at).min();
        let timer = self.sides.iter().filter_map(|side| side.connection.next_deadline()).min();
        let Some(next) = [arrival, timer].into_iter().flatten().min() else { return false };
        for side in &mut self.sides {
            side.now = side.now.max(next);
        }
        let (due, rest) = core::mem::take(&mut self.flying).into_iter().partition(|(at, ..)| *at <= next);
        self.flying = rest;
        let mut due: Vec<_> = due;
        due.sort_by_key(|(at, ..)| *at);
        for (_, side, sent) in due {
            let disposition = self.sides[side].give(sent.header, &sent.payload);
            self.settle(side, disposition);
        }
        for side in 0..2 {
            let deadline = self.sides[side].connection.next_deadline();
            if deadline.is_some_and(|deadline| deadline <= next) {
                let disposition = self.sides[side].with(|connection, now, cx| connection.on_timer(now, cx));
                self.settle(side, disposition);
            }
        }
        true
    }

    fn settle(&mut self, side: usize, disposition: Disposition) {
        let now = self.sides[side].now;
        let reply = |header| (now + DELAY, 1 - side, Sent { header, payload: Vec::new(), ect: false });
        match disposition {
            Disposition::Keep | Disposition::Opened => {}
            Disposition::Answer(header) => self.flying.push(reply(header)),
            Disposition::Reset(header) => {
                self.over[side] = true;
                self.flying.push(reply(header));
            }
            Disposition::Remove => self.over[side] = true,
            Disposition::TimeWait(_, header) => {
                self.over[side] = true;
                self.flying.extend(header.map(reply));
            }
        }
    }
}

/// Both sides send `len` bytes and shut; returns how long it took.
fn exchange(seed: u64, options: [Options; 2], trouble: Trouble, len: usize) -> Duration {
    let mut link = Link::new(seed, options, trouble);
    let data = |side: usize| (0..len).map(move |at| (at * 31 + at / 256 + side) as u8);
    let bytes: [Vec<u8>; 2] = [data(0).collect(), data(1).collect()];
    let mut written = [0; 2];
    let mut read: [Vec<u8>; 2] = Default::default();
    for _ in 0..200_000 {
        for side in 0..2 {
            while let Some(rest) = bytes[side].get(written[side]..).filter(|rest| !rest.is_empty()) {
                match link.sides[side].write(rest) {
                    Ok(count) => written[side] += count,
                    Err(Error::WouldBlock) => break,
                    Err(error) => panic!("seed {seed}, side {side}: {error}"),
                }
            }
            if written[side] == len && !link.over[side] {
                link.sides[side].shutdown();
            }
            if let Ok(more) = link.sides[side].read() {
                read[side].extend(more);
            }
        }
        if link.over == [true; 2] || !link.step() {
            break;
        }
        // The one in TIME-WAIT answers for the other's last FIN.
        if link.over != [false; 2] && read.iter().all(|read| read.len() == len) {
            break;
        }
    }
    assert!(read[0] == bytes[1], "seed {seed}: {} of {len} bytes", read[0].len());
    assert!(read[1] == bytes[0], "seed {seed}: {} of {len} bytes", read[1].len());
    link.sides[0].now.saturating_since(start())
}

#[test]
fn a_clean_link() {
    let time = exchange(1, [Options::internet(), Options::internet()], Trouble::default(), 300_000);
    assert!(time < Duration::from_millis(200), "{time:?}");
}

#[test]
fn a_bad_link() {
    for seed in 0..40 {
        let trouble = Trouble { lose: 20, repeat: 10, delay: 100 };
        exchange(seed, [Options::internet(), Options::internet()], trouble, 200_000);
    }
}

#[test]
fn options_of_every_kind() {
    for seed in 0..64_u64 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut options = || Options {
            window_scaling: random.random(),
            timestamps: random.random(),
            sack: random.random(),
            ecn: random.random(),
            nagle: random.random(),
            receive_buffer: 1 << random.random_range(11..20),
            send_buffer: 1 << random.random_range(11..20),
            ..Options::internet()
        };
        let options = [options(), options()];
        exchange(seed, options, Trouble { lose: 10, repeat: 5, delay: 50 }, 60_000);
    }
}
