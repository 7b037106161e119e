//! Tree that is killed: `count` children of one process, every third of them in a session of its own.

use std::{
    io::{self, BufRead, Read, Write},
    os::fd::OwnedFd,
};

use nix::{fcntl::OFlag, unistd};

use crate::error::{Error, Result};

/// Output of the tree once all of it has started.
pub(crate) const READY: &str = "ready";

/// Waits for a line, forks, writes [`READY`], and waits to be killed.
///
/// # Errors
/// The system's.
pub(crate) fn serve(count: u32) -> Result<()> {
    // Fails where the product started it: it leads a session already.
    let _ = unistd::setsid();
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(Error::system("waiting for the word"))?;
    let (all_there, here) = unistd::pipe2(OFlag::O_CLOEXEC).map_err(Error::system("making a pipe"))?;
    for index in 0..count {
        let here = here.try_clone().map_err(Error::system("duplicating a pipe"))?;
        registry::fork_child(vec![here], |here: Vec<OwnedFd>| {
            if index % 3 == 0 {
                // A newly forked child leads no group, so this cannot fail.
                let _ = unistd::setsid();
            }
            drop(here);
            loop {
                unistd::pause();
            }
        })
        .map_err(Error::system("forking"))?;
    }
    drop(here);
    // End of file means that every child has called setsid.
    let mut all_there = std::fs::File::from(all_there);
    all_there.read_to_end(&mut Vec::new()).map_err(Error::system("waiting for the children"))?;
    writeln!(io::stdout().lock(), "{READY}").map_err(Error::system("saying ready"))?;
    loop {
        unistd::pause();
    }
}
