//! A host without a manager: it speaks to the fork server and to proxies message by message.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::Instant,
};

use ipc_protocol::{
    AgentSessionConfig, ContainmentSpec, Event, Json, Limits, MARKER, ProcessId, SessionId,
    codec::{Inbox, MessageAssembler, encode, encode_packets},
    message::{AgentCommand, FromForkServer, FromProxy, Hello, ProxyCommand, ToForkServer, ToProxy, VERSION},
    packet::{packet_pair, recv_packet, send_packet, stream_pair},
};
use registry::{PidFd, SpawnOutput, SpawnRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::system::DEADLINE;

/// Waits until `fd` is readable; panics after [`DEADLINE`].
fn wait_readable(fd: impl AsFd, what: &str) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).expect("in range");
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Ok(0) => panic!("nothing within {DEADLINE:?}: {what}"),
            Ok(_) => return,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// A fork server and the socket to it.
pub struct RawForkServer {
    /// The socket; taken to close it.
    pub control: Option<OwnedFd>,
    /// The fork server.
    pub process: PidFd,
    assembler: MessageAssembler,
}

impl RawForkServer {
    /// Starts the child binary `child` as a fork server of this process and takes its `Hello`.
    pub fn start(child: &Path) -> Self {
        let (control, theirs) = packet_pair().expect("a pair");
        let host = PidFd::open(registry::identify(std::process::id()).expect("alive")).expect("a pidfd");
        let host = host.as_fd().try_clone_to_owned().expect("a copy");
        let program = SpawnRequest {
            argv: proxy_child::fork_server_argv(0),
            stderr: SpawnOutput::Inherit,
            fds: vec![theirs, host],
            ..SpawnRequest::new(child)
        };
        let process = registry::spawn(program).expect("started").process;
        let mut server = Self { control: Some(control), process, assembler: MessageAssembler::default() };
        match server.receive() {
            FromForkServer::Hello(hello) => assert_eq!((hello.version, hello.process), (VERSION, server.process.id())),
            other => panic!("{other:?}"),
        }
        let own = registry::identify(std::process::id()).expect("alive");
        server.send(&ToForkServer::Hello(Hello { version: VERSION, process: own }), None);
        server
    }

    /// Sends a message.
    pub fn send(&self, message: &ToForkServer, fd: Option<&OwnedFd>) {
        for packet in encode_packets(message).expect("encodable") {
            send_packet(self.control.as_ref().expect("open"), &packet, fd.map(AsFd::as_fd)).expect("sent");
        }
    }

    /// The next message that is not about a session's processes.
    pub fn receive(&mut self) -> FromForkServer {
        let control = self.control.as_ref().expect("open");
        let mut buffer = Vec::new();
        loop {
            wait_readable(control, "a message of the fork server");
            let _none = recv_packet(control, &mut buffer).expect("received").expect("open");
            match self.assembler.frame(&buffer).expect("a message") {
                None | Some(FromForkServer::Observed { .. }) => {}
                Some(message) => return message,
            }
        }
    }

    /// The next process event, or other thing that is seen of a session.
    pub fn observed<T>(&mut self, what: &str, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
        let control = self.control.as_ref().expect("open");
        let mut buffer = Vec::new();
        loop {
            wait_readable(control, what);
            let _none = recv_packet(control, &mut buffer).expect("received").expect("open");
            if let Some(FromForkServer::Observed { event, .. }) = self.assembler.frame(&buffer).expect("a message")
                && let Some(found) = wanted(event)
            {
                return found;
            }
        }
    }

    /// Forks a proxy, without greeting it.
    pub fn fork(&mut self, session: &SessionId) -> (RawProxy, PidFd) {
        self.fork_limited(session, Limits::default())
    }

    /// Forks a proxy for a session of which the fork server knows these limits.
    pub fn fork_limited(&mut self, session: &SessionId, limits: Limits) -> (RawProxy, PidFd) {
        let (ours, theirs) = stream_pair().expect("a pair");
        let enclosure = enclosure(session);
        let (session_id, detach, card) = (session.clone(), None, Json::null());
        let fork = ToForkServer::Fork { session: session_id, enclosure: Box::new(enclosure), limits, detach, card };
        self.send(&fork, Some(&theirs));
        drop(theirs);
        match self.receive() {
            FromForkServer::Forked { session: of, process } => {
                assert_eq!(of, *session);
                let process = PidFd::open(process).expect("it lives");
                (RawProxy { socket: ours, inbox: Inbox::default() }, process)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the fork server's end.
    pub fn join(mut self) {
        self.control = None;
        wait_readable(&self.process, "the fork server's end");
        let exit = self.process.try_reap().expect("our child").expect("dead");
        assert!(exit.success(), "{exit}");
    }
}

/// The socket to a proxy.
pub struct RawProxy {
    /// The socket.
    pub socket: OwnedFd,
    inbox: Inbox,
}

impl RawProxy {
    /// Sends a message.
    pub fn send(&self, message: &ToProxy) {
        let mut bytes = Vec::new();
        encode(message, &mut bytes).expect("encodable");
        self.send_bytes(&bytes);
    }

    /// Sends bytes that may be anything.
    pub fn send_bytes(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match rustix::io::write(&self.socket, bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
                Err(error) => panic!("write: {error}"),
            }
        }
    }

    /// The next message; `None` when the proxy has closed.
    pub fn try_receive(&mut self) -> Option<FromProxy> {
        loop {
            if let Some(message) = self.inbox.next_message().expect("a message") {
                return Some(message);
            }
            wait_readable(&self.socket, "a message of the proxy");
            match rustix::io::read(&self.socket, self.inbox.spare()) {
                Ok(0) | Err(rustix::io::Errno::CONNRESET) => return None,
                Ok(read) => self.inbox.filled(read),
                Err(rustix::io::Errno::AGAIN) => {}
                Err(error) => panic!("read: {error}"),
            }
        }
    }

    /// The next message that `wanted` wants; others are dropped.
    pub fn receive<T>(&mut self, what: &str, mut wanted: impl FnMut(FromProxy) -> Option<T>) -> T {
        loop {
            let message = self.try_receive().unwrap_or_else(|| panic!("the proxy closed before: {what}"));
            if let Some(found) = wanted(message) {
                return found;
            }
        }
    }

    /// Exchanges the `Hello`s.
    pub fn greet(&mut self) -> ProcessId {
        let own = registry::identify(std::process::id()).expect("alive");
        self.send(&ToProxy::Hello(Hello { version: VERSION, process: own }));
        match self.try_receive() {
            Some(FromProxy::Hello(hello)) => {
                assert_eq!(hello.version, VERSION);
                hello.process
            }
            other => panic!("{other:?}"),
        }
    }

    /// Starts a shell script as the session's agent and waits until it is ready; returns the agent's process.
    pub fn start_shell(&mut self, session: &SessionId, script: &str) -> ProcessId {
        self.start_shell_of(session, "command", "/", script)
    }

    /// Starts a shell script like [`RawProxy::start_shell`], with the adapter of `protocol`, in `cwd`.
    pub fn start_shell_of(&mut self, session: &SessionId, protocol: &str, cwd: &str, script: &str) -> ProcessId {
        let enclosure = enclosure(session);
        let env = [("PATH", "/usr/bin:/bin"), ("AGENT_PROXY_SESSION", session.as_str()), (MARKER, &enclosure.marker)];
        let env = env.into_iter().collect();
        let command = AgentCommand {
            private: Vec::new(),
            agent: "command".into(),
            protocol: protocol.into(),
            argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
            env,
            cwd: None,
            protocol_config: Json::null(),
            fresh_id: "0193a5a8-0000-7000-8000-000000000000".into(),
            resume: None,
            endpoint: None,
            max_turns: None,
            asking: ipc_protocol::message::PermissionSupport::default(),
            companion: Vec::new(),
            socket: None,
            upstream: None,
        };
        let config = AgentSessionConfig {
            session_id: session.clone(),
            cwd: Some(cwd.into()),
            ..AgentSessionConfig::new("command")
        };
        let (config, command, enclosure) = (Box::new(config), Box::new(command), Box::new(enclosure));
        self.send(&ToProxy::Request { request: 1, command: ProxyCommand::Start { config, command, enclosure } });
        self.receive("started", |message| match message {
            FromProxy::Started { process, .. } => Some(process),
            FromProxy::Failed { error, .. } => panic!("{error}"),
            _ => None,
        })
    }
}

/// Layer A alone, with a marker that only this test process uses.
pub fn enclosure(session: &SessionId) -> ContainmentSpec {
    ContainmentSpec { marker: format!("{session}-{}", std::process::id()), ..ContainmentSpec::default() }
}

/// Kills a process that a test started, and nothing else.
///
/// # Errors
/// When it is gone.
pub fn sigkill(process: &PidFd) -> io::Result<()> {
    process.signal(ipc_protocol::Signal::Kill)
}
