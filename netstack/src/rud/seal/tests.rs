use super::*;

impl Seal {
    /// Both directions go on from this number: those before it have been sent and received.
    pub(in crate::rud) fn count_from(&mut self, number: u64) {
        if let Some(last) = number.checked_sub(1) {
            self.accepted.accept(last);
            self.next = number;
            self.out_key = key(&self.prk, self.out_tag, epoch(number));
            let its = epoch(last);
            for epoch in its.saturating_sub(1)..=its + 1 {
                self.in_keys[(epoch % 3) as usize] = key(&self.prk, self.in_tag, epoch);
            }
        }
    }

    /// The number of the next datagram sent.
    pub(in crate::rud) fn next(&self) -> u64 {
        self.next
    }
}

/// The numbers of an epoch.
const EPOCH: u64 = 1 << EPOCH_BITS;

fn ends() -> [Seal; 2] {
    let secret = SealSecret::new([9; 32]);
    [Seal::new(&secret, 1, 2), Seal::new(&secret, 2, 1)]
}

/// A datagram without body and payload.
fn head() -> [u8; HEADER_LEN] {
    let mut head = [0; HEADER_LEN];
    head[4] = 0x40;
    head
}

fn low(datagram: &[u8]) -> u32 {
    u32::from_be_bytes(*datagram.first_chunk().unwrap())
}

/// A sealed datagram of this header and body.
fn made(seal: &mut Seal, head: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; head.len() + SEAL_LEN];
    seal.seal(head, &[], &mut datagram);
    datagram
}

#[test]
fn what_one_end_seals_the_other_opens_once_and_nobody_else() {
    let [mut a, mut b] = ends();
    let sealed = made(&mut a, &[&head()[..], b"body"].concat());
    assert_eq!(sealed.len(), HEADER_LEN + 4 + SEAL_LEN);
    assert_ne!(&sealed[HEADER_LEN..][..4], b"body");
    let mut others = [
        Seal::new(&SealSecret::new([8; 32]), 2, 1),
        Seal::new(&SealSecret::new([9; 32]), 2, 3),
        // Sent back to its sender.
        Seal::new(&SealSecret::new([9; 32]), 1, 2),
    ];
    for other in &mut others {
        assert_eq!(other.open(0, &sealed), Err(Unopened::Broken));
    }
    assert_eq!(b.open(0, &sealed), Ok(()));
    assert_eq!(&b.opened()[HEADER_LEN..], b"body");
    assert_eq!(b.open(0, &sealed), Err(Unopened::Replayed));
    assert_eq!(format!("{b:?} {:?}", SealSecret::new([9; 32])), "Seal { next: 0, .. } SealSecret(..)");
}

//= rud/spec.md section 10.3, RUD-97
#[test]
fn epochs_may_be_reordered_by_one_and_no_more() {
    for begin in [EPOCH, 7 * EPOCH, 256 * EPOCH] {
        let [mut a, mut b] = ends();
        [&mut a, &mut b].into_iter().for_each(|end| end.count_from(begin - 3));
        let sealed: Vec<Vec<u8>> = (0..6).map(|_| made(&mut a, &head())).collect();
        // The first of the new epoch comes before the last of the old one.
        for at in [0, 3, 1, 5, 2, 4] {
            assert_eq!(b.open(low(&sealed[at]), &sealed[at]), Ok(()), "{at} of those around {begin}");
        }
        // Two epochs on there is no key.
        a.count_from(begin + 2 * EPOCH);
        let far = made(&mut a, &head());
        assert_eq!(b.open(low(&far), &far), Err(Unopened::Broken));
        a.count_from(begin + EPOCH);
        let next = made(&mut a, &head());
        assert_eq!(b.open(low(&next), &next), Ok(()));
        assert_eq!(b.open(low(&far), &far), Ok(()), "from the next epoch on it is one ahead");
    }
}

//= rud/spec.md section 10.4, RUD-99
#[test]
fn a_forged_epoch_changes_no_key() {
    let [mut a, mut b] = ends();
    [&mut a, &mut b].into_iter().for_each(|end| end.count_from(EPOCH - 2));
    let good = made(&mut a, &head());
    for number in [0, 1, EPOCH - 1, EPOCH, EPOCH + 77, 2 * EPOCH, 5 * EPOCH, u64::from(u32::MAX)] {
        let mut forged = good.clone();
        forged[..4].copy_from_slice(&(number as u32).to_be_bytes());
        assert!(b.open(low(&forged), &forged).is_err(), "{number}");
    }
    assert_eq!(b.open(low(&good), &good), Ok(()));
}
