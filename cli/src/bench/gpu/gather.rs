//! Small tensors packed into a buffer and back, and checksums of device memory.
#![allow(unsafe_code)]

use rand::Rng;
use shouter_netstack::crc::crc32c;
use shouter_reducer::cuda::kernel::{PackedPiece, Packing};

use super::bits::{Bench, CheckResult, Image, difference};
use crate::failure::CommandError;

/// Bytes of an arena that holds all tensors here.
pub(super) const ROOM: usize = 4 << 20;
/// The longest tensor that is packed here, in bytes.
const LONGEST: usize = 5000;

/// Tensors of 1 to [`LONGEST`] bytes, each at any address, into a buffer and back.
pub(super) fn pieces(bench: &mut Bench<'_>) -> CheckResult {
    let mut cases = 0;
    for many in [1, 2, 31, 100] {
        for unpack in [false, true] {
            cases += 1;
            if let Some(at) = packed(bench, many, unpack)? {
                let what = if unpack { "unpacked" } else { "packed" };
                return Ok((cases, Some(format!("{many} tensors {what}: byte {at} of the image is wrong"))));
            }
        }
    }
    Ok((cases, None))
}

/// Packs or unpacks; returns the first offset at which the memory is wrong.
fn packed(bench: &mut Bench<'_>, many: usize, unpack: bool) -> Result<Option<usize>, CommandError> {
    let rng = &mut bench.rng;
    let (mut image, mut ranges, mut buffer) = (Image::default(), vec![], vec![]);
    for _ in 0..many {
        let tensor: Vec<u8> = (0..rng.random_range(1..=LONGEST)).map(|_| rng.random()).collect();
        let offset = buffer.len() + rng.random_range(0..20);
        buffer.resize(offset, 0x77);
        buffer.extend_from_slice(&tensor);
        let shift = rng.random_range(0..16);
        // The destination begins with other bytes.
        let there = if unpack { vec![0x11; tensor.len()] } else { tensor.clone() };
        ranges.push((image.add(&there, shift), offset, tensor));
    }
    let begin: Vec<u8> = if unpack { buffer.clone() } else { vec![0x77; buffer.len()] };
    let buffer_at = image.add(&begin, 3);
    let address = bench.arena.address();
    let table: Vec<u8> = ranges
        .iter()
        .map(|(at, offset, tensor)| PackedPiece {
            address: address + *at as u64,
            bytes: tensor.len() as u64,
            offset: *offset as u64,
        })
        .flat_map(|piece| [piece.address, piece.bytes, piece.offset].map(u64::to_le_bytes).concat())
        .collect();
    let table_at = image.add(&table, 0);
    let image = image.end();
    let mut expected = image.clone();
    if unpack {
        ranges.iter().for_each(|(at, _, tensor)| expected[*at..*at + tensor.len()].copy_from_slice(tensor));
    } else {
        expected[buffer_at..buffer_at + buffer.len()].copy_from_slice(&buffer);
    }
    let (kernels, way) = (bench.kernels, if unpack { Packing::Unpack } else { Packing::Pack });
    let got = bench.arena.run(&image, |stream| {
        let buffer = address + buffer_at as u64;
        let (table, many) = (address + table_at as u64, many as u32);
        // SAFETY: the arena waits; table and tensors are ranges of the image.
        unsafe { kernels.pack(stream, way, buffer, table, many, LONGEST as u64) }
    })?;
    Ok(difference(&expected, got))
}

/// Checksums of ranges at any address, in fragments of any length.
pub(super) fn checksums(bench: &mut Bench<'_>) -> CheckResult {
    let mut cases = 0;
    for (bytes, fragment) in
        [(1, 1), (15, 4), (4096, 4096), (100_003, 8192), (100_003, 8961), (300_001, 300_001), (9000, 17)]
    {
        for shift in [0, 1, 7, 15] {
            cases += 1;
            let data: Vec<u8> = (0..bytes).map(|_| bench.rng.random()).collect();
            let due: Vec<u8> = data.chunks(fragment).flat_map(|piece| crc32c(piece).to_le_bytes()).collect();
            let mut image = Image::default();
            let data_at = image.add(&data, shift);
            let results_at = image.add(&vec![0x33; due.len()], 4);
            let image = image.end();
            let mut expected = image.clone();
            expected[results_at..results_at + due.len()].copy_from_slice(&due);
            let (kernels, address) = (bench.kernels, bench.arena.address());
            let got = bench.arena.run(&image, |stream| {
                let (data, results) = (address + data_at as u64, address + results_at as u64);
                // SAFETY: the arena waits; there is a result for each fragment.
                unsafe { kernels.crc32c(stream, data, bytes as u64, fragment as u64, results) }
            })?;
            if let Some(at) = difference(&expected, got) {
                let what = format!(
                    "{bytes} bytes in fragments of {fragment}, shifted by {shift}: byte {at} of the image is wrong"
                );
                return Ok((cases, Some(what)));
            }
        }
    }
    Ok((cases, None))
}
