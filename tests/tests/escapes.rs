//! Ways out of a sandbox: each member of `zoo::ESCAPES` is run in one, and nothing of what it tries may come out.
//!
//! A few are in every run; all, in both forms of the sandbox, with AGENT_PROXY_ZOO=full. Run as root and as an ordinary user
//! (tests/full does both).

use std::{
    fs::{self, Permissions},
    io::{ErrorKind, Read, Write},
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{MetadataExt, PermissionsExt},
            net::{SocketAddr, UnixListener},
        },
    },
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use agent_proxy_tests::{
    namespaces::{is_apart, ordinary_without_namespaces, root_without_namespaces},
    sessions::{self, all, shell, soon},
    system::not_run,
};
use ipc_protocol::FileLayer;
use proxy_manager::{AgentSessionConfig, Event, NetworkAccess, ProxyManager, SandboxMode, SessionId, SessionSandbox};
use tempfile::TempDir;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");
/// Members that every run has: one for each thing that holds.
const SMOKE: [&str; 15] = [
    "read-symlink",
    "read-init-root",
    "read-hard-link",
    "unmount-in-namespace",
    "bind-around",
    "remount",
    "trace",
    "unix-socket",
    "abstract-socket",
    "tcp-loopback",
    "raw-sockets",
    "io-uring",
    "redirect",
    "write-plain",
    "change-modes",
];
/// Members that try the network, which a sandbox without a namespace leaves as it is.
const NETWORK: [&str; 14] = [
    "tcp-loopback",
    "tcp-v6",
    "udp",
    "quic",
    "raw-sockets",
    "netlink",
    "enter-network",
    "dns-tunnel",
    "metadata",
    "proxy-other-port",
    "proxy-host-header",
    "proxy-greeting",
    "redirect",
    "vsock",
];
/// Member that ends its own session.
const ENDS_ITSELF: &str = "kill-all";

/// What the members try to reach.
struct Outside {
    scratch: TempDir,
    key: String,
    sockets: [UnixListener; 2],
    abstract_name: String,
    tcp: TcpListener,
    udp: UdpSocket,
    allowed: u16,
    /// All that the allowed port has got.
    got: Arc<Mutex<Vec<u8>>>,
}

impl Outside {
    fn new() -> Self {
        // Not below /tmp, which a sandbox has for itself, if that can be had.
        let scratch =
            tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).expect("a directory");
        for directory in ["home/.ssh", "outside", "work"] {
            fs::create_dir_all(scratch.path().join(directory)).expect("made");
        }
        let key = format!("ESCAPED-{}", SessionId::mint());
        fs::write(scratch.path().join("home/.ssh/key"), &key).expect("written");
        let abstract_name = format!("agent-proxy-escapes-{}", SessionId::mint());
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("a name");
        let sockets = [
            UnixListener::bind(scratch.path().join("outside/s")).expect("bound"),
            UnixListener::bind_addr(&address).expect("bound"),
        ];
        let tcp = TcpListener::bind("127.0.0.1:0").expect("bound");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("bound");
        for socket in &sockets {
            socket.set_nonblocking(true).expect("set");
        }
        tcp.set_nonblocking(true).expect("set");
        udp.set_nonblocking(true).expect("set");
        let (allowed, got) = serve(tcp.local_addr().expect("an address").port());
        let outside = Self { scratch, key, sockets, abstract_name, tcp, udp, allowed, got };
        outside.restore();
        outside
    }

    /// Makes the files that members try to change.
    fn restore(&self) {
        let _ = fs::remove_dir_all(self.path("outside/made"));
        let _ = fs::remove_file(self.path("outside/made"));
        fs::write(self.path("outside/kept"), "kept").expect("written");
        for path in ["outside/kept", "home/.ssh/key"] {
            fs::set_permissions(self.path(path), Permissions::from_mode(0o640)).expect("set");
        }
    }

    fn path(&self, below: &str) -> String {
        self.scratch.path().join(below).to_str().expect("UTF-8").to_owned()
    }

    fn config(&self, member: &str, mode: SandboxMode) -> AgentSessionConfig {
        let work = self.path(&format!("work/{member}-{mode}"));
        fs::create_dir_all(&work).expect("made");
        fs::write(format!("{work}/file"), "file").expect("written");
        let port = |address: std::io::Result<std::net::SocketAddr>| address.expect("an address").port().to_string();
        let words = [
            zoo::ESCAPES.to_owned(),
            member.to_owned(),
            self.path("home/.ssh/key"),
            self.path("outside"),
            self.path("outside/s"),
            self.abstract_name.clone(),
            port(self.tcp.local_addr()),
            port(self.udp.local_addr()),
            std::process::id().to_string(),
            self.allowed.to_string(),
        ];
        let rule = format!("127.0.0.1:{}", self.allowed).parse().expect("a rule");
        // In the weaker form the network is the stricter one.
        let network =
            if mode == SandboxMode::Workspace { NetworkAccess::Allow(vec![rule]) } else { NetworkAccess::Off };
        // What runs in a working directory that it may not write has another place for its attempts.
        let script = match mode {
            SandboxMode::Workspace => "exec \"$@\"",
            _ => "cd \"${TMPDIR:-/tmp}\" && echo file >file && exec \"$@\"",
        };
        let command = ["/bin/sh", "-c", script, "sh"].map(str::to_owned).into_iter().chain(words).collect();
        let sandbox = SessionSandbox { mode: Some(mode), network: Some(network), ..SessionSandbox::default() };
        let env = [("SSH_AUTH_SOCK", self.path("outside/s"))].into_iter().collect();
        AgentSessionConfig { command, cwd: Some(work), sandbox, env, ..shell("") }
    }

    /// Everything that has come out, with the output of a member.
    fn escaped(&self, text: &str) -> Vec<String> {
        let mut escaped: Vec<String> =
            text.lines().filter(|line| line.contains("OUT:") || line.contains(&self.key)).map(str::to_owned).collect();
        let mut files: Vec<_> = fs::read_dir(self.path("outside"))
            .expect("listed")
            .map(|entry| entry.expect("listed").file_name())
            .collect();
        files.sort();
        if files != ["kept", "s"] || fs::read_to_string(self.path("outside/kept")).expect("there") != "kept" {
            escaped.push(format!("files outside: {files:?}"));
        }
        for path in ["outside/kept", "home/.ssh/key", "outside"] {
            let Ok(found) = fs::metadata(self.path(path)) else { continue };
            if found.mtime() < 1_000_000_000 || path != "outside" && found.mode() & 0o7777 != 0o640 {
                escaped.push(format!("mode and time of {path}: {:o} {}", found.mode(), found.mtime()));
            }
        }
        if fs::read_to_string(self.path("home/.ssh/key")).expect("there") != self.key {
            escaped.push("the key was changed".into());
        }
        for (name, socket) in ["socket", "abstract socket"].into_iter().zip(&self.sockets) {
            if socket.accept().is_ok() {
                escaped.push(format!("a connection to the {name}"));
            }
        }
        if self.tcp.accept().is_ok() {
            escaped.push("a connection to the port".into());
        }
        if self.udp.recv(&mut [0; 64]).is_ok() {
            escaped.push("a datagram".into());
        }
        let got = std::mem::take(&mut *self.got.lock().unwrap_or_else(PoisonError::into_inner));
        if String::from_utf8_lossy(&got).contains("evil") {
            escaped.push("another host's request at the allowed port".into());
        }
        escaped
    }
}

/// Serves the allowed port: `/redirect` leads to `other`.
fn serve(other: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    let got = Arc::new(Mutex::new(Vec::new()));
    let all = got.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(300)));
            let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
            loop {
                match stream.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(length) => request.extend_from_slice(&chunk[..length]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            let answer = match request.starts_with(b"GET /redirect ") {
                true => {
                    format!("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{other}/out\r\nContent-Length: 0\r\n\r\n")
                }
                false => "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nallowed".to_owned(),
            };
            all.lock().unwrap_or_else(PoisonError::into_inner).extend(request);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (port, got)
}

async fn manager(outside: &Outside) -> ProxyManager {
    let env = [("PATH", "/usr/bin:/bin".to_owned()), ("HOME", outside.path("home"))].into_iter().collect();
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), FAKE).base_env(env);
    soon("a manager", builder.build()).await.expect("built")
}

/// Output of a session, and the layer of its sandbox.
struct Output {
    text: String,
    layer: Option<String>,
}

async fn output(manager: &ProxyManager, config: AgentSessionConfig) -> Output {
    let session = soon("a start", manager.start_session(config)).await.expect("started");
    let (mut text, mut layer) = (String::new(), None);
    for envelope in all(&mut session.subscribe()).await {
        match &envelope.event {
            Event::Text { text: more } => text.push_str(more),
            Event::Log { text: more, .. } => text.push_str(more),
            Event::SessionStarted { measures, .. } => {
                layer = measures.sandbox.as_ref().map(|sandbox| sandbox.layer.clone());
            }
            _ => {}
        }
    }
    Output { text, layer }
}

#[tokio::test]
async fn nothing_gets_out() {
    try_members(FileLayer::Mounts).await;
}

/// The members but those of the network, where there are no namespaces.
#[tokio::test]
async fn nothing_gets_out_of_an_ordinary_user_s_sandbox_without_namespaces() {
    let name = "nothing_gets_out_of_an_ordinary_user_s_sandbox_without_namespaces";
    if is_apart(ordinary_without_namespaces, name) {
        try_members(FileLayer::Landlock).await;
    }
}

#[tokio::test]
async fn nothing_gets_out_of_root_s_sandbox_without_namespaces() {
    if is_apart(root_without_namespaces, "nothing_gets_out_of_root_s_sandbox_without_namespaces") {
        try_members(FileLayer::Landlock).await;
    }
}

async fn try_members(layer: FileLayer) {
    let is_full = std::env::var("AGENT_PROXY_ZOO").is_ok_and(|value| value == "full");
    let outside = Outside::new();
    let manager = manager(&outside).await;
    let known = zoo::escapes();
    assert!(known.len() >= 40 && SMOKE.iter().all(|member| known.contains(&(*member).to_owned())), "{known:?}");
    assert!(NETWORK.iter().all(|member| known.contains(&(*member).to_owned())), "{known:?}");
    let modes: &[SandboxMode] =
        if is_full { &[SandboxMode::Workspace, SandboxMode::ReadOnly] } else { &[SandboxMode::Workspace] };
    let is_run = |member: &str| {
        (is_full || SMOKE.contains(&member)) && (layer == FileLayer::Mounts || !NETWORK.contains(&member))
    };
    let mut wrong = Vec::new();
    for mode in modes {
        for member in known.iter().filter(|member| is_run(member)) {
            let mut config = outside.config(member, *mode);
            if layer == FileLayer::Landlock {
                config.sandbox.network = None;
            }
            let Output { text, layer: found } = output(&manager, config).await;
            assert_eq!(found.as_deref(), Some(layer.to_string().as_str()), "{member}");
            let escaped = outside.escaped(&text);
            if !escaped.is_empty() {
                wrong.push(format!("{member} in {mode}: {}", escaped.join("; ")));
            }
            for why in text.lines().filter_map(|line| line.strip_prefix("unavailable: ")) {
                not_run(format_args!("{member}, all of it: {why}"));
            }
            if member != ENDS_ITSELF && !text.lines().any(|line| line == "tried") {
                wrong.push(format!("{member} in {mode} was not tried to its end: {text}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    soon("the end", manager.shutdown()).await;
}

/// The same members without a sandbox, so that what holds them is the sandbox.
#[tokio::test]
async fn without_a_sandbox_they_get_out() {
    let outside = Outside::new();
    let manager = manager(&outside).await;
    for member in
        ["read-symlink", "unix-socket", "abstract-socket", "tcp-loopback", "udp", "write-plain", "change-modes"]
    {
        let mut config = outside.config(member, SandboxMode::Workspace);
        config.sandbox = SessionSandbox::default();
        config.hardening.landlock = Some(false);
        let Output { text, .. } = output(&manager, config).await;
        assert!(!outside.escaped(&text).is_empty(), "{member}: {text}");
        outside.restore();
    }
    soon("the end", manager.shutdown()).await;
}
