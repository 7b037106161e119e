//! Checks by its ancestors whether a process belongs to given sessions.

use std::io;

use ipc_protocol::{Pid, ProcessId};

use crate::process_table::{self, SeenProcess};

/// Attempts to walk from a process to its top; a parent that dies meanwhile spoils one.
const ATTEMPTS: usize = 8;

/// Upper bound of ancestors, more than any honest process has: a caller must not keep us walking.
const MAX_DEPTH: usize = 1000;

/// Returns true if `pid` is one of `tops`, or below one of them.
///
/// # Errors
/// The reason why that is unknown, for the user who runs `pid`.
pub fn is_below(pid: Pid, tops: &[ProcessId]) -> Result<bool, String> {
    Ok(top_of(pid, tops)?.is_some())
}

/// Returns the one of `tops` that `pid` is, or that it is below; the nearest of several.
///
/// # Errors
/// As [`is_below`].
pub fn top_of(pid: Pid, tops: &[ProcessId]) -> Result<Option<ProcessId>, String> {
    walk(pid, tops, |pid| process_table::find_process(pid)?.ok_or_else(|| io::ErrorKind::NotFound.into()))
}

/// Walks from a process to its top, by what `look` says of each: see [`top_of`].
pub(crate) fn walk(
    pid: Pid,
    tops: &[ProcessId],
    look: impl Fn(Pid) -> io::Result<SeenProcess>,
) -> Result<Option<ProcessId>, String> {
    let mut failure = String::new();
    'attempt: for _ in 0..ATTEMPTS {
        let mut seen = look(pid).map_err(|error| format!("your process {pid} is gone, or cannot be seen ({error})"))?;
        for _ in 0..MAX_DEPTH {
            if tops.contains(&seen.id) {
                return Ok(Some(seen.id));
            }
            if seen.ppid == 0 || seen.id.pid == 1 {
                return Ok(None);
            }
            let above = match look(seen.ppid) {
                Ok(above) => above,
                Err(error) => {
                    failure = format!("{}, above your process {pid}, cannot be seen ({error})", seen.ppid);
                    continue 'attempt;
                }
            };
            if above.id.start_time > seen.id.start_time {
                // A parent cannot be younger than its child: the parent died, and its pid was reused.
                failure = format!("the parents of your process {pid} change while they are looked at");
                continue 'attempt;
            }
            seen = above;
        }
        return Err(format!("your process {pid} has more than {MAX_DEPTH} parents"));
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn seen(pid: Pid, start_time: u64, ppid: Pid) -> SeenProcess {
        SeenProcess { id: ProcessId { pid, start_time }, ppid, pgid: 0, sid: 0, is_stopped: false }
    }

    const TOP: ProcessId = ProcessId { pid: 50, start_time: 5 };

    fn walked(pid: Pid, table: &[SeenProcess]) -> Result<bool, String> {
        let find = |pid| table.iter().find(|seen| seen.id.pid == pid).copied();
        Ok(walk(pid, &[TOP], |pid| find(pid).ok_or_else(|| io::ErrorKind::NotFound.into()))?.is_some())
    }

    #[test]
    fn who_is_below_is_found() {
        let table = [seen(1, 0, 0), seen(10, 1, 1), seen(50, 5, 10), seen(60, 6, 50), seen(70, 7, 60), seen(80, 8, 10)];
        assert_eq!((walked(70, &table), walked(50, &table)), (Ok(true), Ok(true)));
        assert_eq!((walked(80, &table), walked(1, &table)), (Ok(false), Ok(false)));
        let another = [seen(1, 0, 0), seen(50, 4, 1), seen(70, 7, 50)];
        assert_eq!(walked(70, &another), Ok(false), "another process with that pid");
    }

    #[test]
    fn who_cannot_be_identified_is_neither() {
        assert!(walked(99, &[seen(1, 0, 0)]).expect_err("gone").contains("gone"));
        assert!(walked(70, &[seen(70, 7, 60)]).expect_err("hidden").contains("60, above"));
        assert!(walked(70, &[seen(1, 0, 0), seen(60, 9, 1), seen(70, 7, 60)]).expect_err("torn").contains("change"));
        assert!(walked(70, &[seen(70, 7, 70)]).expect_err("a loop").contains("parents"));
    }

    #[test]
    fn a_parent_that_dies_during_the_walk_is_looked_for_again() {
        // 70's parent 60 is gone when it is looked at; by then 70 has gone to 55.
        let looks = RefCell::new(0);
        let walked = walk(70, &[TOP], |pid| {
            *looks.borrow_mut() += 1;
            match (pid, *looks.borrow()) {
                (70, 1) => Ok(seen(70, 7, 60)),
                (70, _) => Ok(seen(70, 7, 55)),
                (55, _) => Ok(seen(55, 6, 50)),
                (50, _) => Ok(seen(50, 5, 1)),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        });
        assert_eq!(walked, Ok(Some(TOP)));
    }

    #[test]
    fn this_process_is_below_itself_alone() {
        let me = crate::identify(std::process::id()).expect("alive");
        assert_eq!(is_below(me.pid, &[me]), Ok(true));
        assert_eq!(is_below(me.pid, &[TOP]), Ok(false));
    }
}
