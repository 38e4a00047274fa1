//! Tests with ranks that are threads of this process.
#![allow(unsafe_code)]

use std::thread;

use half::{bf16, f16};
use num_complex::Complex;

use super::super::tests::{each, ranks, ranks_on, ranks_with};
use super::*;
use crate::allocations;
use crate::{Element, Exchange, F8E4M3, Strided, StridedMut, TensorSpec};

/// Cells within a host, one message, several chunks.
const COUNTS: [usize; 4] = [0, 5, 1000, 60_007];

/// The factor of a rank: none is exact in f16.
fn factor(rank: u32) -> f64 {
    [1.0 / 3.0, -0.7, 1e-3, 12.34][rank as usize % 4]
}

/// The bytes of elements.
fn bytes<T: Element>(data: &[T]) -> Vec<u8> {
    // SAFETY: plain numbers.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }.to_vec()
}

/// Every sum with factors has the bits of the sum of products, which `product` rounds as documented.
fn sums_of_products<T: Element>(make: fn(f32) -> T, product: fn(T, f64) -> T) {
    for (hosts, size) in [(1, 1), (1, 3), (2, 4)] {
        let group = ranks_on(hosts, size);
        each(&group, |rank| {
            let (n, me) = (rank.size() as usize, rank.rank());
            let factor = factor(me);
            let premul = rank.premul(factor);
            let sum = ReduceOp::Sum;
            for count in COUNTS {
                let element = |at: usize| make((at * 7 % 613) as f32 / 16.0 - 11.0 + me as f32);
                let given: Vec<T> = (0..count * n).map(element).collect();
                let products: Vec<T> = given.iter().map(|x| product(*x, factor)).collect();
                let zeros = |count| vec![make(0.0); count];

                let (mut due, mut found) = (products.clone(), given.clone());
                rank.all_reduce(&mut due, sum).unwrap();
                premul.all_reduce(&mut found).unwrap();
                assert!(bytes(&found) == bytes(&due), "all-reduce of {count}");
                let mut apart = zeros(given.len());
                premul.all_reduce_into(&given, &mut apart).unwrap();
                assert!(bytes(&apart) == bytes(&due), "all-reduce of {count}");

                let root = (count % n) as u32;
                let (mut due, mut found) = (products.clone(), given.clone());
                rank.reduce(&mut due, sum, root).unwrap();
                premul.reduce(&mut found, root).unwrap();
                let due = if me == root { &due } else { &given };
                assert!(bytes(&found) == bytes(due), "reduce of {count}");

                let (mut due, mut found) = (zeros(count), zeros(count));
                rank.reduce_scatter(&products, &mut due, sum).unwrap();
                premul.reduce_scatter(&given, &mut found).unwrap();
                assert!(bytes(&found) == bytes(&due), "reduce-scatter of {count}");

                let mut counts = vec![count / 2; n];
                counts[n - 1] += given.len() - counts.iter().sum::<usize>();
                let (mut due, mut found) = (zeros(counts[me as usize]), zeros(counts[me as usize]));
                rank.reduce_scatter_v(&products, &mut due, &counts, sum).unwrap();
                premul.reduce_scatter_v(&given, &mut found, &counts).unwrap();
                assert!(bytes(&found) == bytes(&due), "reduce-scatter-v of {count}");

                let (mut due, mut found) = (zeros(given.len()), zeros(given.len()));
                rank.scan(&products, &mut due, sum).unwrap();
                premul.scan(&given, &mut found).unwrap();
                assert!(bytes(&found) == bytes(&due), "scan of {count}");
                let (mut due, mut found) = (zeros(given.len()), zeros(given.len()));
                rank.exscan(&products, &mut due, sum).unwrap();
                premul.exscan(&given, &mut found).unwrap();
                assert!(bytes(&found) == bytes(&due), "exscan of {count}");
            }
        });
    }
}

#[test]
fn sums_with_factors_have_the_bits_of_sums_of_products() {
    sums_of_products(|x| x, |x: f32, factor| x * factor as f32);
    sums_of_products(f64::from, |x, factor| x * factor);
}

#[test]
fn products_of_narrow_and_complex_numbers_are_rounded_once_before_the_sum() {
    sums_of_products(f16::from_f32, |x, factor| f16::from_f32(x.to_f32() * factor as f32));
    sums_of_products(bf16::from_f32, |x, factor| bf16::from_f32(x.to_f32() * factor as f32));
    sums_of_products(F8E4M3::from_f32, |x, factor| F8E4M3::from_f32(x.to_f32() * factor as f32));
    let product = |x: Complex<f32>, factor| Complex::new(x.re * factor as f32, x.im * factor as f32);
    sums_of_products(|x| Complex::new(x, 1.0 - x), product);
}

#[test]
fn the_second_staged_start_of_a_registered_tensor_allocates_nothing() {
    for mode in ["", "dedicated"] {
        let group = ranks_with(1, 2, mode);
        let spec = TensorSpec::all_reduce("t", DType::F32, 30_000, ReduceOp::Sum);
        let ids = each(&group, |rank| rank.register(std::slice::from_ref(&spec)).unwrap()[0]);
        let mut counted = vec![];
        let mut data = [1f32, 3.0].map(|x| vec![x; 60_000]);
        // Every other element of the output.
        let layout = Layout { count: 30_000, block: 1, stride: 2 };
        for round in 0..12 {
            let mut works = Vec::with_capacity(2);
            let before = allocations::count();
            for (rank, data) in group.iter().zip(&mut data) {
                let at = data.as_mut_ptr().cast::<u8>();
                let staging = Staging {
                    factor: Some(0.5),
                    input: Some(layout),
                    output: Some(layout),
                    cuda_stream: None,
                };
                // SAFETY: as long as the layout says, and left alone until the waits.
                works.push(unsafe { rank.push_staged(ids[0], at, at, &staging) }.unwrap());
            }
            counted.push(allocations::count() - before);
            works.iter().for_each(|work| work.wait(None).unwrap());
            for (data, odd) in data.iter().zip([1f32, 3.0]) {
                assert!(data.chunks(2).all(|pair| pair == [2.0, odd]), "{mode}, round {round}");
            }
        }
        // The first start of each rank makes its schedule and its memory.
        assert!(allocations::settle(&counted), "{mode}: {counted:?}");
        assert!(counted[0] > 0, "the counter counts");
    }
}

#[test]
fn what_has_no_factor_and_layouts_that_cannot_be_are_refused_and_the_group_goes_on() {
    let group = ranks(2);
    each(&group, |rank| {
        let mut data = [1f32; 64];
        let mut call = CollectiveCall {
            collective: Collective::AllReduce,
            input: data.as_ptr().cast(),
            output: data.as_mut_ptr().cast(),
            count: 4,
            dtype: DType::F32,
            op: ReduceOp::Sum,
            root: 0,
        };
        let layout = |count, block, stride| Layout { count, block, stride };
        let input = |layout| Staging { input: Some(layout), ..Staging::default() };
        let output = |layout| Staging { output: Some(layout), ..Staging::default() };
        let refused = |call: &CollectiveCall, staging: &Staging, with: &[&str]| {
            // SAFETY: they are refused.
            let errors =
                unsafe { [rank.run_staged(call, staging), rank.start_staged(call, staging).map(drop)] };
            for error in errors {
                let error = error.unwrap_err();
                assert!(matches!(error, Error::Argument(_)), "{error:?}");
                let text = error.to_string();
                assert!(with.iter().all(|with| text.contains(with)), "{text}");
            }
        };
        refused(&call, &input(layout(4, 0, 1)), &["blocks of no elements"]);
        refused(&call, &output(layout(2, 2, 1)), &["overlap", "stride of 2 at least"]);
        refused(&call, &output(layout(4, 1, usize::MAX / 4)), &["does not fit in memory"]);
        refused(&call, &input(layout(5, 1, 2)), &["has 5 elements", "has 4 there"]);
        refused(&call, &output(layout(3, 1, 2)), &["has 3 elements"]);
        let scaled = Staging::factor(0.5);
        for (op, dtype) in
            [(ReduceOp::Max, DType::F32), (ReduceOp::Avg, DType::F32), (ReduceOp::Prod, DType::F32)]
        {
            (call.op, call.dtype) = (op, dtype);
            refused(&call, &scaled, &[op.name(), "has no factor; sums have one"]);
        }
        call.op = ReduceOp::Sum;
        for dtype in [DType::I32, DType::U32] {
            call.dtype = dtype;
            refused(&call, &scaled, &[dtype.name(), "no factor", "where they are made"]);
        }
        (call.collective, call.dtype) = (Collective::Broadcast, DType::F32);
        refused(&call, &scaled, &["broadcast has no factor"]);
        call.input = std::ptr::null();
        call.collective = Collective::AllGather;
        refused(&call, &input(layout(2, 2, 3)), &["NULL"]);
        let truths = rank.premul(2.0).all_reduce(&mut [crate::Bool::from(true)]).unwrap_err();
        assert!(matches!(truths, Error::Argument(_)), "{truths}");
        let beyond = StridedMut::new(&mut data, layout(23, 1, 3)).map(drop).unwrap_err();
        assert!(beyond.to_string().contains("ends after 67 elements, and the buffer has 64"), "{beyond}");
        let beyond = Strided::new(&data[..], layout(9, 1, 8)).map(drop).unwrap_err();
        assert!(beyond.to_string().contains("ends after 65 elements, and the buffer has 64"), "{beyond}");
        rank.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [2.0; 64]);
    });
}

/// The element of rank `from` at `at`.
fn given(from: u32, at: usize) -> u64 {
    u64::from(from + 1) << 40 | at as u64
}

/// Elements in some blocks, in the midst of others.
struct Matrix {
    data: Vec<u64>,
    layout: Layout,
}

impl Matrix {
    const ELSE: u64 = u64::MAX;

    fn new(count: usize, block: usize, gap: usize) -> Self {
        let layout = Layout { count: count / block, block, stride: block + gap };
        Self { data: vec![Self::ELSE; layout.span().unwrap() + 3], layout }
    }

    fn of(count: usize, block: usize, gap: usize, element: impl Fn(usize) -> u64) -> Self {
        let mut made = Self::new(count, block, gap);
        for at in 0..count / block * block {
            made.data[at / block * (block + gap) + at % block] = element(at);
        }
        made
    }

    fn strided(&self) -> Strided<'_, u64> {
        Strided::new(&self.data, self.layout).unwrap()
    }

    fn strided_mut(&mut self) -> StridedMut<'_, u64> {
        StridedMut::new(&mut self.data, self.layout).unwrap()
    }
}

#[test]
fn collectives_move_blocks_into_other_blocks_and_leave_the_rest() {
    for (hosts, size) in [(1, 1), (1, 3), (2, 4)] {
        let group = ranks_on(hosts, size);
        each(&group, |rank| {
            let (n, me) = (rank.size() as usize, rank.rank());
            for count in [0, 12, 600, 60_000] {
                // Ranks differ in their layouts, and some have none.
                let (block, gap) = ([1, 2, 3, 4][(me as usize + count) % 4], me as usize % 3);
                let check = |what: &str, found: &Matrix, due: Matrix| {
                    assert!(found.data == due.data, "{what} of {count} on rank {me}");
                };
                let root = (count / 12 % n) as u32;
                let element = |at| given(root, at);
                let mut data = match me == root {
                    true => Matrix::of(count, block, gap, element),
                    false => Matrix::new(count, block, gap),
                };
                rank.broadcast_strided(data.strided_mut(), root).unwrap();
                check("broadcast", &data, Matrix::of(count, block, gap, element));

                let own = Matrix::of(count, block, gap, |at| given(me, at));
                let all = |at: usize| given((at / count) as u32, at % count);
                let mut into = Matrix::new(count * n, block, gap + 1);
                rank.all_gather_strided(own.strided(), into.strided_mut()).unwrap();
                check("all-gather", &into, Matrix::of(count * n, block, gap + 1, all));

                let mut into = Matrix::new(if me == root { count * n } else { 0 }, block, gap);
                rank.gather_strided(own.strided(), into.strided_mut(), root).unwrap();
                let due = if me == root { count * n } else { 0 };
                check("gather", &into, Matrix::of(due, block, gap, all));

                let from = Matrix::of(if me == root { count * n } else { 0 }, 3, 2, |at| given(root, at));
                let mut into = Matrix::new(count, block, gap);
                rank.scatter_strided(from.strided(), into.strided_mut(), root).unwrap();
                check(
                    "scatter",
                    &into,
                    Matrix::of(count, block, gap, |at| given(root, me as usize * count + at)),
                );

                let from: Vec<u64> = (0..count * n).map(|at| given(me, at)).collect();
                let mut into = Matrix::new(count * n, block, gap);
                rank.all_to_all_strided(&from[..], into.strided_mut()).unwrap();
                let each = |at: usize| given((at / count) as u32, me as usize * count + at % count);
                check("all-to-all", &into, Matrix::of(count * n, block, gap, each));
            }
        });
    }
}

#[test]
fn messages_go_from_blocks_to_other_blocks() {
    for (hosts, size) in [(1, 2), (2, 2)] {
        let group = ranks_on(hosts, size);
        each(&group, |rank| {
            let (me, other) = (rank.rank(), 1 - rank.rank());
            for count in [0, 6, 600, 300_000] {
                let own = Matrix::of(count, [1, 3][me as usize], 1, |at| given(me, at));
                // Room for more than comes.
                let mut into = Matrix::new(count + 6, 2, 5);
                let mut plain = vec![0; count];
                let mut exchanges = [
                    Exchange::receive_strided(into.strided_mut(), other, 1),
                    Exchange::receive(&mut plain, other, 2),
                    Exchange::send_strided(own.strided(), other, 1),
                    Exchange::send_strided(own.strided(), other, 2),
                ];
                let ended: Vec<_> = rank.batch(&mut exchanges).into_iter().map(Result::unwrap).collect();
                assert_eq!(ended[0].count, count as u64);
                let mut due = Matrix::of(count, 2, 5, |at| given(other, at)).data;
                due.resize(into.data.len(), Matrix::ELSE);
                assert!(into.data == due, "{count}");
                assert!(plain.iter().enumerate().all(|(at, x)| *x == given(other, at)), "{count}");
            }
            // Started, from addresses; and one that is too short for its message stays as it is.
            let (layout, mut data) = (Layout { count: 2, block: 1, stride: 2 }, [[Matrix::ELSE; 3]; 2]);
            let at = data.each_mut().map(|data| data.as_mut_ptr().cast());
            // SAFETY: each is left alone until its wait.
            let started = [1, 2].map(|tag| unsafe {
                let receive = Exchange::receive_raw(at[tag - 1], 2, DType::U64, other, tag as u32).unwrap();
                rank.start_message(receive.strided_raw(layout).unwrap()).unwrap()
            });
            let sent = rank.batch(&mut [Exchange::send(&[1u64, 2, 3], other, 1).synchronous()]).remove(0);
            assert!(matches!(sent, Err(Error::Mismatch { .. })), "{sent:?}");
            assert!(matches!(started[0].wait(None), Err(Error::Mismatch { .. })));
            rank.send(&[given(me, 0), given(me, 1)], other, 2).unwrap();
            started[1].wait(None).unwrap();
            let both = [[Matrix::ELSE; 3], [given(other, 0), Matrix::ELSE, given(other, 1)]];
            assert_eq!(data, both);
            // SAFETY: it is refused.
            let refused = unsafe {
                let receive = Exchange::receive_raw(at[0], 3, DType::U64, other, 2).unwrap();
                receive.strided_raw(layout).map(drop).unwrap_err()
            };
            assert!(
                refused.to_string().contains("has 2 elements, and the operation has 3 there"),
                "{refused}"
            );
        });
    }
}

#[test]
fn an_operation_that_fails_leaves_blocks_as_they_were() {
    for count in [2, 60_000] {
        let mut group = ranks(2);
        let own: Vec<u64> = (0..count).map(|at| given(0, at)).collect();
        let mut into = Matrix::new(2 * count, 2, 1);
        let staging = Staging { output: Some(into.layout), ..Staging::default() };
        let call = CollectiveCall {
            collective: Collective::AllGather,
            input: own.as_ptr().cast(),
            output: into.data.as_mut_ptr().cast(),
            count,
            dtype: DType::U64,
            op: ReduceOp::Sum,
            root: 0,
        };
        let other = group.pop().unwrap();
        let rank = group.pop().unwrap();
        // SAFETY: left alone until it has ended.
        let work = unsafe { rank.start_staged(&call, &staging) }.unwrap();
        let leaving = thread::spawn(move || drop(other));
        let error = work.wait(None).unwrap_err();
        assert_eq!(error.rank(), Some(1), "{error}");
        leaving.join().unwrap();
        assert!(into.data.iter().all(|x| *x == Matrix::ELSE));
    }
}

#[test]
fn a_staging_area_beyond_memory_is_an_error() {
    let group = ranks(1);
    // Addresses have fewer bits.
    let call = CollectiveCall {
        collective: Collective::AllReduce,
        input: std::ptr::dangling::<f64>().cast(),
        output: std::ptr::dangling_mut::<f64>().cast(),
        count: 1 << 47,
        dtype: DType::F64,
        op: ReduceOp::Sum,
        root: 0,
    };
    // SAFETY: it is refused before anything is read.
    let refused = unsafe { group[0].run_staged(&call, &Staging::factor(0.5)) }.unwrap_err();
    assert!(matches!(&refused, Error::Argument(why) if why.contains("no memory")), "{refused}");
}
