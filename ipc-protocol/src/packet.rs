//! Packets with descriptors, for the socket between host and fork server.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, sendmsg, socketpair,
};

use crate::codec::MAX_FRAME;

/// Creates a connected pair of non-blocking, close-on-exec packet sockets.
///
/// # Errors
/// The system's, when out of descriptors.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

/// Creates a connected pair of non-blocking, close-on-exec stream sockets.
///
/// # Errors
/// The system's, when out of descriptors.
pub fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

/// Sends one packet, with an optional descriptor beside it.
///
/// # Errors
/// `WouldBlock` when the socket is full; `BrokenPipe` when the other side is gone. Nothing was sent then.
pub fn send_packet(socket: impl AsFd, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let fds: &[BorrowedFd<'_>] = fd.as_slice();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one packet and the descriptor beside it. `None` when the other side has closed.
///
/// # Errors
/// `WouldBlock` when there is no packet yet. `InvalidData` when a packet or its descriptor was cut off: the kernel
/// silently drops a descriptor when the descriptor table is full.
pub fn recv_packet(socket: impl AsFd, buffer: &mut Vec<u8>) -> io::Result<Option<Option<OwnedFd>>> {
    // Grow the buffer as needed only: one for the longest packet is 16 pages, each of which would be copied after a
    // fork.
    let (_, len) = recv(&socket, &mut [0; 0], RecvFlags::PEEK | RecvFlags::TRUNC)?;
    // At least one byte: nothing can be received into an empty buffer.
    buffer.resize(len.clamp(1, MAX_FRAME), 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    buffer.truncate(got.bytes);
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the descriptor beside a packet was dropped: out of file descriptors",
        ));
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a packet of more than {MAX_FRAME} bytes")));
    }
    // Our packets are never empty: an empty read is the end.
    Ok((got.bytes > 0).then_some(fd))
}

/// Receives the available bytes of a stream, and a descriptor beside them. Returns the number of bytes, 0 at the
/// end.
///
/// # Errors
/// `WouldBlock` when there is nothing yet; the system's.
pub fn recv_bytes(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((got.bytes, fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_travels_with_its_packet() {
        let (a, b) = packet_pair().expect("a pair");
        let (left, right) = stream_pair().expect("a pair");
        let mut buffer = Vec::new();
        send_packet(&a, b"take this", Some(left.as_fd())).expect("sent");
        send_packet(&a, b"and this", None).expect("sent");
        drop(left);
        let taken = recv_packet(&b, &mut buffer).expect("received").expect("open").expect("a descriptor");
        assert_eq!(buffer, b"take this");
        rustix::io::write(&taken, b"x").expect("the descriptor is the socket");
        assert_eq!(rustix::io::read(&right, &mut [0; 4]).expect("read"), 1);
        assert!(recv_packet(&b, &mut buffer).expect("received").expect("open").is_none());
        assert_eq!(buffer, b"and this");
        assert_eq!(recv_packet(&b, &mut buffer).expect_err("empty").kind(), io::ErrorKind::WouldBlock);
        drop(a);
        assert!(recv_packet(&b, &mut buffer).expect("end").is_none());
    }
}
