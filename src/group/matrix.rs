//! A matrix of bytes, a row from each rank and a column to each: rows and columns as runs, so that alike hosts cost as
//! much as one of them.

use crate::wire::{self, Malformed};

/// A row or a column: equal neighbours once, each with their number.
pub(super) type Line = Vec<(u32, u8)>;

/// The most runs of a line.
const MAX_RUNS: usize = crate::config::MAX_RANKS as usize;

/// A line from the wire.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Received(#[serde(deserialize_with = "wire::at_most::<MAX_RUNS, _, _>")] Line);

/// Bytes as runs.
pub(super) fn to_line(bytes: &[u8]) -> Line {
    bytes.chunk_by(|a, b| a == b).map(|run| (run.len() as u32, run[0])).collect()
}

/// The bytes of a line, of which there are at most `most`.
pub(super) fn from_line(line: &Line, most: usize) -> Result<Vec<u8>, Malformed> {
    let mut bytes = Vec::new();
    for &(count, byte) in line {
        if count as usize > most - bytes.len() {
            return Err(Malformed);
        }
        bytes.resize(bytes.len() + count as usize, byte);
    }
    Ok(bytes)
}

/// Equal rows of consecutive ranks, and how far they have been read.
struct Rows {
    count: u32,
    line: std::vec::IntoIter<(u32, u8)>,
    /// The rest of the current run.
    run: (u32, u8),
}

impl Rows {
    /// Goes on to the next run where the current one is at its end; returns the length of the rest.
    fn left(&mut self) -> u32 {
        while self.run.0 == 0 {
            match self.line.next() {
                Some(run) => self.run = run,
                None => return 0,
            }
        }
        self.run.0
    }
}

/// The columns of the matrix whose rows these are, encoded, in the order of ranks. Ranks with an empty row take no part, and get an
/// empty column. `give` is called with each column and the ranks that it is for.
///
/// # Errors
/// The first rank whose row is not as long as there are rows; columns may have been given before.
pub(super) fn columns(rows: &[Vec<u8>], mut give: impl FnMut(&[usize], &Line)) -> Result<(), u32> {
    let (mut groups, mut takes_part, mut others) = (Vec::<Rows>::new(), Vec::new(), Vec::new());
    let mut firsts = Vec::new();
    let mut first = 0;
    for equal in rows.chunk_by(|a, b| a == b) {
        let Received(line) = wire::decode(&equal[0]).map_err(|_| first as u32)?;
        let ranks = first..first + equal.len();
        if line.is_empty() {
            others.extend(ranks);
        } else {
            takes_part.extend(ranks);
            firsts.push((first as u32, line.iter().map(|run| u64::from(run.0)).sum::<u64>()));
            groups.push(Rows { count: equal.len() as u32, line: line.into_iter(), run: (0, 0) });
        }
        first += equal.len();
    }
    if let Some((rank, _)) = firsts.iter().find(|(_, len)| *len != takes_part.len() as u64) {
        return Err(*rank);
    }
    give(&others, &Line::new());
    let mut ranks = &takes_part[..];
    while !ranks.is_empty() {
        // As far as no row changes, columns are equal.
        let width = groups.iter_mut().map(Rows::left).min().unwrap_or(0) as usize;
        let Some((these, rest)) = ranks.split_at_checked(width.max(1)) else { return Ok(()) };
        let mut column = Line::new();
        for rows in &mut groups {
            rows.run.0 = rows.run.0.saturating_sub(these.len() as u32);
            match column.last_mut() {
                Some((count, byte)) if *byte == rows.run.1 => *count += rows.count,
                _ => column.push((rows.count, rows.run.1)),
            }
        }
        give(these, &column);
        ranks = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
