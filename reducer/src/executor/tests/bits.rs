//! The bits of an element depend on the grid, its type, the reduction and the plan; not on the tensor's size or place, nor on the way
//! that the sum has taken.

use super::harness::{Buffer, Faults, Group, shape};
use crate::cost;
use crate::dtype::{DType, ReduceOp};
use crate::executor::Request;
use crate::grid::tests::any_levels;
use crate::grid::{Grid, Rank};
use crate::header::{Collective, Shape};
use crate::kernel::Kernels;
use crate::memory::TensorRegion;
use crate::schedule::Algorithm;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;

/// Elements that all tensors begin with.
const COMMON: usize = 24;

/// The contribution of a rank: numbers whose sums round, and those where rounding goes wrong first.
fn contribution(rng: &mut SmallRng, dtype: DType, count: usize) -> Vec<u8> {
    let f16s = [0x0001u16, 0x8001, 0x7bff, 0xfbff, 0x7c00, 0x7e01, 0x8000, 0x3c00, 0x1400, 0x6800];
    let bf16s = [0x0001u16, 0x8001, 0x7f7f, 0xff7f, 0x7f80, 0x7fc1, 0x8000, 0x3f80, 0x3b80, 0x4b80];
    (0..count)
        .flat_map(|index| {
            let adversarial = index % 2 == 1;
            match dtype {
                DType::F16 if adversarial => f16s[rng.random_range(0..f16s.len())].to_le_bytes().to_vec(),
                DType::Bf16 if adversarial => bf16s[rng.random_range(0..bf16s.len())].to_le_bytes().to_vec(),
                DType::F16 => (rng.random::<u16>() & 0x8fff | 0x3000).to_le_bytes().to_vec(),
                DType::Bf16 => (rng.random::<u16>() & 0x83ff | 0x3c00).to_le_bytes().to_vec(),
                DType::F32 => (rng.random::<u32>() & 0x87ff_ffff | 0x3c00_0000).to_le_bytes().to_vec(),
                _ => (0..dtype.size()).map(|_| rng.random()).collect(),
            }
        })
        .collect()
}

fn run(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let hosts: [&[u32]; 11] = [
        &[3],
        &[2; 3],
        &[3; 2],
        &[1; 5],
        &[3; 3],
        &[1; 8],
        &[2; 4],
        &[3, 1],
        &[1, 3],
        &[2, 1, 1, 3],
        &[1, 1, 4, 1, 2],
    ];
    let grid =
        Grid::of_hosts(hosts[rng.random_range(0..hosts.len())]).unwrap().with_levels(any_levels(&mut rng));
    let ranks = grid.ranks();
    let round = |dtype: &DType| matches!(dtype, DType::F16 | DType::Bf16 | DType::F32);
    // Half of them are those whose sums round most.
    let dtypes: Vec<DType> =
        DType::ALL.iter().copied().filter(|dtype| seed.is_multiple_of(2) || round(dtype)).collect();
    let dtype = dtypes[rng.random_range(0..dtypes.len())];
    let ops: Vec<ReduceOp> = ReduceOp::ALL.iter().copied().filter(|op| op.is_of(dtype)).collect();
    let op = ops[rng.random_range(0..ops.len())];
    let mut group = Group::new(seed, grid, Faults::default(), |_| {});
    let common: Vec<Vec<u8>> = (0..ranks).map(|_| contribution(&mut rng, dtype, COMMON)).collect();
    let (mut work, mut all) = (vec![VecDeque::new(); ranks as usize], Vec::new());
    for (algorithm, count, place) in [
        (Algorithm::Direct, COMMON, 0),
        (Algorithm::Direct, 3000, 0),
        (Algorithm::Hierarchical, COMMON, 0),
        (Algorithm::Hierarchical, 700, 0),
        (Algorithm::Hierarchical, 3000, 1),
        (Algorithm::Direct, 300, 1),
        (Algorithm::Hierarchical, 700, 2),
        (Algorithm::Direct, COMMON, 2),
        (Algorithm::Bruck, COMMON, 0),
        (Algorithm::Bruck, 700, 2),
        // In another order, these two in the same one.
        (Algorithm::RecursiveDoubling, COMMON, 0),
        (Algorithm::RecursiveDoubling, 700, 2),
        (Algorithm::HalvingDoubling, COMMON, 1),
        (Algorithm::HalvingDoubling, 3000, 0),
    ] {
        let shape = shape(dtype, op, count as u64);
        let buffers: Vec<_> = common
            .iter()
            .map(|bytes| {
                let mut bytes = bytes.clone();
                bytes.extend(contribution(&mut rng, dtype, count - COMMON));
                Buffer::new(&bytes)
            })
            .collect();
        for (rank, buffer) in (0..).zip(&buffers) {
            let mut request = match place {
                2 => group.device_request(Rank(rank), algorithm, shape, buffer),
                _ => group.request(Rank(rank), algorithm, shape, buffer),
            };
            if place == 1 {
                request.data = buffer.shared();
            }
            work[rank as usize].push_back(request);
        }
        all.push((algorithm, count, place, buffers));
    }
    let what = format!("seed {seed}: {op} of {dtype} on {grid:?}");
    group.run(work, &what);
    assert!(group.completed.iter().flatten().all(|completed| completed.result.is_ok()), "{what}");
    let bytes = COMMON * dtype.size();
    let doubles = |algorithm| matches!(algorithm, Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling);
    for (algorithm, count, place, buffers) in &all {
        let alike = all.iter().find(|other| doubles(other.0) == doubles(*algorithm)).unwrap();
        let expected = alike.3[0].bytes();
        for (rank, buffer) in buffers.iter().enumerate() {
            let found = &buffer.bytes()[..bytes];
            assert_eq!(
                found,
                &expected[..bytes],
                "{what}: {algorithm:?}, {count}, place {place}, rank {rank}"
            );
        }
    }
}

#[test]
fn the_bits_of_an_element_do_not_depend_on_the_tensor_around_it() {
    (0..300).for_each(run);
}

/// A scan has the bits of one fold in rank order, whichever grid it is done on, and in whatever way.
fn scan(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let hosts: [&[u32]; 9] =
        [&[3], &[2; 3], &[3; 2], &[1; 5], &[1], &[1; 8], &[2; 4], &[3, 1], &[1, 2, 1, 3]];
    let grid = Grid::of_hosts(hosts[rng.random_range(0..hosts.len())]).unwrap();
    let ranks = grid.ranks();
    let dtype = [DType::F16, DType::Bf16, DType::F32][rng.random_range(0..3)];
    let op = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max][rng.random_range(0..3)];
    let mut group = Group::new(seed, grid, Faults::default(), |_| {});
    let (mut work, mut all) = (vec![VecDeque::new(); ranks as usize], Vec::new());
    for (algorithm, count) in
        [(Algorithm::Direct, COMMON), (Algorithm::Direct, 700), (Algorithm::Hierarchical, 700)]
    {
        let shape = Shape { collective: Collective::Scan, ..shape(dtype, op, count as u64) };
        let inputs: Vec<_> = (0..ranks).map(|_| contribution(&mut rng, dtype, count)).collect();
        let buffers: Vec<_> = inputs.iter().map(|bytes| Buffer::new(bytes)).collect();
        for (rank, buffer) in (0..).zip(&buffers) {
            let request = group.request(Rank(rank), algorithm, shape, buffer);
            work[rank as usize].push_back(Request { input: buffer.region, ..request });
        }
        all.push((algorithm, inputs, buffers));
    }
    let what = format!("seed {seed}: {op} of {dtype} on {grid:?}");
    group.run(work, &what);
    assert!(group.completed.iter().flatten().all(|completed| completed.result.is_ok()), "{what}");
    for (algorithm, inputs, buffers) in &all {
        for (rank, buffer) in buffers.iter().enumerate() {
            let sources: Vec<&[u8]> = inputs[..=rank].iter().map(Vec::as_slice).collect();
            let mut expected = inputs[0].clone();
            if rank > 0 {
                Kernels::detect().fold(dtype, op, &mut expected, &sources);
            }
            assert_eq!(buffer.bytes(), expected, "{what}: {algorithm:?}, rank {rank}");
        }
    }
}

#[test]
fn a_scan_has_the_bits_of_one_fold_in_rank_order() {
    (0..150).for_each(scan);
}

/// All algorithms among which figures of the cost model choose give the same bits.
fn chosen(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let hosts: [&[u32]; 8] =
        [&[3], &[2; 3], &[1; 5], &[3; 3], &[1; 8], &[3, 1], &[2, 1, 1, 3], &[1, 4, 1, 2]];
    let grid =
        Grid::of_hosts(hosts[rng.random_range(0..hosts.len())]).unwrap().with_levels(any_levels(&mut rng));
    let dtype = [DType::F16, DType::Bf16, DType::F32][rng.random_range(0..3)];
    let collective = [Collective::AllReduce, Collective::Reduce][rng.random_range(0..2)];
    let shape = Shape { collective, ..shape(dtype, ReduceOp::Sum, 700) };
    let candidates: Vec<_> = cost::candidates(&shape).filter(|one| one.serves(collective, &grid)).collect();
    assert!(candidates.len() > 2, "{collective} on {grid:?}: {candidates:?}");
    let mut group = Group::new(seed, grid, Faults::default(), |_| {});
    let inputs: Vec<_> = (0..grid.ranks()).map(|_| contribution(&mut rng, dtype, 700)).collect();
    let (mut work, mut results) = (vec![VecDeque::new(); inputs.len()], Vec::new());
    for &algorithm in &candidates {
        let buffers: Vec<_> = inputs.iter().map(|bytes| Buffer::new(bytes)).collect();
        for (rank, buffer) in (0..).zip(&buffers) {
            let mut request = group.request(Rank(rank), algorithm, shape, buffer);
            if collective == Collective::Reduce {
                request.input = buffer.region;
                request.data = if rank == 0 { buffer.region } else { TensorRegion::empty() };
            }
            work[rank as usize].push_back(request);
        }
        results.push(buffers);
    }
    let what = format!("seed {seed}: {collective} of {dtype} on {grid:?}");
    group.run(work, &what);
    assert!(group.completed.iter().flatten().all(|completed| completed.result.is_ok()), "{what}");
    for (algorithm, buffers) in candidates.iter().zip(&results) {
        assert_eq!(buffers[0].bytes(), results[0][0].bytes(), "{what}: {algorithm:?}");
    }
}

#[test]
fn what_figures_choose_has_the_same_bits() {
    (0..200).for_each(chosen);
}
