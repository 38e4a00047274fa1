use std::collections::HashSet;
use std::sync::Arc;

use super::*;

fn table() -> Table<Arc<u32>> {
    Table::new(0x80, "no such handle")
}

/// The value of a handle, on the one thread that frees it.
fn value(table: &Table<Arc<u32>>, handle: *const Arc<u32>) -> Option<u32> {
    // SAFETY: these tests free no handle meanwhile.
    unsafe { table.get(handle) }.ok().map(|value| **value)
}

/// Handles of several chunks name their own values, and freed ones none, though their slots have other values by then.
#[test]
fn a_freed_handle_is_never_anothers() {
    const COUNT: u32 = 1000;
    let table = table();
    let first: Vec<_> = (0..COUNT).map(|number| table.vacancy().unwrap().fill(Arc::new(number))).collect();
    assert!((0..COUNT).zip(&first).all(|(number, handle)| value(&table, *handle) == Some(number)));
    for (number, handle) in (0..COUNT).zip(&first) {
        assert_eq!(**table.take(*handle).unwrap(), number);
        assert!(table.take(*handle).is_err());
    }
    let second: Vec<_> =
        (0..COUNT).map(|number| table.vacancy().unwrap().fill(Arc::new(COUNT + number))).collect();
    assert!(first.iter().all(|handle| value(&table, *handle).is_none() && table.take(*handle).is_err()));
    assert!((COUNT..).zip(&second).all(|(number, handle)| value(&table, *handle) == Some(number)));
    assert_eq!(first.iter().chain(&second).collect::<HashSet<_>>().len(), 2 * COUNT as usize);
    assert_eq!(table.vacant().unused, COUNT, "slots are used again");
}

/// Addresses, small numbers, handles of another kind and of slots that never had one.
#[test]
fn what_is_no_handle_is_refused() {
    let (table, other) = (table(), Table::<Arc<u32>>::new(0x81, "no such handle"));
    let (handle, value_of_c) = (table.vacancy().unwrap().fill(Arc::new(7)), Arc::new(7));
    let bits = handle.addr();
    let wrong = [
        0,
        1,
        0x10,
        (&raw const value_of_c).addr(),
        bits + 1,
        bits + FIRST,
        bits + (1 << NUMBER_BITS),
        usize::MAX,
        bits >> 1,
    ];
    for wrong in wrong.map(ptr::without_provenance_mut) {
        assert!(value(&table, wrong).is_none() && table.take(wrong).is_err(), "{wrong:?}");
    }
    assert!(value(&other, handle).is_none());
    assert_eq!(value(&table, handle), Some(7));
    assert_eq!(**table.take(handle).unwrap(), 7);
}

/// A vacancy that is given up is used by the next, and a slot whose generations are used up by none.
#[test]
fn slots_come_back_until_their_generations_end() {
    let table = table();
    drop(table.vacancy().unwrap());
    let handle = table.vacancy().unwrap().fill(Arc::new(1));
    assert_eq!((table.vacant().unused, value(&table, handle)), (1, Some(1)));
    table.take(handle).unwrap();
    let last = table.vacancy().unwrap();
    last.slot.generation.store(u32::MAX - 1, Ordering::Relaxed);
    let handle = last.fill(Arc::new(2));
    assert_eq!(**table.take(handle).unwrap(), 2);
    assert!(table.take(handle).is_err());
    let next = table.vacancy().unwrap();
    assert_eq!((next.number, table.vacant().unused), (1, 2));
}

/// Of threads that free one handle at once, one gets its value.
#[test]
fn one_of_several_frees() {
    let table = table();
    for round in 0..200 {
        let handle = table.vacancy().unwrap().fill(Arc::new(round)).addr();
        let freed = std::thread::scope(|scope| {
            let threads =
                [(); 4].map(|()| scope.spawn(|| table.take(ptr::without_provenance(handle)).is_ok()));
            threads.map(|thread| thread.join().unwrap()).into_iter().filter(|freed| *freed).count()
        });
        assert_eq!(freed, 1);
    }
}
