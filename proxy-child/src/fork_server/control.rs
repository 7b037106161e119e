//! Control socket to the host, on the fork server's side.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use ipc_protocol::{
    ProcessInfo,
    codec::MessageAssembler,
    message::{FromForkServer, ToForkServer},
    packet::recv_packet,
    reattach::{ReceivedMessage, WireFormat},
};
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, MultiHeaders, sendmmsg},
};

/// Most packets queued for a host that does not read. Each session causes a few in its life; a host with this backlog has stopped,
/// and is treated as gone.
const MAX_UNSENT: usize = 64 * 1024;

/// Most packets sent with one call.
const MAX_PACKETS_PER_CALL: usize = 64;

/// Most processes of a list that is too long with all their details.
const MAX_LISTED: usize = 2048;

pub(crate) struct HostChannel {
    socket: OwnedFd,
    wire: WireFormat,
    assembler: MessageAssembler,
    buffer: Vec<u8>,
    unsent: VecDeque<Vec<u8>>,
    broken: bool,
}

impl HostChannel {
    pub(crate) fn new(socket: OwnedFd, wire: WireFormat) -> Self {
        let (assembler, unsent) = (MessageAssembler::default(), VecDeque::new());
        Self { socket, wire, assembler, buffer: Vec::new(), unsent, broken: false }
    }

    pub(crate) fn wire(&self) -> WireFormat {
        self.wire
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns whether the host was found gone. The next [`HostChannel::receive`] then fails.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns the number of packets that wait for the host to read.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Queues a message, and sends as much as the socket accepts.
    pub(crate) fn send(&mut self, message: &FromForkServer) {
        self.queue(message);
        self.flush();
    }

    /// Queues a message for the next [`HostChannel::flush`].
    pub(crate) fn queue(&mut self, message: &FromForkServer) {
        let encode_packets = |message: &FromForkServer| self.wire.encode_packets(message);
        let packets = match (encode_packets(message), message) {
            // The message is too long with all the command lines.
            (Err(_), FromForkServer::ProxyGone { session, process, exit, receipt }) => {
                let receipt = Box::new(receipt.as_ref().clone().without_commands());
                let (session, process, exit) = (session.clone(), *process, *exit);
                encode_packets(&FromForkServer::ProxyGone { session, process, exit, receipt })
            }
            // As many processes as fit without their arguments.
            (Err(_), FromForkServer::Listed { session, processes }) => {
                let bare = |info: &ProcessInfo| ProcessInfo { args: Vec::new(), ..info.clone() };
                let processes = processes.iter().take(MAX_LISTED).map(bare).collect();
                encode_packets(&FromForkServer::Listed { session: session.clone(), processes })
            }
            (packets, _) => packets,
        };
        match packets {
            Ok(packets) if self.unsent.len() + packets.len() <= MAX_UNSENT => self.unsent.extend(packets),
            Ok(_) => self.broken = true,
            // Something of a session is too long to be sent, which is not the host's fault.
            Err(_) => {}
        }
    }

    /// Sends as much as the socket accepts, many packets with one call: a host that the first packet wakes finds the others.
    pub(crate) fn flush(&mut self) {
        while !self.unsent.is_empty() {
            let packets: Vec<_> =
                self.unsent.iter().take(MAX_PACKETS_PER_CALL).map(|packet| [IoSlice::new(packet)]).collect();
            let mut headers = MultiHeaders::preallocate(packets.len(), None);
            let (addresses, flags) = (vec![None::<()>; packets.len()], MsgFlags::MSG_NOSIGNAL);
            match sendmmsg(self.socket.as_raw_fd(), &mut headers, &packets, &addresses, [], flags).map(Iterator::count)
            {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::EPIPE | Errno::ECONNRESET) => {
                    self.broken = true;
                    self.unsent.clear();
                }
                // The socket is full, or the system lacks a resource: the next flush tries again.
                Err(_) => return,
            }
        }
    }

    /// Returns the next request, or `None` if there is none yet.
    ///
    /// # Errors
    /// The host is gone, or its bytes are no requests.
    pub(crate) fn receive(&mut self) -> io::Result<Option<(ToForkServer, Option<OwnedFd>)>> {
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        loop {
            let fd = match recv_packet(&self.socket, &mut self.buffer) {
                Ok(Some(fd)) => fd,
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The process had no free descriptor number, so the descriptor was dropped; the packet itself has arrived.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
                Err(error) => return Err(error),
            };
            match self.wire.frame(&mut self.assembler, &self.buffer).map_err(io::Error::other)? {
                Some(ReceivedMessage::Understood(request)) => return Ok(Some((request, fd))),
                // A request of a later release, which works without it.
                Some(ReceivedMessage::Unknown(_)) | None => {}
            }
        }
    }
}
