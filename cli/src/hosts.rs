//! The placement of ranks on hosts: `--hosts 2`, or `--hosts 4,2` with the ranks of each.

use std::str::FromStr;

/// The value of `--hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// The number of hosts, which ranks fill in blocks.
    Number(u32),
    /// The ranks of each.
    Ranks(Vec<u32>),
}

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.trim().parse::<u32>().ok().filter(|number| (1..=65_536).contains(number));
            number.ok_or_else(|| format!("`{text}` is no number from 1 to 65536"))
        };
        let found = match text.contains(',') {
            false => Self::Number(number(text)?),
            true => Self::Ranks(text.split(',').map(number).collect::<Result<_, _>>()?),
        };
        match &found {
            Self::Ranks(list)
                if list.len() > 65_536
                    || list.iter().map(|&ranks| u64::from(ranks)).sum::<u64>() > 65_536 =>
            {
                Err("a job has at most 65536 ranks".into())
            }
            _ => Ok(found),
        }
    }
}

impl Hosts {
    /// The ranks of each host: as listed, else `ranks` in blocks, of which the first may have one more than the others.
    ///
    /// # Errors
    /// Numbers that contradict each other, as text.
    pub(crate) fn fill(&self, ranks: Option<u32>) -> Result<Vec<u32>, String> {
        match (self, ranks) {
            (Self::Ranks(list), None) => Ok(list.clone()),
            (Self::Ranks(list), Some(ranks)) => match list.iter().sum::<u32>() {
                sum if sum == ranks => Ok(list.clone()),
                sum => Err(format!(
                    "--hosts lists {sum} ranks, and there are {ranks}: leave out the number of ranks"
                )),
            },
            (Self::Number(_), None) => Err(
                "the number of ranks is missing: give it by --ranks (-n), or list those of each host as in --hosts 4,2"
                    .into(),
            ),
            (Self::Number(hosts), Some(ranks)) if *hosts > ranks => Err(format!(
                "{ranks} ranks cannot fill {hosts} hosts: use --hosts {ranks} or fewer, or more ranks"
            )),
            (&Self::Number(hosts), Some(ranks)) => {
                let (share, extra) = (ranks / hosts, ranks % hosts);
                Ok((0..hosts).map(|host| share + u32::from(host < extra)).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests;
