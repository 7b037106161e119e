//! The tree that is killed: `count` children of one process, every third of them in a session of its own.

use std::{
    io::{self, BufRead, Read, Write},
    os::fd::OwnedFd,
};

use nix::{fcntl::OFlag, unistd};

use crate::error::{Error, Result};

/// What it says when all of it is there.
pub(crate) const READY: &str = "ready";

/// Waits for a line, forks, says [`READY`], and waits to be killed.
///
/// # Errors
/// The system's.
pub(crate) fn serve(count: u32) -> Result<()> {
    // It leads a session already where the product started it.
    let _ = unistd::setsid();
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(Error::system("waiting for the word"))?;
    let (all_there, here) = unistd::pipe2(OFlag::O_CLOEXEC).map_err(Error::system("making a pipe"))?;
    for index in 0..count {
        let here = here.try_clone().map_err(Error::system("duplicating a pipe"))?;
        registry::fork_child(vec![here], |here: Vec<OwnedFd>| {
            if index % 3 == 0 {
                // A child that was just forked leads no group, so it cannot fail.
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
    // Its end says that every child has done its setsid.
    let mut all_there = std::fs::File::from(all_there);
    all_there.read_to_end(&mut Vec::new()).map_err(Error::system("waiting for the children"))?;
    writeln!(io::stdout().lock(), "{READY}").map_err(Error::system("saying ready"))?;
    loop {
        unistd::pause();
    }
}
