//! Process of the agent, with its pipes.

use std::{future::pending, io};

use ipc_protocol::ProcessId;
use registry::{PidFd, SpawnedProcess};
use tokio::net::unix::pipe;

/// Most bytes queued for an agent that does not read. A prompt is at most one message of the wire long; a few fit.
const MAX_UNREAD: usize = 4 * ipc_protocol::codec::MAX_MESSAGE;
/// Most bytes of one read: the capacity of a pipe.
const CHUNK: usize = 64 * 1024;

pub(crate) struct AgentProcess {
    pub(crate) process: PidFd,
    stdin: Option<pipe::Sender>,
    unread: Vec<u8>,
    /// True if the input is to be closed once the queue is empty.
    closes_when_drained: bool,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    chunk: Vec<u8>,
}

/// Output stream of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

impl AgentProcess {
    pub(crate) fn new(spawned: SpawnedProcess) -> io::Result<Self> {
        Ok(Self {
            process: spawned.process,
            stdin: spawned.stdin.map(pipe::Sender::from_owned_fd).transpose()?,
            unread: Vec::new(),
            closes_when_drained: false,
            stdout: spawned.stdout.map(pipe::Receiver::from_owned_fd).transpose()?,
            stderr: spawned.stderr.map(pipe::Receiver::from_owned_fd).transpose()?,
            chunk: Vec::new(),
        })
    }

    /// Returns whether it has a pipe for its input.
    pub(crate) fn has_input(&self) -> bool {
        self.stdin.is_some()
    }

    pub(crate) fn id(&self) -> ProcessId {
        self.process.id()
    }

    /// Queues bytes for the agent's standard input and writes what it accepts.
    ///
    /// # Errors
    /// The agent has closed its standard input, or reads so slowly that too much would be queued.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.stdin.is_none() || self.closes_when_drained {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the agent's standard input is closed"));
        }
        if self.unread.len() + bytes.len() > MAX_UNREAD {
            let text = format!("the agent has not read {} bytes of its standard input", self.unread.len());
            return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
        }
        self.unread.extend_from_slice(bytes);
        self.flush()
    }

    /// Closes the agent's standard input as soon as the queue is empty.
    pub(crate) fn close_input(&mut self) {
        self.closes_when_drained = true;
        if self.unread.is_empty() {
            self.stdin = None;
        }
    }

    /// Writes what the agent accepts.
    ///
    /// # Errors
    /// The agent has closed its standard input.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(stdin) = &self.stdin else { return Ok(()) };
        let mut written = 0;
        let result = loop {
            if written == self.unread.len() {
                break Ok(());
            }
            match stdin.try_write(&self.unread[written..]) {
                Ok(some) => written += some,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.unread.drain(..written);
        if result.is_err() {
            self.stdin = None;
            self.unread = Vec::new();
        }
        if self.closes_when_drained && self.unread.is_empty() {
            self.stdin = None;
        }
        result
    }

    /// Reads from one output, up to a chunk. Returns `None` if there is nothing now, or never will be.
    pub(crate) fn read(&mut self, output: OutputStream) -> Option<&[u8]> {
        let pipe = match output {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        self.chunk.resize(CHUNK, 0);
        let open = pipe.as_ref()?;
        let read = match open.try_read(&mut self.chunk) {
            // The runtime returns this without a read if it has not polled since something was written, and the writer may be dead by now.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                rustix::io::read(open, &mut self.chunk).map_err(io::Error::from)
            }
            read => read,
        };
        match read {
            Ok(0) => *pipe = None,
            Ok(read) => return Some(&self.chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => *pipe = None,
        }
        None
    }
}

/// Waits until the agent accepts more of its queued input.
pub(crate) async fn writable(agent: Option<&AgentProcess>) {
    match agent.and_then(|agent| agent.stdin.as_ref().filter(|_| !agent.unread.is_empty())) {
        Some(stdin) if stdin.writable().await.is_ok() => {}
        _ => pending().await,
    }
}

/// Waits until there is standard output to read.
pub(crate) async fn stdout_readable(agent: Option<&AgentProcess>) {
    readable(agent.and_then(|agent| agent.stdout.as_ref())).await;
}

/// Waits until there is standard error to read.
pub(crate) async fn stderr_readable(agent: Option<&AgentProcess>) {
    readable(agent.and_then(|agent| agent.stderr.as_ref())).await;
}

async fn readable(pipe: Option<&pipe::Receiver>) {
    match pipe {
        Some(pipe) if pipe.readable().await.is_ok() => {}
        _ => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd, time::Duration};

    use registry::{SpawnOutput as To, SpawnRequest};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// A proxy may learn of the end from its own scan of the processes, before the runtime has polled the pipes at all.
    #[tokio::test(flavor = "current_thread")]
    async fn what_a_dead_agent_said_is_read_without_a_turn_of_the_runtime() {
        let argv = ["echo", "last words"].map(Into::into).to_vec();
        let echo = SpawnRequest { argv, stdout: To::Pipe, ..SpawnRequest::new("/bin/echo") };
        let mut agent = AgentProcess::new(registry::spawn(echo).expect("started")).expect("watched");
        let mut died = [PollFd::from_borrowed_fd(agent.process.as_fd(), PollFlags::IN)];
        let deadline = Timespec::try_from(Duration::from_secs(20)).expect("short");
        assert_eq!(poll(&mut died, Some(&deadline)).expect("waited"), 1, "it is still alive");
        assert_eq!(agent.read(OutputStream::Stdout), Some(&b"last words\n"[..]));
        assert_eq!(agent.read(OutputStream::Stdout), None);
    }
}
