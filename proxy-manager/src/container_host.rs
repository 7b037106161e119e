//! Host of a container, as the label that identifies it.

use std::{fmt, io, str::FromStr};

use ipc_protocol::ProcessId;
use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};

use crate::state::BootNamespace;

/// Process that has a session's container, and what its pid means.
///
/// As text: `UID/BOOT/PID NAMESPACE/PID/START TIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerHost {
    uid: u32,
    place: BootNamespace,
    process: ProcessId,
}

impl ContainerHost {
    /// Identifies this process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn here() -> io::Result<Self> {
        let uid = nix::unistd::geteuid().as_raw();
        Ok(Self { uid, place: BootNamespace::here()?, process: registry::identify(std::process::id())? })
    }

    /// Returns whether the host is dead. Of another user's, and of one elsewhere, that is not known, and the answer false. After a restart
    /// of the machine only what does not run (`is_running`) tells.
    pub(crate) fn is_dead(&self, is_running: bool) -> bool {
        let Ok(here) = Self::here() else { return false };
        if self.uid != here.uid {
            return false;
        }
        if self.place != here.place {
            return self.place.boot != here.place.boot && !is_running;
        }
        let Some(pid) = Pid::from_raw(self.process.pid.cast_signed()) else { return false };
        match registry::identify(self.process.pid) {
            Ok(now) => now != self.process,
            // It may be hidden in `/proc`.
            Err(_) => test_kill_process(pid) == Err(Errno::SRCH),
        }
    }
}

impl fmt::Display for ContainerHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uid, place: BootNamespace { boot, pid_namespace }, process: ProcessId { pid, start_time } } = self;
        write!(f, "{uid}/{boot}/{pid_namespace}/{pid}/{start_time}")
    }
}

/// Error for text that identifies no host.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("no host of a container")]
pub(crate) struct InvalidHost;

impl FromStr for ContainerHost {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let [uid, boot, pid_namespace, pid, start_time] = text.split('/').collect::<Vec<_>>()[..] else {
            return Err(InvalidHost);
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| InvalidHost);
        let start_time = start_time.parse().map_err(|_| InvalidHost)?;
        Ok(Self {
            uid: number(uid)?,
            place: BootNamespace { boot: boot.to_owned(), pid_namespace: pid_namespace.to_owned() },
            process: ProcessId { pid: number(pid)?, start_time },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> ContainerHost {
        ContainerHost::here().expect("readable")
    }

    #[test]
    fn a_host_parses_back() {
        assert_eq!(here().to_string().parse(), Ok(here()));
        for wrong in ["", "1/2/3/4", "a/b/c/4/5", "1/b/c/4/5/6", "1/b/c/-4/5"] {
            assert_eq!(wrong.parse::<ContainerHost>(), Err(InvalidHost), "{wrong}");
        }
    }

    #[test]
    fn a_host_is_dead_where_that_is_certain() {
        let mut earlier = here();
        earlier.process.start_time -= 1;
        let mut others = earlier.clone();
        others.uid += 1;
        let mut elsewhere = earlier.clone();
        elsewhere.place.pid_namespace.push('0');
        let mut before = here();
        before.place.boot.push('0');
        for (host, running, ended) in [
            (here(), false, false),
            (earlier, true, true),
            (others, false, false),
            (elsewhere, false, false),
            (before, false, true),
        ] {
            assert_eq!((host.is_dead(true), host.is_dead(false)), (running, ended), "{host}");
        }
    }
}
