//! Program in a pseudo-terminal, with this process in the place of the terminal window.

use std::{
    ffi::OsString,
    os::fd::OwnedFd,
    process::Child,
    time::{Duration, Instant},
};

use memchr::memmem;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read, write},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::{
    error::{Error, Result},
    programs,
};

/// Longest time for anything that the program should show.
const DEADLINE: Duration = Duration::from_secs(120);
/// Bytes that stay to be searched with what comes next.
const WINDOW: usize = 256;
/// Size of the terminal.
const SIZE: Winsize = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
/// Queries of programs, and the answers of a common terminal.
const ANSWERS: [(&[u8], &[u8]); 2] = [(b"\x1b[6n", b"\x1b[1;1R"), (b"\x1b[c", b"\x1b[?62;22c")];

/// Terminal window, as its program sees it.
pub(super) struct TerminalClient {
    child: Child,
    controller: OwnedFd,
    /// What came last, in which nothing that was waited for is left.
    seen: Vec<u8>,
    chunk: Vec<u8>,
    /// True while queries are answered.
    answers: bool,
}

impl TerminalClient {
    /// Starts a program as leader of its session, with the pseudo-terminal as controlling terminal.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(argv: &[OsString], environment: &[(OsString, OsString)]) -> Result<Self> {
        let failed = |what| move |errno: Errno| Error::system(what)(errno);
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).map_err(failed("opening a pseudo-terminal"))?;
        grantpt(&controller).and_then(|()| unlockpt(&controller)).map_err(failed("unlocking a pseudo-terminal"))?;
        let user = ioctl_tiocgptpeer(&controller, flags).map_err(failed("opening its other end"))?;
        tcsetwinsize(&controller, SIZE).map_err(failed("setting its size"))?;
        let child = programs::start_in_terminal(argv, environment, user)
            .map_err(Error::system(format!("starting {}", argv[0].display())))?;
        Ok(Self { child, controller, seen: Vec::new(), chunk: vec![0; 1 << 16], answers: true })
    }

    /// Types bytes.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let written = write(&self.controller, bytes).map_err(Error::system("typing"))?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Reads until `text` is shown, and returns the text just before it.
    ///
    /// # Errors
    /// [`Error::Deadline`]; the program has ended.
    pub(super) fn read_until(&mut self, text: &[u8]) -> Result<Vec<u8>> {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(at) = memmem::find(&self.seen, text) {
                let before = self.seen[..at].to_vec();
                self.seen.drain(..at + text.len());
                return Ok(before);
            }
            let stale = self.seen.len().saturating_sub(WINDOW);
            self.seen.drain(..stale);
            if !self.read_some(until)? {
                let operation = format!("showing {:?}", String::from_utf8_lossy(text));
                return Err(Error::Deadline { operation, after: DEADLINE });
            }
        }
    }

    /// Answers no queries from now on: programs' output may hold what looks like one.
    pub(super) fn stop_answers(&mut self) {
        self.answers = false;
    }

    /// Types characters, the next after `interval` whatever is shown meanwhile, and returns how long each took to be shown.
    ///
    /// # Errors
    /// As of [`TerminalClient::read_until`].
    pub(super) fn echo(&mut self, keys: &[char], interval: Duration) -> Result<Vec<Duration>> {
        self.seen.clear();
        let mut missing: Vec<(String, Instant)> = Vec::new();
        let mut unsent = keys.iter();
        let mut next = Instant::now();
        let mut took = Vec::with_capacity(keys.len());
        let late = next + DEADLINE;
        while took.len() < keys.len() {
            let now = Instant::now();
            if now >= late {
                return Err(Error::Deadline { operation: "echoing a key".into(), after: DEADLINE });
            }
            if now >= next
                && let Some(key) = unsent.next()
            {
                let key = key.to_string();
                let typed = Instant::now();
                self.write(key.as_bytes())?;
                missing.push((key, typed));
                next = typed + interval;
            }
            let until = if unsent.len() > 0 { next } else { late };
            if self.read_some(until)? {
                let now = Instant::now();
                let seen = &self.seen;
                missing.retain(|(key, typed)| {
                    let is_shown = memmem::find(seen, key.as_bytes()).is_some();
                    if is_shown {
                        took.push(now - *typed);
                    }
                    !is_shown
                });
            }
        }
        Ok(took)
    }

    /// Reads to the program's end.
    ///
    /// # Errors
    /// [`Error::Deadline`]; the system's.
    pub(super) fn wait(mut self) -> Result<()> {
        let until = Instant::now() + DEADLINE;
        while self.read(until)?.is_some_and(|read| read > 0) {
            self.answer()?;
            self.seen.clear();
        }
        self.child.wait().map_err(Error::system("waiting for a program"))?;
        Ok(())
    }

    /// Reads what there is; false if nothing came until then.
    fn read_some(&mut self, until: Instant) -> Result<bool> {
        match self.read(until)? {
            None => Ok(false),
            Some(0) => Err(Error::answer("the program in a terminal", "has ended")),
            Some(_) => {
                self.answer()?;
                Ok(true)
            }
        }
    }

    /// Reads once; `None` if nothing came until then, 0 at the end.
    fn read(&mut self, until: Instant) -> Result<Option<usize>> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let mut fds = [PollFd::new(&self.controller, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).map_err(Error::system("waiting for output"))? == 0 {
            return Ok(None);
        }
        match read(&self.controller, &mut self.chunk) {
            Ok(read) => {
                self.seen.extend_from_slice(&self.chunk[..read]);
                Ok(Some(read))
            }
            // Nobody has the other end open any more.
            Err(Errno::IO) => Ok(Some(0)),
            Err(error) => Err(Error::system("reading output")(error)),
        }
    }

    fn answer(&mut self) -> Result<()> {
        if !self.answers {
            return Ok(());
        }
        let asked: Vec<_> = ANSWERS
            .iter()
            .filter_map(|(query, answer)| Some((memmem::rfind(&self.seen, query)?, query.len(), *answer)))
            .collect();
        for (_, _, answer) in &asked {
            self.write(answer)?;
        }
        if let Some(end) = asked.iter().map(|(at, len, _)| at + len).max() {
            self.seen.drain(..end);
        }
        Ok(())
    }
}

impl Drop for TerminalClient {
    fn drop(&mut self) {
        // One that has ended by itself is not harmed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
