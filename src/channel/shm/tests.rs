#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use shouter_reducer::memory::{MemoryKind, TensorRegion};
use shouter_reducer::transport::{LaneFlag, NodeMemory, TensorView};

use super::layout::SegmentLayout;
use super::segment::Abort;
use super::*;
use crate::group::error::ExchangeError;
use crate::key::Key;
use crate::runtime::in_forked_child;

const SHAPE: SegmentShape =
    SegmentShape { ranks: 3, lanes: 2, lane_bytes: 8192, arena_bytes: 64 << 20, parts: 2 };

/// One segment per rank, all over the same memory, as in three processes.
fn node() -> Vec<NodeSegment> {
    static NODES: AtomicU32 = AtomicU32::new(0);
    let number = u64::from(std::process::id()) << 32 | u64::from(NODES.fetch_add(1, Ordering::Relaxed));
    let secret = Key::from_secret(std::array::from_fn(|i| number.to_le_bytes()[i % 8]));
    let ranks: Vec<_> = (0..SHAPE.ranks)
        .map(|local| {
            let secret = secret.clone();
            std::thread::spawn(move || {
                pass::meet(&secret, 0, local, SHAPE, Duration::from_secs(20), &mut || Ok(())).unwrap()
            })
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn put(piece: &SharedMemory, at: usize, value: u8) {
    // SAFETY: the tests stay inside the piece, which nobody else touches now.
    unsafe { piece.as_ptr().add(at).write_volatile(value) }
}

fn get(piece: &SharedMemory, at: usize) -> u8 {
    // SAFETY: as for `put`.
    unsafe { piece.as_ptr().add(at).read_volatile() }
}

/// The bytes that local rank 2 has published as small operation `number`.
fn read(segment: &NodeSegment, number: u64, len: usize) -> Option<(u64, Vec<u8>)> {
    // SAFETY: nothing is published meanwhile.
    unsafe { segment.cell(2, number).read(len) }.map(|(tag, bytes)| {
        assert_eq!(tag.started, number);
        (tag.operation, bytes.to_vec())
    })
}

/// The byte at `at`.
fn peek(region: TensorRegion, at: usize) -> u8 {
    let at = region.sub(at, 1).unwrap().as_ptr();
    // SAFETY: inside the region, whose segment lives and which nobody else touches now.
    unsafe { at.read_volatile() }
}

fn write(region: TensorRegion, at: usize, value: u8) {
    let at = region.sub(at, 1).unwrap().as_ptr();
    // SAFETY: inside the region, which nobody else touches now.
    unsafe { at.write_volatile(value) }
}

#[test]
fn flags_are_seen_by_all_and_belong_to_one() {
    let ranks = node();
    ranks[1].signal(1, LaneFlag::Reduced, 7);
    for rank in &ranks {
        assert_eq!(rank.observe(1, 1, LaneFlag::Reduced), 7);
        for (local, lane, flag) in
            [(0, 1, LaneFlag::Reduced), (1, 0, LaneFlag::Reduced), (1, 1, LaneFlag::Staged)]
        {
            assert_eq!(rank.observe(local, lane, flag), 0);
        }
    }
}

#[test]
fn areas_are_disjoint_and_shared() {
    let ranks = node();
    let mut areas = vec![];
    for lane in 0..SHAPE.lanes {
        areas.extend((0..SHAPE.ranks).map(|local| ranks[0].stage(local, lane)));
        areas.push(ranks[0].result(lane));
    }
    let mut ranges: Vec<_> = areas.iter().map(|a| (a.as_ptr() as usize, a.len())).collect();
    ranges.sort_unstable();
    assert!(ranges.iter().all(|r| r.1 == SHAPE.lane_bytes));
    assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
    assert!(ranks[0].stage(SHAPE.ranks, 0).is_empty() && ranks[0].result(SHAPE.lanes).is_empty());
}

#[test]
fn cells_hold_what_was_published_for_one_operation() {
    let ranks = node();
    for (number, bytes) in
        [(1u64, vec![1u8; 4]), (2, vec![2; 40]), (3, vec![3; 41]), (4, vec![4; CELL_PAYLOAD])]
    {
        assert!(!ranks[0].cell(2, number).is_published() && read(&ranks[0], number, bytes.len()).is_none());
        assert!(ranks[2].cell(2, number).publish(Tag { operation: number * 10, started: number }, &bytes));
        for rank in &ranks {
            assert!(rank.cell(2, number).is_published());
            assert_eq!(read(rank, number, bytes.len()), Some((number * 10, bytes.clone())));
        }
    }
    assert!(!ranks[1].cell(1, 1).publish(Tag { operation: 0, started: 0 }, &[0; CELL_PAYLOAD + 1]));
}

#[test]
fn cells_hold_more_bytes_behind_those_whose_number_all_know() {
    let ranks = node();
    let tag = Tag { operation: 5, started: 0 };
    let sizes =
        [(8, 0), (8, 32), (8, 33), (40, 0), (40, 1), (41, 1), (8, CELL_PAYLOAD), (64, CELL_PAYLOAD - 64)];
    for (number, (first, second)) in (1..).zip(sizes) {
        let (head, tail) = (vec![3u8; first], (0..second).map(|at| at as u8).collect::<Vec<_>>());
        assert!(fits_cell(first, second) && ranks[0].cell(2, number).publish_both(tag, &head, &tail));
        for rank in &ranks {
            let cell = rank.cell(2, number);
            // SAFETY: nothing is published meanwhile.
            let (found, behind) = unsafe { (cell.read(first).unwrap(), cell.read_behind(first, second)) };
            assert_eq!((found, behind), ((tag, &head[..]), Some(&tail[..])), "{first} and {second} bytes");
        }
    }
    for (first, second) in [(8, CELL_PAYLOAD + 1), (64, CELL_PAYLOAD - 63), (CELL_PAYLOAD + 1, 0)] {
        assert!(!fits_cell(first, second));
        assert!(!ranks[1].cell(1, 1).publish_both(tag, &vec![0; first], &vec![0; second]));
    }
}

#[test]
fn the_first_abort_stands() {
    let ranks = node();
    assert_eq!(ranks[0].abort(), None);
    ranks[1].set_abort(5, 1);
    ranks[2].set_abort(6, 2);
    assert!(ranks.iter().all(|rank| rank.abort() == Some(Abort { culprit: 5, reason: 1 })));
}

#[test]
fn why_a_rank_has_given_up_is_seen_by_all_and_belongs_to_it() {
    let ranks = node();
    assert_eq!(ranks[0].abort_text(5), None);
    let long = format!("\u{201c}{}", "\u{e9}".repeat(2000));
    ranks[1].set_abort_text(5, &long);
    ranks[2].set_abort_text(6, "another");
    let kept = shortened(&long);
    assert!(kept.len() > 1000 && kept.len() <= 1024 && long.starts_with(kept));
    for rank in &ranks {
        assert_eq!((rank.abort_text(5).as_deref(), rank.abort_text(6)), (Some(kept), None));
    }
}

#[test]
fn announcements_are_found_by_number_until_they_are_overwritten() {
    let ranks = node();
    let of = |number| Announcement {
        number,
        shape: number * 2,
        identity: number * 3,
        tensor: number * 5,
        small_before: number * 4,
    };
    let last = ANNOUNCEMENTS as u64 + 40;
    for number in 1..=last {
        ranks[0].announce(of(number), None);
    }
    for number in [41, 42, last - 1, last] {
        assert_eq!(ranks[1].announcement(0, number), Some(of(number)));
    }
    for number in [1, 40, last + 1] {
        assert_eq!(ranks[1].announcement(0, number), None);
    }
    assert_eq!(ranks[1].announcement(1, 1), None);
}

#[test]
fn a_rank_that_has_left_is_not_taken_for_dead() {
    let ranks = node();
    assert!(!ranks[0].has_left(1));
    ranks[1].leave();
    ranks[1].beat(1);
    assert!(ranks[0].has_left(1) && !ranks[0].is_gone(1) && !ranks[0].has_left(2));
}

#[test]
fn a_living_process_is_not_gone_and_beats() {
    let ranks = node();
    let before = ranks[0].heartbeat(1);
    ranks[1].beat(1);
    assert_eq!(ranks[0].heartbeat(1), before + 1);
    assert!(!ranks[0].is_gone(1));
}

#[test]
fn a_rank_that_does_not_come_is_missed() {
    let error =
        pass::meet(&Key::from_secret([9; 32]), 77, 0, SHAPE, Duration::from_millis(30), &mut || Ok(()))
            .unwrap_err();
    assert!(
        matches!(&error, pass::PassError::Missing { missing, .. } if missing.ranks == [232, 233]),
        "{error}"
    );
    let error =
        pass::meet(&Key::from_secret([9; 32]), 78, 1, SHAPE, Duration::from_millis(30), &mut || Ok(()))
            .unwrap_err();
    assert!(matches!(error, pass::PassError::Missing { .. }), "{error}");
    // The same when it is known that it cannot come any more, at once.
    let left = ExchangeError::GaveUp { rank: 7, why: "no memory".into() };
    for (node, local) in [(79, 0), (80, 1)] {
        let mut looks = 0;
        let mut check = || {
            looks += 1;
            if looks == 3 { Err(left.clone()) } else { Ok(()) }
        };
        let secret = Key::from_secret([9; 32]);
        let met = pass::meet(&secret, node, local, SHAPE, Duration::from_secs(600), &mut check);
        assert_eq!(met.unwrap_err().to_string(), left.to_string());
    }
}

/// All ranks of a node, each on a thread, with their results.
fn meeting(
    secret: u8,
    ranks: impl IntoIterator<Item = (u32, SegmentShape)>,
    wait: Duration,
) -> Vec<Result<NodeSegment, String>> {
    let ranks: Vec<_> = ranks
        .into_iter()
        .map(|(local, shape)| {
            let meet = move || {
                pass::meet(
                    &Key::from_secret([secret; 32]),
                    std::process::id(),
                    local,
                    shape,
                    wait,
                    &mut || Ok(()),
                )
            };
            std::thread::spawn(move || meet().map_err(|error| error.to_string()))
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn the_others_hear_at_once_why_the_first_rank_makes_no_memory() {
    let begin = std::time::Instant::now();
    let shape = SegmentShape { lane_bytes: usize::MAX / 2, ..SHAPE };
    let told = meeting(21, [(0, shape), (1, SHAPE), (2, SHAPE)], Duration::from_secs(60));
    let why = told[0].as_ref().unwrap_err();
    assert!(why.contains("do not fit in memory"), "{why}");
    for other in &told[1..] {
        let told = other.as_ref().unwrap_err();
        assert!(told.contains("first rank") && told.contains(why), "{told}");
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn who_has_come_hears_who_has_not() {
    let told = meeting(22, [(0, SHAPE), (1, SHAPE)], Duration::from_secs(2));
    for told in told {
        let told = told.unwrap_err();
        let named = format!("rank {} did not", std::process::id() * SHAPE.ranks + 2);
        // The first rank, which waited for it as well, is not to blame.
        assert!(told.starts_with(&named) && !told.contains("first rank"), "{told}");
    }
}

#[test]
fn arenas_fit_into_the_address_space_that_is_left() {
    let bare = SegmentLayout::new(SegmentShape { arena_bytes: 0, ..SHAPE }).unwrap().total() as u64;
    assert_eq!(SHAPE.within(u64::MAX), SHAPE);
    assert_eq!(SHAPE.within(bare / 2).arena_bytes, 0);
    for room in [bare, bare + (7 << 20), bare + (100 << 20), bare + (10 << 30)] {
        let shape = SHAPE.within(room);
        let total = SegmentLayout::new(shape).unwrap().total() as u64;
        assert!(total <= bare + (room - bare) / 2, "{room}: {shape:?}");
        assert!(
            shape.arena_bytes <= SHAPE.arena_bytes && shape.arena_bytes.is_multiple_of(2 << 20),
            "{shape:?}"
        );
    }
    assert_eq!(SHAPE.within(bare + (100 << 20)).arena_bytes, 16 << 20);
}

/// Other tests go on meanwhile, and have room enough.
#[test]
fn what_the_address_space_has_no_room_for_is_refused_by_the_limits_name() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the write, and below for the read.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) }, 0);
    limit.rlim_cur = (4 << 40).min(limit.rlim_max);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    let error = NodeSegment::create(SegmentShape { arena_bytes: 2 << 40, ..SHAPE }).unwrap_err().to_string();
    assert!(error.contains("RLIMIT_AS") && error.contains("ulimit -v"), "{error}");
}

#[test]
fn another_shape_is_refused() {
    let segment = NodeSegment::create(SHAPE).unwrap();
    let fd = segment.fd().try_clone_to_owned().unwrap();
    let other = SegmentShape { lane_bytes: 4 << 20, ..SHAPE };
    assert!(NodeSegment::attach(fd, other, 1).is_err());
    assert!(NodeSegment::create(SegmentShape { lane_bytes: usize::MAX / 2, ..SHAPE }).is_err());
}

#[test]
fn shared_tensors_are_seen_by_all_and_go_back_zeroed() {
    let ranks: Vec<_> = node().into_iter().map(Arc::new).collect();
    let (first, second) =
        (SharedMemory::new(&ranks[1], 5000).unwrap(), SharedMemory::new(&ranks[1], 9).unwrap());
    let [at, other] = [(&first, 5000), (&second, 9)]
        .map(|(piece, len)| ranks[1].locate(piece.as_ptr().as_ptr(), len).unwrap());
    assert!(other >= at + 5000 && at.is_multiple_of(4096) && other.is_multiple_of(4096));
    assert_eq!(ranks[0].locate(first.as_ptr().as_ptr(), 1), None);
    assert_eq!(ranks[1].locate(first.as_ptr().as_ptr(), SHAPE.arena_bytes + 1), None);
    put(&first, 4999, 7);
    let announcement = |number, offset: usize, shape| Announcement {
        number,
        shape,
        identity: 3,
        tensor: offset as u64 + 1,
        small_before: 0,
    };
    ranks[1].announce(announcement(1, at, 1), None);
    assert!(matches!(ranks[2].tensor(1, 0, 5000), TensorView::Unknown), "this rank has not started it");
    ranks[2].announce(Announcement { tensor: 0, ..announcement(1, 0, 1) }, None);
    let TensorView::Shared(theirs) = ranks[2].tensor(1, 0, 5000) else { panic!("it is shared") };
    assert_eq!(peek(theirs, 4999), 7);
    assert!(matches!(ranks[1].tensor(2, 0, 5000), TensorView::Private));
    assert!(matches!(ranks[1].tensor(0, 0, 5000), TensorView::Unknown));
    // A range that reaches beyond the arena is nobody's tensor, and another operation's tensor is not this one's.
    assert!(matches!(ranks[2].tensor(1, 0, SHAPE.arena_bytes + 1), TensorView::Private));
    ranks[0].announce(announcement(1, at, 2), None);
    assert!(matches!(ranks[2].tensor(0, 0, 5000), TensorView::Unknown));
    drop(first);
    let again = SharedMemory::new(&ranks[1], 5000).unwrap();
    assert_eq!(get(&again, 4999), 0);
    assert!(SharedMemory::new(&ranks[1], SHAPE.arena_bytes).is_none());
    let large = SharedMemory::new(&ranks[0], 3 << 20).unwrap();
    assert_eq!(ranks[0].locate(large.as_ptr().as_ptr(), 3 << 20), Some(0));
}

#[test]
fn a_fenced_tensor_keeps_its_bytes_and_takes_no_others() {
    let ranks: Vec<_> = node().into_iter().map(Arc::new).collect();
    let tensor = SharedMemory::new(&ranks[1], 3 * 4096).unwrap();
    let at = ranks[1].locate(tensor.as_ptr().as_ptr(), 3 * 4096).unwrap();
    let announcement =
        Announcement { number: 1, shape: 1, identity: 3, tensor: at as u64 + 1, small_before: 0 };
    ranks[1].announce(announcement, None);
    ranks[0].announce(Announcement { tensor: 0, ..announcement }, None);
    let TensorView::Shared(theirs) = ranks[0].tensor(1, 0, 3 * 4096) else { panic!("it is shared") };
    for page in 0..3 {
        write(theirs, page * 4096 + 5, 40 + page as u8);
    }
    ranks[1].fence(at + 4096, 4097);
    for page in 0..3 {
        write(theirs, page * 4096 + 5, 99);
    }
    assert_eq!([0, 1, 2].map(|page| get(&tensor, page * 4096 + 5)), [99, 41, 42]);
    put(&tensor, 4096 + 5, 1);
    assert_eq!((get(&tensor, 4096 + 5), peek(theirs, 4096 + 5)), (1, 99));
    assert!(SharedMemory::new(&ranks[1], 1).is_none() && SharedMemory::new(&ranks[0], 1).is_some());
    assert_eq!(ranks[1].locate(tensor.as_ptr().as_ptr(), 1), None);
}

/// In a forked child the memory is not there, and its addresses are free for other memory.
#[test]
fn a_forked_child_lets_go_of_shared_tensors_and_touches_nothing() {
    let first = Arc::new(node().swap_remove(1));
    let mut pieces: Vec<_> = (0..2).map(|_| SharedMemory::new(&first, 4096).unwrap()).collect();
    // With the pieces the segment goes.
    drop(first);
    let addresses: Vec<_> = pieces.iter().map(|piece| piece.as_ptr().as_ptr()).collect();
    let status = in_forked_child(|| {
        for &at in &addresses {
            let (rights, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping, where nothing else may be.
            let memory =
                unsafe { libc::mmap(at.cast(), 4096, rights, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
            assert_eq!(memory, at.cast(), "the child has no memory there");
            // SAFETY: it was mapped above.
            unsafe { at.write_volatile(7) };
        }
        pieces.clear();
        // SAFETY: as above; if they are gone the child ends by a signal.
        u8::from(addresses.iter().all(|at| unsafe { at.read_volatile() } == 7))
    });
    assert_eq!(status, 1, "what the child has mapped there is as it was");
    assert!(pieces.iter().all(|piece| get(piece, 0) == 0), "the parent has its own");
}

/// A piece of rank 0's arena, exposed, as ranks 1 and 2 find it.
fn exposed(ranks: &[Arc<NodeSegment>], piece: &SharedMemory, len: usize) -> (Exposure, [ExposedPiece; 2]) {
    // SAFETY: the piece lives as long as the test.
    let memory = unsafe { TensorRegion::from_raw_parts(MemoryKind::Shared, piece.as_ptr(), len, 0) };
    let exposure = Exposure::new(&ranks[0], &memory).unwrap();
    let found = [1, 2].map(|rank| ExposedPiece::new(&ranks[rank], 0, exposure.place(), len).unwrap());
    (exposure, found)
}

#[test]
fn an_exposed_piece_is_reached_until_it_is_withdrawn() {
    let ranks: Vec<_> = node().into_iter().map(Arc::new).collect();
    let piece = SharedMemory::new(&ranks[0], 100).unwrap();
    let (mut exposure, [one, two]) = exposed(&ranks, &piece, 100);
    write(one.enter().unwrap().memory(), 7, 1);
    assert_eq!(peek(two.enter().unwrap().memory(), 7), 1);
    let inside = two.enter().unwrap();
    exposure.withdraw();
    assert!(one.enter().is_none() && !exposure.is_at_rest(), "rank 2 is inside");
    drop(inside);
    assert!(two.enter().is_none() && exposure.is_at_rest());
    // A rank that is inside another piece since then is not waited for.
    drop(exposure);
    let (mut next, [one, again]) = exposed(&ranks, &piece, 100);
    let inside = one.enter().unwrap();
    assert!(two.enter().is_none(), "that was the piece before");
    next.withdraw();
    drop(inside);
    let other = SharedMemory::new(&ranks[2], 1).unwrap();
    // SAFETY: as above.
    let memory = unsafe { TensorRegion::from_raw_parts(MemoryKind::Shared, other.as_ptr(), 1, 0) };
    let own = Exposure::new(&ranks[2], &memory).unwrap();
    let theirs = ExposedPiece::new(&ranks[1], 2, own.place(), 1).unwrap();
    drop(theirs.enter().unwrap());
    drop(own);
    assert!(again.enter().is_none() && next.is_at_rest());
    assert!(theirs.enter().is_none(), "an exposure that is dropped is withdrawn");
}

#[test]
fn an_exposure_that_ends_while_a_rank_is_inside_takes_the_memory_away() {
    let ranks: Vec<_> = node().into_iter().map(Arc::new).collect();
    let piece = SharedMemory::new(&ranks[0], 100).unwrap();
    // One that was at rest is done with, whoever is inside another piece when it is dropped.
    let (mut exposure, [_, two]) = exposed(&ranks, &piece, 100);
    let (other, [one, _]) = exposed(&ranks, &piece, 100);
    exposure.withdraw();
    assert!(two.enter().is_none() && exposure.is_at_rest());
    let inside = one.enter().unwrap();
    drop(exposure);
    assert!(!ranks[0].is_fenced());
    write(inside.memory(), 7, 1);
    assert_eq!(get(&piece, 7), 1);
    drop(other);
    assert!(ranks[0].is_fenced());
    write(inside.memory(), 7, 2);
    assert_eq!(get(&piece, 7), 1, "it arrives at the owner no more");
}

#[test]
fn places_that_are_none_are_refused() {
    let ranks: Vec<_> = node().into_iter().map(Arc::new).collect();
    let piece = SharedMemory::new(&ranks[0], 4096).unwrap();
    let (exposure, _) = exposed(&ranks, &piece, 4096);
    let place = exposure.place();
    let find = |local, place, len| ExposedPiece::new(&ranks[1], local, place, len).is_some();
    assert!(find(0, place, 4096));
    assert!(!find(3, place, 4096) && !find(0, [0, place[1]], 1) && !find(0, place, SHAPE.arena_bytes + 1));
    assert!(!find(0, [u64::MAX, place[1]], 1) && !find(0, [place[0], u64::MAX], 1));
    let own = [0u8; 64];
    // SAFETY: nothing is read or written.
    let memory = unsafe {
        TensorRegion::from_raw_parts(MemoryKind::Host, std::ptr::NonNull::from(&own).cast(), 64, 0)
    };
    assert!(Exposure::new(&ranks[0], &memory).is_none(), "it lies elsewhere");
    assert!(Exposure::new(&ranks[0], &TensorRegion::empty()).is_none());
    // SAFETY: as above.
    let memory = unsafe { TensorRegion::from_raw_parts(MemoryKind::Shared, piece.as_ptr(), 1, 0) };
    let all: Vec<_> = std::iter::from_fn(|| Exposure::new(&ranks[0], &memory)).collect();
    assert_eq!(all.len(), super::layout::EXPOSURES - 1, "there are so many");
    drop(all);
    assert!(Exposure::new(&ranks[0], &memory).is_some());
}
