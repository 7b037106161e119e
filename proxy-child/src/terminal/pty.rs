//! The pseudo-terminal.

use std::{io, os::fd::OwnedFd, time::Duration};

use ipc_protocol::terminal::TerminalSize;
use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Winsize, tcgetattr, tcsetattr, tcsetwinsize},
};
use tokio::io::{Interest, unix::AsyncFd};

/// Time between two attempts to write to a terminal that cannot be watched.
const UNWATCHED_PAUSE: Duration = Duration::from_millis(20);

/// Both ends of a pseudo-terminal.
pub(crate) struct Pty {
    /// Our end, non-blocking.
    pub(crate) controller: OwnedFd,
    /// End of the program: its standard streams.
    pub(crate) user: OwnedFd,
}

impl Pty {
    /// Opens a pseudo-terminal with the kernel's defaults, for UTF-8.
    pub(crate) fn open(size: TerminalSize) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags)?;
        grantpt(&controller)?;
        unlockpt(&controller)?;
        let user = ioctl_tiocgptpeer(&controller, flags)?;
        let mut modes = tcgetattr(&user)?;
        // Erasing takes a whole character.
        modes.input_modes |= InputModes::IUTF8;
        tcsetattr(&user, OptionalActions::Now, &modes)?;
        set_size(&controller, size)?;
        rustix::io::ioctl_fionbio(&controller, true)?;
        Ok(Self { controller, user })
    }
}

/// Sets the size; the program gets a SIGWINCH if it is another.
pub(crate) fn set_size(controller: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(controller, size)?)
}

/// Registers a terminal with the runtime, to be read. The kernel tells of room for more with nearly every byte that somebody
/// reads there, so that is asked for only while something waits to be written ([`writable`]).
pub(crate) fn watch(terminal: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    crate::proxy::watch_for(terminal, Interest::READABLE)
}

/// Waits until a terminal may take more. Where no descriptor is left to watch it with, that is after a while.
///
/// # Cancel safety
/// Cancel safe.
pub(crate) async fn writable(terminal: &OwnedFd) {
    let watch = terminal.try_clone().and_then(|terminal| crate::proxy::watch_for(terminal, Interest::WRITABLE));
    let is_told = match watch {
        Ok(watch) => watch.writable().await.is_ok(),
        Err(_) => false,
    };
    if !is_told {
        tokio::time::sleep(UNWATCHED_PAUSE).await;
    }
}

/// Returns true if these typed bytes suspend what is in the foreground: the terminal has signals by keys, and one of the
/// bytes is that key.
pub(crate) fn suspends(controller: &OwnedFd, typed: &[u8]) -> bool {
    let Ok(modes) = tcgetattr(controller) else { return false };
    let key = modes.special_codes[SpecialCodeIndex::VSUSP];
    modes.local_modes.contains(LocalModes::ISIG) && key != 0 && typed.contains(&key)
}
