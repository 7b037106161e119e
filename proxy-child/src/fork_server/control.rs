//! The fork server's end of the socket to the host.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use ipc_protocol::{
    ProcessInfo,
    codec::Assembler,
    message::{FromForkServer, ToForkServer},
    packet::{recv_packet, send_packet},
    reattach::{Heard, Wire},
};

/// Packets that may wait for a host that does not read. Each session makes a few in its life; a host that lets this many
/// pile up has stopped, and is treated as gone.
const MAX_UNSENT: usize = 64 * 1024;

/// Processes of a list that would be too long with all that is known of them.
const MAX_LISTED: usize = 2048;

pub(crate) struct Control {
    socket: OwnedFd,
    wire: Wire,
    assembler: Assembler,
    buffer: Vec<u8>,
    unsent: VecDeque<Vec<u8>>,
    broken: bool,
}

impl Control {
    pub(crate) fn new(socket: OwnedFd, wire: Wire) -> Self {
        let (assembler, unsent) = (Assembler::default(), VecDeque::new());
        Self { socket, wire, assembler, buffer: Vec::new(), unsent, broken: false }
    }

    pub(crate) fn wire(&self) -> Wire {
        self.wire
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Packets that wait for the host to read.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, message: &FromForkServer) {
        let encode_packets = |message: &FromForkServer| self.wire.encode_packets(message);
        let packets = match (encode_packets(message), message) {
            // Too long with all its command lines.
            (Err(_), FromForkServer::ProxyGone { session, process, exit, receipt }) => {
                let receipt = Box::new(receipt.as_ref().clone().without_commands());
                let (session, process, exit) = (session.clone(), *process, *exit);
                encode_packets(&FromForkServer::ProxyGone { session, process, exit, receipt })
            }
            // As many as fit without their arguments.
            (Err(_), FromForkServer::Listed { session, processes }) => {
                let bare = |info: &ProcessInfo| ProcessInfo { args: Vec::new(), ..info.clone() };
                let processes = processes.iter().take(MAX_LISTED).map(bare).collect();
                encode_packets(&FromForkServer::Listed { session: session.clone(), processes })
            }
            (packets, _) => packets,
        };
        match packets {
            Ok(packets) if self.unsent.len() + packets.len() <= MAX_UNSENT => {
                self.unsent.extend(packets);
                self.flush();
            }
            Ok(_) => self.broken = true,
            // Something of a session that is too long to be said, which is no fault of the host's.
            Err(_) => {}
        }
    }

    /// Sends what can be sent.
    pub(crate) fn flush(&mut self) {
        while let Some(packet) = self.unsent.front() {
            match send_packet(&self.socket, packet, None) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    self.broken = true;
                    self.unsent.clear();
                }
                // Full, or the system is short of something: there will be another try.
                Err(_) => return,
            }
        }
    }

    /// The next request; `None` if there is none yet.
    ///
    /// # Errors
    /// When the host is gone or its bytes are no requests.
    pub(crate) fn receive(&mut self) -> io::Result<Option<(ToForkServer, Option<OwnedFd>)>> {
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        loop {
            let fd = match recv_packet(&self.socket, &mut self.buffer) {
                Ok(Some(fd)) => fd,
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The descriptor was dropped for want of a free number; the packet itself is there.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
                Err(error) => return Err(error),
            };
            match self.wire.frame(&mut self.assembler, &self.buffer).map_err(io::Error::other)? {
                Some(Heard::Known(request)) => return Ok(Some((request, fd))),
                // A later release's, which can do without it.
                Some(Heard::Unknown(_)) | None => {}
            }
        }
    }
}
