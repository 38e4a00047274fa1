//! Packing and unpacking against their definition, and layouts that cannot be.
#![allow(unsafe_code)]

use super::*;

/// Byte `index` of a buffer.
fn byte(index: usize) -> u8 {
    (index * 7 + index / 251) as u8
}

/// Where element `index` of a layout lies.
fn place(layout: &Layout, index: usize) -> usize {
    index / layout.block * layout.stride + index % layout.block
}

#[test]
fn blocks_are_packed_and_unpacked_as_the_definition_says() {
    for size in [1, 2, 4, 8, 16] {
        for count in [0, 1, 2, 3, 17] {
            for block in [1, 2, 3, 4, 5, 8, 16, 33] {
                for stride in [block, block + 1, block + 3, 2 * block + 5] {
                    let layout = Layout { count, block, stride };
                    let elements = layout.elements().unwrap();
                    let span = layout.span().unwrap();
                    assert_eq!(
                        (elements, span),
                        (count * block, count.saturating_sub(1) * stride + block.min(count * block))
                    );
                    let strided: Vec<u8> = (0..span * size).map(byte).collect();
                    let mut packed = vec![0; elements * size];
                    // SAFETY: as long as the layout says.
                    unsafe { pack(&layout, size, strided.as_ptr(), &mut packed) };
                    let due = |at: usize| byte(place(&layout, at / size) * size + at % size);
                    assert!(
                        packed.iter().enumerate().all(|(at, &found)| found == due(at)),
                        "{layout} x {size}"
                    );

                    // All of it, and a message that is shorter than the room for it.
                    for some in [elements, elements / 2, elements.saturating_sub(1)] {
                        let mut back = vec![0xa5; span * size];
                        // SAFETY: as above.
                        unsafe { unpack(&layout, size, &packed[..some * size], back.as_mut_ptr()) };
                        let mut due = vec![0xa5; span * size];
                        for at in 0..some {
                            let range = place(&layout, at) * size..(place(&layout, at) + 1) * size;
                            due[range.clone()].copy_from_slice(&strided[range]);
                        }
                        assert!(back == due, "{some} of {layout} x {size}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_layout_that_cannot_be_is_refused() {
    let layout = |count, block, stride| Layout { count, block, stride };
    let zero = layout(3, 0, 4);
    assert_eq!(zero.elements(), Err(LayoutError::Block(zero)));
    let overlaps = layout(3, 4, 3);
    assert_eq!(overlaps.span(), Err(LayoutError::Stride(overlaps)));
    for huge in
        [layout(usize::MAX, 1, 2), layout(3, 1, usize::MAX / 2), layout(2, usize::MAX / 2, usize::MAX / 2)]
    {
        assert_eq!(huge.span(), Err(LayoutError::Size(huge)));
        assert!(huge.span().unwrap_err().to_string().contains("does not fit in memory"));
    }
    // It fits as bytes, not as elements of eight.
    let wide = layout(2, 1, usize::MAX / 8);
    assert_eq!((wide.check(2, 1), wide.check(2, 8)), (Ok(()), Err(LayoutError::Size(wide))));
    let column = layout(10, 1, 7);
    assert_eq!(column.check_within(64), Ok(()));
    assert_eq!(column.check_within(63), Err(LayoutError::Beyond { layout: column, span: 64, len: 63 }));
    assert_eq!(column.check(10, 4), Ok(()));
    assert_eq!(column.check(11, 4), Err(LayoutError::Elements { layout: column, found: 10, needed: 11 }));
    assert_eq!(Layout::contiguous(0).elements(), Ok(0));
    assert_eq!(Layout::contiguous(5).span(), Ok(5));
}

#[test]
fn the_stride_of_one_block_and_the_size_of_none_are_nothing() {
    let (src, mut dst) = ([1u8, 2, 3, 4, 5, 6, 7, 8], [0u8; 8]);
    for (count, block, expected) in [(1, 2, src), (0, usize::MAX, [0; 8])] {
        let layout = Layout { count, block, stride: usize::MAX };
        assert!(layout.check(count * (block & 2), 4).is_ok());
        dst.fill(0);
        // SAFETY: two elements of four bytes, or none.
        unsafe { pack(&layout, 4, src.as_ptr(), &mut dst) };
        assert_eq!(dst, expected);
        dst.fill(0);
        // SAFETY: as above.
        unsafe { unpack(&layout, 4, &src, dst.as_mut_ptr()) };
        assert_eq!(dst, expected);
    }
}
