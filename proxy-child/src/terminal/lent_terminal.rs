//! Terminal that a viewer has lent: keys and frames pass through no process but this one.

use std::{
    io,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    time::Duration,
};

use ipc_protocol::terminal::{DetachFilter, DetachKeys, LoanSecret};
use rustix::{
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
        SocketType, connect, recvmsg, socket_with, sockopt::socket_peercred,
    },
    process::geteuid,
    termios::isatty,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::UnixStream,
};

use super::pty;

/// Longest wait for the descriptor.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes of one read.
const CHUNK: usize = 16 * 1024;

/// Terminal of a viewer. The viewer keeps its mode.
pub(super) struct LentTerminal {
    fd: AsyncFd<OwnedFd>,
    /// Connection to the viewer, on which it is told that it has its terminal again.
    lender: UnixStream,
    filter: DetachFilter,
    /// True if nothing that is typed goes to the program.
    watches: bool,
    /// What the terminal has not taken.
    unwritten: Vec<u8>,
    /// What the viewer was told of the alternate screen.
    alternate: bool,
    /// True while the viewer's shell has the terminal.
    is_paused: bool,
    /// True once the keys that detach were typed.
    is_detached: bool,
}

/// What was typed.
pub(super) enum Typed {
    /// Nothing so far.
    Nothing,
    /// Bytes for the program.
    Bytes(Vec<u8>),
    /// The keys that detach.
    Detach,
    /// Nothing ever again: the terminal is gone.
    Gone,
}

impl LentTerminal {
    /// Gets the terminal from the viewer, which listens on this socket and gives it to who says the secret.
    ///
    /// # Errors
    /// The system's; nobody listens there, or another user does; it gives no terminal.
    pub(super) async fn borrow(
        socket: &str,
        secret: &LoanSecret,
        detach_keys: Option<DetachKeys>,
        watches: bool,
    ) -> io::Result<Self> {
        let socket = connect_to(socket)?;
        // A new socket takes as much at once.
        rustix::io::write(&socket, secret.as_bytes())?;
        let stream = UnixStream::from_std(socket)?;
        let received = tokio::time::timeout(RECEIVE_TIMEOUT, async {
            loop {
                stream.readable().await?;
                match stream.try_io(Interest::READABLE, || receive_descriptor(&stream)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    received => return received,
                }
            }
        });
        let fd = received.await??;
        if !isatty(&fd) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "what the viewer lends is no terminal"));
        }
        Ok(Self {
            fd: pty::watch(fd)?,
            lender: stream,
            filter: DetachFilter::new(detach_keys),
            watches,
            unwritten: Vec::new(),
            alternate: false,
            is_paused: false,
            is_detached: false,
        })
    }

    /// Gives the terminal back, to a viewer that may hear nothing else now: its daemon may hang.
    pub(super) fn give_back(self, detached: bool) {
        // A new byte always has room there. A viewer of an earlier release has closed it.
        let _ = rustix::net::send(&self.lender, &[u8::from(detached)], SendFlags::NOSIGNAL);
    }

    /// Reads what is typed.
    pub(super) fn try_read(&mut self) -> Typed {
        if self.is_detached {
            return Typed::Detach;
        }
        if self.is_paused {
            return Typed::Nothing;
        }
        let mut chunk = [0; CHUNK];
        let read = self.fd.try_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut chunk)?));
        let bytes = match read {
            Ok(read) if read > 0 => &chunk[..read],
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Typed::Nothing;
            }
            _ => return Typed::Gone,
        };
        let mut out = Vec::new();
        // Who only watches leaves with Ctrl-C, too.
        self.is_detached = self.filter.take(bytes, &mut out) || self.watches && bytes.contains(&3);
        match (out.is_empty() || self.watches, self.is_detached) {
            (false, _) => Typed::Bytes(out),
            (true, true) => Typed::Detach,
            (true, false) => Typed::Nothing,
        }
    }

    /// Queues what a message paints; while the viewer's shell has the terminal it is dropped, since the whole screen is painted
    /// afterwards.
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        if !self.is_paused {
            self.unwritten.extend_from_slice(bytes);
        }
    }

    /// Returns true if the viewer has to be told of the alternate screen.
    pub(super) fn switches_to(&mut self, alternate: bool) -> bool {
        std::mem::replace(&mut self.alternate, alternate) != alternate
    }

    /// Leaves the terminal to the viewer's shell.
    pub(super) fn pause(&mut self) {
        self.is_paused = true;
    }

    pub(super) fn resume(&mut self) {
        self.is_paused = false;
    }

    pub(super) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Writes what the terminal takes. Returns false if some is left.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn try_write(&mut self) -> io::Result<bool> {
        while !self.unwritten.is_empty() {
            let unwritten = &self.unwritten;
            match retry_on_intr(|| rustix::io::write(&self.fd, unwritten)) {
                Ok(written) => drop(self.unwritten.drain(..written)),
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Waits until something can be written.
    pub(super) async fn writable(&self) {
        pty::writable(self.fd.get_ref()).await;
    }

    /// Waits until something is typed, or can be written if that is wanted.
    pub(super) async fn ready(&self, writes: bool) -> io::Result<()> {
        let writes = writes && self.has_unwritten();
        tokio::select! {
            ready = self.fd.readable(), if !self.is_paused => ready.map(drop),
            () = self.writable(), if writes => Ok(()),
            else => std::future::pending().await,
        }
    }
}

/// Connects to a socket in the abstract namespace on which this user listens.
fn connect_to(name: &str) -> io::Result<StdStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    if socket_peercred(&socket)?.uid != geteuid() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user listens there"));
    }
    Ok(socket.into())
}

fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [io::IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = received.next().and_then(|mut descriptors| descriptors.next());
    descriptor.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no descriptor came"))
}
