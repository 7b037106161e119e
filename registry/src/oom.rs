//! Whom the kernel ends first for want of memory: agents, before their supervisors.
//!
//! The kernel adds `oom_score_adj` thousandths of all memory to what a process has itself. Children inherit it. Raising one's
//! own takes no right; lowering it below what one once had takes CAP_SYS_RESOURCE.

use std::io::{self, Write};

use crate::{proc, procfs};

/// An agent's at least, and so much above its supervisors'.
const AGENTS: i16 = 200;
/// Highest score of a supervisor with the right to lower it. Above -1000, which would exempt it altogether.
const SUPERVISORS: i16 = -500;
/// The most that the kernel takes.
const MOST: i16 = 1000;

/// Returns the score for an agent of this supervisor.
pub fn agent_oom_score_adj() -> i16 {
    of_agents(own().unwrap_or(0))
}

fn of_agents(own: i16) -> i16 {
    own.saturating_add(AGENTS).clamp(AGENTS, MOST)
}

/// Lowers that of this process, a supervisor, as far as it may. To be called while it is dumpable: else its own file is
/// root's.
pub fn protect_from_oom() {
    let Ok(own) = own() else { return };
    // Without the right, what it had when it was started may be gone back to, if 0 is not less than that.
    let lower = [SUPERVISORS, 0].into_iter().filter(|value| *value < own);
    let _ = lower.map(|value| write("self/oom_score_adj", value)).find(Result::is_ok);
}

/// Raises that of everything below this process. What a process forks has its value, so those that were forked before it was
/// raised are among its children afterwards. Where the system does not let us, it stays as it is: nothing rests on it.
pub(crate) fn raise_below(value: i16) {
    let mut found = proc::own_children().unwrap_or_default();
    while let Some(pid) = found.pop() {
        let path = format!("{pid}/oom_score_adj");
        if read(&path).is_ok_and(|now| now < value)
            && let Err(error) = write(&path, value)
        {
            tracing::debug!(pid, value, %error, "failed to raise oom_score_adj");
        }
        // A process that is gone has none, and what it left is another's child: it came too late to be met.
        let _ = proc::children(pid, &mut found);
    }
}

fn own() -> io::Result<i16> {
    read("self/oom_score_adj")
}

fn read(path: &str) -> io::Result<i16> {
    let text = procfs::read_text(path)?;
    text.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn write(path: &str, value: i16) -> io::Result<()> {
    procfs::open_to_write(path)?.write_all(value.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_have_more_than_their_supervisors() {
        for (supervisor, agent) in [(-900, 200), (-500, 200), (0, 200), (100, 300), (900, 1000), (1000, 1000)] {
            assert_eq!(of_agents(supervisor), agent, "{supervisor}");
        }
    }
}
