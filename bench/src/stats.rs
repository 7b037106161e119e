//! Summaries of samples.

use ipc_protocol::Pid;

use crate::error::{Error, Result};

/// Returns the median; `None` without samples.
pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Mean proportional set size of these processes, in KiB: the memory that the end of each would free.
///
/// # Errors
/// When a process is gone, or hides its memory from this user.
pub(crate) fn mean_pss_kib(pids: &[Pid]) -> Result<f64> {
    mean_kib(pids, "Pss:")
}

/// Mean of one line of `smaps_rollup` over these processes, in KiB.
///
/// # Errors
/// Same as [`mean_pss_kib`].
pub(crate) fn mean_kib(pids: &[Pid], line: &str) -> Result<f64> {
    let mut total = 0.0;
    for pid in pids {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = std::fs::read_to_string(&path).map_err(Error::system(format!("reading {path}")))?;
        let pss =
            text.lines().find_map(|found| found.strip_prefix(line)?.trim().strip_suffix(" kB")?.parse::<u32>().ok());
        total += f64::from(pss.ok_or_else(|| Error::answer(path, format!("has no {line}")))?);
    }
    Ok(total / pids.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_process_has_memory() {
        assert!(mean_pss_kib(&[std::process::id()]).expect("own memory") > 100.0);
    }
}
