use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn transposed(rows: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, u32> {
    let encoded: Vec<_> = rows.iter().map(|row| wire::encode(&to_line(row)).unwrap()).collect();
    let mut all = vec![None; rows.len()];
    columns(&encoded, |ranks, line| {
        for rank in ranks {
            assert!(
                all[*rank].replace(from_line(line, rows.len()).unwrap()).is_none(),
                "a rank got two columns"
            );
        }
    })?;
    Ok(all.into_iter().map(|column| column.expect("every rank gets a column")).collect())
}

/// Other ranks' rows may hold anything.
#[test]
fn the_decoder_survives_what_comes() {
    wire::tests::fuzz(&[Received(Line::new()), Received(to_line(&[1, 1, 0, 0, 0, 2]))]);
    let longest = |len: usize| wire::encode(&vec![(1u32, 0u8); len]).unwrap();
    assert!(wire::decode::<Received>(&longest(MAX_RUNS)).is_ok());
    assert_eq!(wire::decode::<Received>(&longest(MAX_RUNS + 1)), Err(Malformed));
}

#[test]
fn each_rank_gets_its_column() {
    for seed in 0..200 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let kinds = rng.random_range(1..4u8);
        let ranks = rng.random_range(1..40);
        let part: Vec<bool> = (0..ranks).map(|_| seed % 2 == 0 || rng.random()).collect();
        let places: Vec<usize> = (0..ranks).filter(|rank| part[*rank]).collect();
        let row = |rng: &mut SmallRng| places.iter().map(|_| rng.random_range(0..kinds)).collect::<Vec<u8>>();
        let common = row(&mut rng);
        let rows: Vec<Vec<u8>> = part
            .iter()
            .map(|part| match part {
                false => vec![],
                true if rng.random() => common.clone(),
                true => row(&mut rng),
            })
            .collect();
        let found = transposed(&rows).unwrap();
        for (rank, column) in found.iter().enumerate() {
            let place = places.iter().position(|other| *other == rank);
            let expected = place.map_or(vec![], |place| places.iter().map(|row| rows[*row][place]).collect());
            assert_eq!(*column, expected, "seed {seed}, rank {rank}");
        }
    }
}

#[test]
fn a_row_of_another_length_names_its_rank() {
    assert_eq!(transposed(&[vec![1, 1, 1], vec![], vec![1, 1], vec![1, 1, 1]]), Err(2));
    assert_eq!(transposed(&[vec![1; 4]]), Err(0));
    // Lengths that add up to more than a number of ranks can be.
    let long = wire::encode(&vec![(u32::MAX, 1u8), (u32::MAX, 2), (3, 3)]).unwrap();
    assert_eq!(columns(&[long], |_, _| {}), Err(0));
    assert_eq!(columns(&[b"\xff\xff\xff\xff\xff".to_vec()], |_, _| {}), Err(0));
    assert_eq!(from_line(&vec![(2, 7), (2, 8)], 3), Err(Malformed));
}

/// The exchange that once took a GiB for 1,024 hosts.
#[test]
fn alike_hosts_cost_the_same_however_many_they_are() {
    let (mut taken, mut given) = (0, 0);
    let rows: Vec<_> = (0..1024).map(|_| wire::encode(&to_line(&[6; 1024])).unwrap()).collect();
    taken += rows.iter().map(Vec::len).sum::<usize>();
    columns(&rows, |ranks, line| given += ranks.len() * wire::encode(line).unwrap().len()).unwrap();
    assert!(taken + given <= 1024 * 10, "{taken} and {given} bytes");
}
