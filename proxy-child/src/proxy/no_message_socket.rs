//! Stands in for the WebSocket client in a build without one: each connection fails, with the feature that is missing.

use std::{fs::File, io, os::fd::OwnedFd, path::Path, sync::Arc};

use tokio::sync::Notify;

const MISSING: &str = "this build has no WebSocket client: build it with the feature `websocket`";

/// Connection to an agent's socket, which there is none of.
pub(crate) enum MessageSocket {}

/// Pipes in the place of the agent's standard input and output.
pub(crate) struct SocketPipes {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
}

impl MessageSocket {
    /// Fails.
    pub(crate) fn connect(_: &Path, _: Option<File>, _: Arc<Notify>) -> io::Result<(Self, SocketPipes)> {
        Err(io::Error::new(io::ErrorKind::Unsupported, MISSING))
    }

    /// Returns the reason why the connection has ended.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        match *self {}
    }
}
