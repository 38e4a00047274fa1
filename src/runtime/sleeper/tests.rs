use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

/// Nobody waits that long: a wake-up that is lost fails the test by its time.
const MINUTE: Duration = Duration::from_secs(60);

/// A device whose frames are numbers, and which announces them while it is armed.
struct Queue {
    frames: AtomicU32,
    armed: AtomicBool,
    /// How often a frame was announced.
    announced: AtomicU64,
    descriptor: OwnedFd,
}

impl Queue {
    fn new() -> Self {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Self {
            frames: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            announced: AtomicU64::new(0),
            descriptor,
        }
    }

    /// The other side puts a frame there.
    fn put(&self) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) {
            self.announced.fetch_add(1, Ordering::Relaxed);
            rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes()).unwrap();
        }
    }
}

/// What the sleeping thread shares with the others.
struct Shared {
    queue: Queue,
    /// News of another thread.
    news: AtomicU32,
    sleeper: Sleeper,
    parker: std::sync::Mutex<Option<Parker>>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let parker = Parker::new();
        let sleeper = Sleeper::new(&parker);
        let parker = std::sync::Mutex::new(Some(parker));
        Arc::new(Self { queue: Queue::new(), news: AtomicU32::new(0), sleeper, parker })
    }

    fn tell(&self) {
        self.news.fetch_add(1, Ordering::Relaxed);
        self.sleeper.wake();
    }

    fn is_waiting(&self) -> bool {
        self.sleeper.state.load(Ordering::Relaxed) == WAITING
    }
}

struct Thread {
    shared: Arc<Shared>,
    parker: Parker,
    wakes: Wakes,
    frames: u32,
    deadline: Option<Instant>,
    seen: u32,
}

impl Thread {
    fn new(shared: &Arc<Shared>, wakes: Wakes) -> Self {
        let parker = shared.parker.lock().unwrap().take().unwrap();
        Self { shared: shared.clone(), parker, wakes, frames: 0, deadline: None, seen: 0 }
    }

    /// Until it has seen so many frames and news together.
    fn run(&mut self, total: u32) {
        let shared = self.shared.clone();
        while self.frames + self.seen < total {
            let news = shared.news.load(Ordering::Acquire);
            if !self.poll().is_busy() && std::mem::replace(&mut self.seen, news) == news {
                shared.sleeper.sleep(self, MINUTE);
            }
        }
    }
}

impl Sleeping for Thread {
    fn parker(&self) -> &Parker {
        &self.parker
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        if self.wakes != Wakes::Never {
            announce(self.shared.queue.descriptor.as_fd());
            self.shared.queue.armed.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        self.wakes
    }

    fn disarm(&mut self) {
        self.shared.queue.armed.store(false, Ordering::Relaxed);
    }

    fn poll(&mut self) -> Activity {
        let frames = self.shared.queue.frames.load(Ordering::Acquire);
        Activity::from_busy(std::mem::replace(&mut self.frames, frames) != frames)
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn has_pending_work(&self) -> bool {
        self.shared.news.load(Ordering::Relaxed) != self.seen
    }
}

fn timed(f: impl FnOnce()) -> Duration {
    let begin = Clock.now();
    f();
    Clock.now().saturating_since(begin)
}

#[test]
fn a_frame_and_another_thread_end_a_long_wait() {
    for frame in [true, false] {
        let shared = Shared::new();
        let mut thread = Thread::new(&shared, Wakes::Partly);
        let took = timed(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !shared.is_waiting() {
                        std::thread::yield_now();
                    }
                    if frame { shared.queue.put() } else { shared.tell() }
                });
                thread.run(1);
            });
        });
        assert!(took < MINUTE / 4, "frame {frame}: {took:?}");
        assert!(!shared.queue.armed.load(Ordering::Relaxed));
    }
}

#[test]
fn no_frame_and_no_news_is_lost_whenever_they_come() {
    let rounds = 10_000;
    let shared = Shared::new();
    let mut thread = Thread::new(&shared, Wakes::Partly);
    let took = timed(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = SmallRng::seed_from_u64(1);
                for round in 0..rounds {
                    if random.random_range(0..2) == 0 {
                        shared.queue.put()
                    } else {
                        shared.tell()
                    }
                    // The next one at any moment of the way into the wait, or long after.
                    match random.random_range(0..8) {
                        0 => std::thread::sleep(Duration::from_micros(random.random_range(0..100))),
                        _ => (0..random.random_range(0..2_000)).for_each(|_| std::hint::spin_loop()),
                    }
                    // One that is lost is not made up for by the next one.
                    if round % 16 == 0 {
                        let until = Clock.now() + MINUTE / 2;
                        while !shared.is_waiting() && Clock.now() < until {
                            std::thread::yield_now();
                        }
                    }
                }
            });
            thread.run(rounds);
        });
    });
    assert!(took < MINUTE / 2, "{took:?}");
    assert!(shared.queue.announced.load(Ordering::Relaxed) > 100, "it did wait");
}

#[test]
fn frames_are_not_announced_to_a_thread_that_polls() {
    let shared = Shared::new();
    let mut thread = Thread::new(&shared, Wakes::Partly);
    for sent in 1..=100 {
        shared.queue.put();
        // It is there before the wait begins, so there is none.
        assert!(timed(|| assert!(shared.sleeper.sleep(&mut thread, MINUTE).is_busy())) < MINUTE / 4);
        assert_eq!(thread.frames, sent);
    }
    assert_eq!(shared.queue.announced.load(Ordering::Relaxed), 0);
}

#[test]
fn a_wait_lasts_as_long_as_what_is_not_announced_allows() {
    let ms = Duration::from_millis;
    // The longest wait that was asked for, and how long it may last at least and at most (a busy machine adds to it).
    for (wakes, longest, deadline, least, most) in [
        (Wakes::Never, ms(20), None, ms(20), MINUTE),
        (Wakes::Partly, ms(20), None, ms(20), MINUTE),
        (Wakes::Always, Duration::ZERO, None, LONGEST_WAIT, MINUTE),
        (Wakes::Always, MINUTE, None, LONGEST_WAIT, MINUTE / 4),
        (Wakes::Always, MINUTE, Some(ms(2)), ms(2), MINUTE / 4),
        (Wakes::Partly, MINUTE, Some(ms(2)), ms(2), MINUTE / 4),
    ] {
        let shared = Shared::new();
        let mut thread = Thread::new(&shared, wakes);
        thread.deadline = deadline.map(|left| Clock.now() + left);
        // A first wait may end at once: the descriptors were not watched before.
        shared.sleeper.sleep(&mut thread, Duration::ZERO);
        let took = timed(|| {
            thread.deadline = deadline.map(|left| Clock.now() + left);
            assert_eq!(shared.sleeper.sleep(&mut thread, longest), Activity::Idle);
        });
        assert!(least <= took && took < most, "{wakes:?}, {longest:?}, {deadline:?}: {took:?}");
    }
}
