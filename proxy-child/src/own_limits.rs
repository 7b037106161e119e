//! Resource limits of a supervisor. Any process of the same user can lower them (`prlimit`): what can be raised again is.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limits that can end a supervisor or keep it from its work, with the lowest value of each: a fork server below that can start nothing.
const RESOURCES: [(Resource, u64); 7] = [
    (Resource::Nofile, 64),
    (Resource::Cpu, 3600),
    (Resource::Fsize, 64 << 20),
    (Resource::Nproc, 256),
    (Resource::As, 4 << 30),
    (Resource::Data, 1 << 30),
    (Resource::Stack, 1 << 20),
];
/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// The limits that this process began with.
#[derive(Debug)]
pub(crate) struct OwnLimits {
    first: [Rlimit; RESOURCES.len()],
    next: Instant,
}

impl OwnLimits {
    /// Notes the limits in force now.
    pub(crate) fn note() -> Self {
        Self { first: RESOURCES.map(|(resource, _)| getrlimit(resource)), next: Instant::now() }
    }

    /// As [`OwnLimits::restore`], if the last look was a while ago.
    pub(crate) fn restore_now_and_then(&mut self) -> bool {
        let now = Instant::now();
        if self.next > now {
            return true;
        }
        self.next = now + INTERVAL;
        self.restore()
    }

    /// Raises what was lowered: the soft limit at least, the hard one too where this process may. Whether it can work with all of them.
    pub(crate) fn restore(&self) -> bool {
        let mut is_fine = true;
        for ((resource, least), first) in RESOURCES.into_iter().zip(self.first) {
            let now = getrlimit(resource);
            if now == first || setrlimit(resource, first).is_ok() {
                continue;
            }
            // `None` is no limit.
            let current = match (first.current, now.maximum) {
                (Some(first), Some(hard)) => Some(first.min(hard)),
                (first, hard) => first.or(hard),
            };
            // It fails where the hard limit was lowered again this very moment: the next look meets that.
            let _ = setrlimit(resource, Rlimit { current, ..now });
            let needed = first.current.map_or(least, |first| first.min(least));
            is_fine &= getrlimit(resource).current.is_none_or(|current| current >= needed);
        }
        is_fine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lowered_is_raised_again() {
        let limits = OwnLimits::note();
        let first = getrlimit(Resource::Core);
        assert!(limits.restore());
        let fsize = getrlimit(Resource::Fsize);
        setrlimit(Resource::Fsize, Rlimit { current: Some(1 << 30), ..fsize }).expect("lowered");
        assert!(limits.restore());
        assert_eq!((getrlimit(Resource::Fsize), getrlimit(Resource::Core)), (fsize, first));
    }
}
