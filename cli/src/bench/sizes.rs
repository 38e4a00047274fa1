//! Message sizes on the command line: `4`, `64Ki`, `4..64Mi` (powers of four), `4,1Mi`.

use std::str::FromStr;

/// Sizes in bytes, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<u64>);

/// The largest size that a benchmark takes: 16 GiB.
const LARGEST: u64 = 16 << 30;

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = vec![];
        for part in text.split(',') {
            let (from, to) = match part.split_once("..") {
                Some((from, to)) => (size(from)?, size(to)?),
                None => (size(part)?, size(part)?),
            };
            if from == 0 {
                return Err(format!("'{part}': a size is positive, and 0 is none"));
            }
            if from > to {
                return Err(format!("'{part}': a range runs from a size to a larger one, as in 4..64Mi"));
            }
            sizes.extend(std::iter::successors(Some(from), |s| Some(s * 4)).take_while(|s| *s < to));
            sizes.push(to);
        }
        Ok(Self(sizes))
    }
}

/// Parses one positive size.
pub(crate) fn one(text: &str) -> Result<u64, String> {
    size(text).and_then(|bytes| match bytes {
        0 => Err(format!("'{text}': a size is positive, and 0 is none")),
        _ => Ok(bytes),
    })
}

/// Parses `64`, `64Ki`, `64KiB`, `1Mi`, `1Gi`.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..).unwrap_or_default().trim_end_matches('B') {
        "" => 0,
        "Ki" => 10,
        "Mi" => 20,
        "Gi" => 30,
        unit => return Err(format!("'{text}': unknown unit '{unit}'; use Ki, Mi or Gi")),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("'{text}' is no size; examples: 4, 64Ki, 4..64Mi"))?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes <= LARGEST)
        .ok_or_else(|| format!("'{text}' is more than the largest size, 16Gi"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_run_in_powers_of_four_and_end_at_the_end() {
        assert_eq!("4..64".parse(), Ok(Sizes(vec![4, 16, 64])));
        assert_eq!("4..100".parse(), Ok(Sizes(vec![4, 16, 64, 100])));
        assert_eq!("8,64Ki".parse(), Ok(Sizes(vec![8, 64 << 10])));
        assert_eq!("1Mi".parse(), Ok(Sizes(vec![1 << 20])));
        assert_eq!("4..64Mi".parse::<Sizes>().map(|s| s.0.len()), Ok(13));
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "x", "4..", "0", "64..4", "4Qi", "99999999999Gi", "-4"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
        for text in ["0", "0..64", "4,0"] {
            assert!(
                text.parse::<Sizes>().unwrap_err().contains("a size is positive, and 0 is none"),
                "{text}"
            );
        }
    }
}
