use super::*;

/// Everything that was written, as one byte string.
fn read(memory: &Memory, runs: &[Allocation]) -> Vec<u8> {
    runs.iter().flat_map(|run| memory.extent(run).as_bytes().to_vec()).collect()
}

fn write(memory: &mut Memory, runs: &mut Vec<Allocation>, mut bytes: &[u8]) -> usize {
    let mut all = 0;
    while !bytes.is_empty() {
        let (run, taken) = memory.append(runs.last_mut(), bytes);
        runs.extend(run);
        if taken == 0 {
            break;
        }
        all += taken;
        bytes = &bytes[taken..];
    }
    all
}

#[test]
fn bytes_come_back_as_they_were_written() {
    let mut memory = Memory::new(1 << 20);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let (mut expect_a, mut expect_b) = (Vec::new(), Vec::new());
    for round in 0..2000u32 {
        let len = (round * 7919 % 300) as usize;
        let bytes = vec![round as u8; len];
        assert_eq!(write(&mut memory, &mut a, &bytes), len);
        expect_a.extend_from_slice(&bytes);
        if round % 3 == 0 {
            assert_eq!(write(&mut memory, &mut b, &[!round as u8; 11]), 11);
            expect_b.extend_from_slice(&[!round as u8; 11]);
        }
    }
    assert_eq!(read(&memory, &a), expect_a);
    assert_eq!(read(&memory, &b), expect_b);
}

#[test]
fn consecutive_small_writes_of_one_connection_are_one_run() {
    let mut memory = Memory::new(1 << 20);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..16 {
        write(&mut memory, &mut a, &[1; 8]);
        write(&mut memory, &mut b, &[2; 8]);
    }
    assert_eq!((a.len(), b.len()), (1, 1));
}

#[test]
fn a_long_write_is_contiguous_but_for_the_ends_of_blocks() {
    let mut memory = Memory::new(1 << 20);
    let mut runs = Vec::new();
    for _ in 0..8 {
        write(&mut memory, &mut runs, &[3; BLOCK / 4]);
    }
    assert_eq!(runs.len(), 2);
}

#[test]
fn the_limit_holds_and_released_blocks_come_back_only_when_frames_are_gone() {
    let mut memory = Memory::new(2 * BLOCK);
    let mut runs = Vec::new();
    assert_eq!(write(&mut memory, &mut runs, &vec![5; 3 * BLOCK]), 2 * BLOCK);
    assert_eq!(memory.held(), 2 * BLOCK);
    for run in runs.drain(..) {
        memory.release(run);
    }
    assert_eq!(write(&mut memory, &mut runs, b"more"), 0, "a frame may still refer to the blocks");
    memory.on_frames_released();
    assert_eq!(write(&mut memory, &mut runs, b"more"), 4);
    assert_eq!(memory.held(), 2 * BLOCK);
}

#[test]
fn an_exchange_of_small_messages_stays_in_one_block() {
    let mut memory = Memory::new(1 << 20);
    for _ in 0..10_000 {
        let mut runs = Vec::new();
        write(&mut memory, &mut runs, &[9; 64]);
        runs.into_iter().for_each(|run| memory.release(run));
        memory.on_frames_released();
    }
    assert_eq!(memory.held(), BLOCK);
}

#[test]
fn what_a_burst_took_is_given_back() {
    let mut memory = Memory::new(usize::MAX);
    let mut runs = Vec::new();
    write(&mut memory, &mut runs, &vec![1; 200 * BLOCK]);
    assert_eq!(memory.held(), 200 * BLOCK);
    runs.drain(..).for_each(|run| memory.release(run));
    memory.on_frames_released();
    assert!(memory.held() <= (SPARE + 1) * BLOCK, "{}", memory.held());
    assert_eq!(write(&mut memory, &mut runs, &vec![2; 200 * BLOCK]), 200 * BLOCK);
    assert_eq!(read(&memory, &runs), vec![2; 200 * BLOCK]);
}
