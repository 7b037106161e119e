//! Files and network of sessions in a sandbox.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
};

use agent_proxy_tests::{
    namespaces::{is_apart, ordinary_without_namespaces, root_without_namespaces},
    sessions::{self, all, shell, soon},
    system::not_run,
};
use agents::{AgentSpec, ModelConfig};
use proxy_manager::{
    AgentSessionConfig, Containment, Error, Event, Home, ManagerBuilder, NetworkAccess, Profile, Profiles,
    ProxyManager, SandboxMode, SandboxStatus, SessionId, SessionSandbox,
};
use tempfile::TempDir;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");

/// A user with keys and a workspace.
struct User {
    scratch: TempDir,
    manager: ProxyManager,
}

impl User {
    async fn new(adapt: impl FnOnce(ManagerBuilder) -> ManagerBuilder) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        for (file, text) in [
            ("home/.ssh/id", "PRIVATE"),
            ("home/.aws/credentials", "PRIVATE"),
            ("home/.config/gcloud/key", "PRIVATE"),
            ("home/.codex/auth.json", "PRIVATE"),
            ("home/.netrc", "PRIVATE"),
            ("home/.config/tool/settings", "harmless"),
            ("home/.profile", "harmless"),
            ("work/file", "before"),
        ] {
            let file = scratch.path().join(file);
            fs::create_dir_all(file.parent().expect("a parent")).expect("made");
            fs::write(file, text).expect("written");
        }
        let home = scratch.path().join("home").to_str().expect("UTF-8").to_owned();
        let env = [("PATH", "/usr/bin:/bin".to_owned()), ("HOME", home)].into_iter().collect();
        let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), FAKE).base_env(env);
        let builder = adapt(builder.state_dir(scratch.path().join("state")));
        Self { manager: soon("a manager", builder.build()).await.expect("built"), scratch }
    }

    fn path(&self, below: &str) -> String {
        self.scratch.path().join(below).to_str().expect("UTF-8").to_owned()
    }

    fn config(&self, mode: SandboxMode, script: &str) -> AgentSessionConfig {
        let sandbox = SessionSandbox { mode: Some(mode), ..SessionSandbox::default() };
        AgentSessionConfig { cwd: Some(self.path("work")), sandbox, ..shell(script) }
    }

    /// Lines that a session writes, and the sandbox that it says is in force.
    async fn run(&self, config: AgentSessionConfig) -> (Vec<String>, Option<SandboxStatus>) {
        let session = soon("a start", self.manager.start_session(config)).await.expect("started");
        let (mut text, mut status) = (String::new(), None);
        for envelope in all(&mut session.subscribe()).await {
            match &envelope.event {
                Event::Text { text: more } => text.push_str(more),
                Event::SessionStarted { measures, .. } => status.clone_from(&measures.sandbox),
                _ => {}
            }
        }
        (text.lines().map(str::to_owned).collect(), status)
    }

    /// Reason why a session is refused.
    async fn refusal(&self, config: AgentSessionConfig) -> String {
        let config = AgentSessionConfig { session_id: SessionId::mint(), ..config };
        match soon("a start", self.manager.start_session(config)).await {
            Ok(session) => panic!("{} was started", session.id()),
            Err(error) => format!("{error:?}"),
        }
    }
}

/// A script that prints for each path whether it can be read, and whether it can be written.
fn probe(paths: &[&str]) -> String {
    let script = |path: &&str| {
        format!(
            "printf '%s' '{path}:'; cat '{path}' >/dev/null 2>&1 && printf r; (echo x >>'{path}') 2>/dev/null && printf w; echo\n"
        )
    };
    paths.iter().map(script).collect()
}

/// The files of the user's that a session is tried with, and what each allows where the working directory is `cwd`.
fn files(user: &User, cwd: &str) -> Vec<(String, String)> {
    let files = [
        ("home/.ssh/id", ""),
        ("home/.aws/credentials", ""),
        ("home/.config/gcloud/key", ""),
        ("home/.codex/auth.json", ""),
        ("home/.netrc", ""),
        ("home/.config/tool/settings", "r"),
        ("home/.profile", "r"),
        ("home/new", ""),
        ("state/new", ""),
        ("work/file", cwd),
    ];
    files.map(|(file, access)| (user.path(file), access.to_owned())).into()
}

#[tokio::test]
async fn a_workspace_is_written_and_keys_are_not_read() {
    let user = User::new(|builder| builder).await;
    for (mode, cwd) in [(SandboxMode::Workspace, "rw"), (SandboxMode::ReadOnly, "r")] {
        let files = files(&user, cwd);
        let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).chain(["/etc/passwd", "/tmp/new"]).collect();
        let (lines, status) = user.run(user.config(mode, &probe(&paths))).await;
        let system = [("/etc/passwd".to_owned(), "r".to_owned()), ("/tmp/new".to_owned(), "w".to_owned())];
        let expected: Vec<_> = files.iter().chain(&system).map(|(path, access)| format!("{path}:{access}")).collect();
        assert_eq!(lines, expected, "{mode}");
        let status = status.expect("it says what is in force");
        assert_eq!((status.mode, status.layer.as_str()), (mode, "mounts"));
        assert_eq!(status.write.contains(&user.path("work")), mode == SandboxMode::Workspace, "{status:?}");
        assert!(status.hidden.contains(&user.path("home/.ssh")), "{status:?}");
    }
    assert!(!Path::new("/tmp/new").exists() && !Path::new(&user.path("home/new")).exists());
    assert_eq!(fs::read_to_string(user.path("home/.ssh/id")).expect("there"), "PRIVATE");
    assert_eq!(fs::read_to_string(user.path("work/file")).expect("there"), "beforex\n");
    soon("the end", user.manager.shutdown()).await;
}

/// What changes and makes files in a workspace, and says what came of it.
const WORK: &str = r#"
cd "$WORK" && mkdir -p made/below && echo x >made/below/file && mv made/below/file made/moved && ln -s moved made/link
chmod 751 made/moved && touch -d @1000000000 made/moved && touch -h -d @1000000001 made/link && stat -c '%a %Y' made/moved && stat -c %Y made/link
cp -p made/moved made/copy && stat -c '%a %Y' made/copy
chown "$(id -u):$(id -g)" made/copy && echo owned
exec 3<made/copy && chmod 700 /proc/self/fd/3 2>/dev/null; stat -c %a made/copy
(cd made && chmod 744 copy ../file) && stat -c %a made/copy file
echo t >"$TMPDIR/t" && cat "$TMPDIR/t"
chmod 777 "$HOME/.profile" 2>/dev/null || echo refused
chmod 777 "$HOME/.ssh/id" 2>/dev/null || echo refused
test -e /tmp/new || (echo x >/tmp/new) 2>/dev/null || echo refused
"#;

#[tokio::test]
async fn files_of_an_ordinary_user_are_held_without_namespaces() {
    if is_apart(ordinary_without_namespaces, "files_of_an_ordinary_user_are_held_without_namespaces") {
        are_held_by_landlock().await;
    }
}

#[tokio::test]
async fn files_of_root_are_held_without_namespaces() {
    if is_apart(root_without_namespaces, "files_of_root_are_held_without_namespaces") {
        are_held_by_landlock().await;
    }
}

async fn are_held_by_landlock() {
    let user = User::new(|builder| builder).await;
    for (mode, cwd) in [(SandboxMode::Workspace, "rw"), (SandboxMode::ReadOnly, "r")] {
        let files = files(&user, cwd);
        let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).chain(["/etc/passwd", "/tmp/new"]).collect();
        let (lines, status) = user.run(user.config(mode, &probe(&paths))).await;
        let system = [("/etc/passwd".to_owned(), "r".to_owned()), ("/tmp/new".to_owned(), String::new())];
        let expected: Vec<_> = files.iter().chain(&system).map(|(path, access)| format!("{path}:{access}")).collect();
        assert_eq!(lines, expected, "{mode}");
        let status = status.expect("it says what is in force");
        assert_eq!((status.mode, status.layer.as_str()), (mode, "landlock"));
        assert!(status.hidden.contains(&user.path("home/.ssh")), "{status:?}");
    }
    let work = format!("export WORK={}\n{WORK}", user.path("work"));
    let (lines, _) = user.run(user.config(SandboxMode::Workspace, &work)).await;
    let expected = [
        "751 1000000000",
        "1000000001",
        "751 1000000000",
        "owned",
        "700",
        "744",
        "744",
        "t",
        "refused",
        "refused",
        "refused",
    ];
    assert_eq!(lines, expected);
    // A network of its own takes a namespace: nothing weaker takes its place.
    let mut network = user.config(SandboxMode::Workspace, "true");
    network.sandbox.network = Some(NetworkAccess::Off);
    let refused = user.refusal(network).await;
    assert!(
        refused.contains("containment strict was asked for and cannot be had") && refused.contains("mount namespace"),
        "{refused}"
    );
    soon("the end", user.manager.shutdown()).await;
    // Nothing of a session is left: its directory for temporary files has gone with it.
    let left = fs::read_dir(user.path("state/homes")).map_or(0, |entries| entries.count());
    assert_eq!(left, 0);
}

/// Where the kernel's audit is on, it tells of each file that Landlock has refused.
#[tokio::test]
async fn a_refused_file_is_an_event_where_the_kernel_tells_it() {
    if !is_apart(root_without_namespaces, "a_refused_file_is_an_event_where_the_kernel_tells_it") {
        return;
    }
    if !is_audit_on() {
        return not_run("refused files: audit is off (auditctl -e 1), or not to be read");
    }
    let user = User::new(|builder| builder).await;
    let script = format!("cat {} 2>/dev/null; echo x >/etc/agent-proxy-refused; sleep 1", user.path("home/.ssh/id"));
    let session = user.manager.start_session(user.config(SandboxMode::Workspace, &script));
    let session = soon("a start", session).await.expect("started");
    let mut refused = Vec::new();
    for envelope in all(&mut session.subscribe()).await {
        if let Event::FileRefused(refusal) = &envelope.event {
            refused.push(((refusal.path.clone(), refusal.access.clone(), refusal.command.clone()), refusal.process));
        }
    }
    let refusal = |path: String, right: &str, command: &str| (path, vec![right.to_owned()], Some(command.to_owned()));
    let key = refusal(user.path("home/.ssh/id"), "read_file", "cat");
    assert!(refused.iter().any(|(refusal, _)| *refusal == key), "{refused:?}");
    let made = refusal("/etc".to_owned(), "make_reg", "sh");
    assert!(refused.iter().any(|(refusal, process)| *refusal == made && process.is_some()), "{refused:?}");
    soon("the end", user.manager.shutdown()).await;
}

/// Asks the kernel for the state of its audit.
fn is_audit_on() -> bool {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        netlink::{self, SocketAddrNetlink},
        recv, send, socket_with,
    };
    const AUDIT_GET: u16 = 1000;
    const REQUEST: u16 = 1;
    let ask = || {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::AUDIT))?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        let mut request = 16_u32.to_ne_bytes().to_vec();
        request.extend([AUDIT_GET, REQUEST].iter().flat_map(|word| word.to_ne_bytes()));
        request.extend([0; 8]);
        send(&socket, &request, SendFlags::empty())?;
        let mut answer = [0; 256];
        recv(&socket, &mut answer, RecvFlags::empty())?;
        // After the header comes a mask, then whether it is on.
        Ok::<_, rustix::io::Errno>(u16::from_ne_bytes([answer[4], answer[5]]) == AUDIT_GET && answer[20] > 0)
    };
    ask().unwrap_or(false)
}

#[tokio::test]
async fn paths_are_added_by_name() {
    let user = User::new(|builder| builder).await;
    let script = probe(&[&user.path("home/.ssh/id"), &user.path("home/.config/tool/settings")]);
    let mut config = user.config(SandboxMode::Workspace, &script);
    config.sandbox.read.push(user.path("home/.ssh/id"));
    config.sandbox.write.push(user.path("home/.config/tool"));
    let (lines, _) = user.run(config).await;
    let expected = [("home/.ssh/id", "r"), ("home/.config/tool/settings", "rw")];
    assert_eq!(lines, expected.map(|(path, access)| format!("{}:{access}", user.path(path))));
    soon("the end", user.manager.shutdown()).await;
}

/// A user's own directory for temporary files is not the session's, which has another then.
#[tokio::test]
async fn temporary_files_have_a_place() {
    let temporary = tempfile::tempdir().expect("a directory");
    let outside = temporary.path().to_str().expect("UTF-8").to_owned();
    let user = User::new(|builder| {
        let env = [("PATH", "/usr/bin:/bin"), ("TMPDIR", &outside), ("TEMP", "/var/tmp")];
        builder.base_env(env.into_iter().collect())
    })
    .await;
    let script = "for at in \"$TMPDIR\" \"$TEMP\"; do echo x >\"$at/file\" && echo \"$at\"; done";
    let (lines, _) = user.run(user.config(SandboxMode::Workspace, script)).await;
    assert_eq!(lines, ["/tmp", "/var/tmp"]);
    let work = user.path("work");
    for (value, expected) in [(work.as_str(), vec![work.as_str(), "/var/tmp"]), ("/absent", vec!["/var/tmp"])] {
        let (lines, _) = user.run(user.config(SandboxMode::Workspace, script).with_env("TMPDIR", value)).await;
        assert_eq!(lines, expected, "as its caller says");
    }
    assert_eq!(fs::read_dir(temporary.path()).expect("listed").count(), 0);
    soon("the end", user.manager.shutdown()).await;
}

#[tokio::test]
async fn what_cannot_be_enforced_is_refused() {
    let user = User::new(|builder| builder).await;
    let base = user.config(SandboxMode::Workspace, "true");
    let home = AgentSessionConfig { cwd: Some(user.path("home")), ..base.clone() };
    assert!(user.refusal(home).await.contains("which a sandbox hides"));
    let baseline = AgentSessionConfig { containment: Some(Containment::Baseline), ..base.clone() };
    assert!(user.refusal(baseline).await.contains("needs the containment strict"));
    let mut absent = base.clone();
    absent.sandbox.read.push(user.path("absent"));
    let refusal = user.refusal(absent).await;
    assert!(refusal.contains("absent"), "{refusal}");
    let mut off = base;
    off.sandbox = SessionSandbox { read: vec!["/".into()], ..SessionSandbox::default() };
    off.session_id = SessionId::mint();
    let refused = soon("a start", user.manager.start_session(off)).await.err();
    assert!(matches!(refused, Some(Error::InvalidConfig { field: "sandbox", .. })), "{refused:?}");
    soon("the end", user.manager.shutdown()).await;
}

#[tokio::test]
async fn a_profile_has_a_sandbox_and_a_session_another() {
    let mut profiles = Profiles::default();
    let mut profile = Profile { name: "held".into(), agent: "command".into(), ..Profile::default() };
    profile.sandbox.mode = Some(SandboxMode::ReadOnly);
    profiles.add(profile);
    let user = User::new(|builder| builder.profiles(profiles)).await;
    for (mode, expected) in [(None, Some(SandboxMode::ReadOnly)), (Some(SandboxMode::Off), None)] {
        let mut config = user.config(SandboxMode::Off, "true");
        (config.sandbox.mode, config.profile) = (mode, Some("held".into()));
        let (_, status) = user.run(config).await;
        assert_eq!(status.map(|status| status.mode), expected);
    }
    soon("the end", user.manager.shutdown()).await;
}

#[tokio::test]
async fn a_home_of_the_session_s_own_is_written_and_its_neighbours_are_not_seen() {
    let user = User::new(|builder| builder).await;
    let script = format!(
        "echo made >\"$HOME/made\" && cat \"$HOME/made\"; ls '{}' '{}/homes' | wc -l",
        user.path("state"),
        user.path("state")
    );
    let config = AgentSessionConfig { home: Some(Home::Own), ..user.config(SandboxMode::ReadOnly, &script) };
    let (lines, _) = user.run(config).await;
    // A heading for each directory, what is in it, and an empty line between; the state directory cannot be listed by others than root.
    assert_eq!(lines.first().map(String::as_str), Some("made"), "{lines:?}");
    assert!(
        lines.get(1).and_then(|count| count.trim().parse::<u32>().ok()).is_some_and(|count| count <= 5),
        "{lines:?}"
    );
    soon("the end", user.manager.shutdown()).await;
}

/// A script of bash that sends a request to the proxy of the session, and prints the answer.
fn request(text: &str) -> Vec<String> {
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/61080; printf '{text}' >&3; cat <&3");
    ["bash", "-c", &script].map(str::to_owned).into()
}

#[tokio::test]
async fn an_allowed_host_is_reached_and_every_connection_is_an_event() {
    let user = User::new(|builder| builder).await;
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepted");
        let (mut got, mut chunk) = (Vec::new(), [0; 1024]);
        while !got.ends_with(b"\r\n\r\n") {
            let length = stream.read(&mut chunk).expect("read");
            got.extend_from_slice(&chunk[..length]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nreached").expect("answered");
        got.len() as u64
    });
    let rule = format!("127.0.0.1:{port}").parse().expect("a rule");
    let mut config = user.config(SandboxMode::Workspace, "");
    config.sandbox.network = Some(NetworkAccess::Allow(vec![rule]));
    config.command = request(&format!("GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\n\\r\\n"));
    let session = soon("a start", user.manager.start_session(config.clone())).await.expect("started");
    let events = all(&mut session.subscribe()).await;
    let connection = events.iter().find_map(|envelope| match &envelope.event {
        Event::NetworkConnection(connection) => Some((**connection).clone()),
        _ => None,
    });
    let connection = connection.unwrap_or_else(|| panic!("no connection: {events:?}"));
    assert_eq!((connection.host.as_str(), connection.port), ("127.0.0.1", port));
    assert_eq!(connection.sent, server.join().expect("served"));
    assert_eq!(connection.received, "HTTP/1.1 200 OK\r\n\r\nreached".len() as u64);
    assert!(connection.process.is_some(), "{connection:?}");
    // What no rule allows.
    config.session_id = SessionId::mint();
    config.command = request("GET http://evil.example/ HTTP/1.1\\r\\n\\r\\n");
    let session = soon("a start", user.manager.start_session(config)).await.expect("started");
    let events = all(&mut session.subscribe()).await;
    let refusal = events.iter().find_map(|envelope| match &envelope.event {
        Event::NetworkRefused(refusal) => Some((refusal.host.clone(), refusal.port, refusal.process.is_some())),
        _ => None,
    });
    assert_eq!(refusal, Some(("evil.example".to_owned(), 80, true)), "{events:?}");
    soon("the end", user.manager.shutdown()).await;
}

/// Starts a server on loopback, asks it by its port, and says whether programs that use the session's proxy would ask it directly, too.
const OWN_SERVICE: &str = r#"
coproc "$0"
read -r line <&"${COPROC[0]}"
port=${line##*:}
exec 3<>"/dev/tcp/127.0.0.1/$port"
printf 'GET /global/health HTTP/1.1\r\n\r\n' >&3
read -r answer <&3
echo "own: ${answer%$'\r'}"
exec 3>&-
case ",$NO_PROXY," in *,127.0.0.1,*) echo "no proxy for it" ;; esac
"#;

#[tokio::test]
async fn a_service_of_the_session_itself_is_reached_whatever_the_network() {
    let user = User::new(|builder| builder).await;
    let other = "other.example:443".parse().expect("a rule");
    for network in [NetworkAccess::Off, NetworkAccess::Allow(vec![other])] {
        let mut config = user.config(SandboxMode::Workspace, "");
        config.sandbox.network = Some(network.clone());
        config.env = [("FAKE_LOG", user.path("work/log"))].into_iter().collect();
        config.command = ["bash", "-c", OWN_SERVICE, env!("CARGO_BIN_EXE_fake-server")].map(str::to_owned).into();
        let session = soon("a start", user.manager.start_session(config)).await.expect("started");
        let events = all(&mut session.subscribe()).await;
        let text: String = events
            .iter()
            .filter_map(|envelope| match &envelope.event {
                Event::Text { text } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(text, "own: HTTP/1.1 401 x\nno proxy for it\n", "{network:?}: {events:?}");
        let is_of_network = |event: &Event| matches!(event, Event::NetworkConnection(_) | Event::NetworkRefused(_));
        assert!(!events.iter().any(|envelope| is_of_network(&envelope.event)), "{network:?}: {events:?}");
    }
    soon("the end", user.manager.shutdown()).await;
}

#[tokio::test]
async fn a_network_needs_a_sandbox() {
    let user = User::new(|builder| builder).await;
    let mut config = user.config(SandboxMode::Off, "true");
    config.sandbox.network = Some(NetworkAccess::Off);
    assert!(user.refusal(config).await.contains("network"));
    soon("the end", user.manager.shutdown()).await;
}

/// Reads whatever it can for a key of a model, in its environment, in files and in every process; then asks the model.
const KEY_THIEF: &str = r#"
{
    env
    # Outside of a sandbox that would be the whole machine.
    if [ -n "$HTTP_PROXY" ]; then
        cat /proc/self/environ /proc/[0-9]*/environ /proc/[0-9]*/cmdline
        grep -rha REAL-KEY "$HOME" . /tmp /run /dev/shm
        find -L /proc/[0-9]*/fd -maxdepth 1 -type f -exec cat {} +
    fi
} 2>/dev/null | tr '\0' '\n' | grep -aoE 'REAL-KEY-[a-z0-9]{8,}' | sort -u | sed 's/^/found /'
rest=${MODEL_URL#http://}
ask() {
    host=${rest%%/*}
    exec 3<>"/dev/tcp/${host%:*}/${host#*:}"
    printf '%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-Echo: %s\r\nContent-Length: 2\r\n\r\nhi' "$1" "$2" "$host" "$MODEL_KEY" "$MODEL_KEY" >&3
    cat <&3
    echo
}
ask POST /v1/messages | tail -n 1
ask POST /other/messages | head -n 1 | tr -d '\r'
ask TRACE /v1/messages | head -n 1 | tr -d '\r'
"#;

#[tokio::test]
async fn the_key_of_a_model_stays_outside_and_its_requests_have_it() {
    let key = format!("REAL-KEY-{}", uuid::Uuid::now_v7().simple());
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepted");
        let (mut got, mut chunk) = (Vec::new(), [0; 1024]);
        while !got.ends_with(b"hi") {
            let length = stream.read(&mut chunk).expect("read");
            got.extend_from_slice(&chunk[..length]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nthe model answers").expect("answered");
        String::from_utf8(got).expect("text")
    });
    let agent = AgentSpec {
        env: [("MODEL_KEY", "{key}"), ("MODEL_URL", "{base_url}")].into_iter().collect(),
        ..AgentSpec::new("keyed", "command", &["/bin/bash", "-c", KEY_THIEF])
    };
    let closed = AgentSpec {
        env: [("MODEL_KEY", "{key}")].into_iter().collect(),
        ..AgentSpec::new("closed", "command", &["/bin/true"])
    };
    let model = |name: &str, url: String| {
        let json = serde_json::json!({ "name": name, "provider": "mock", "base_url": url, "key": key });
        serde_json::from_value::<ModelConfig>(json).expect("parses")
    };
    let models =
        [model("near", format!("http://127.0.0.1:{port}/v1")), model("plain", "http://model.example/v1".into())];
    let user = User::new(|builder| builder.agent(agent).agent(closed).models(models)).await;
    let mut config =
        AgentSessionConfig { model_config: Some("near".into()), ..user.config(SandboxMode::Workspace, "") };
    (config.agent, config.command) = ("keyed".into(), Vec::new());
    config.sandbox.network = Some(NetworkAccess::Allow(Vec::new()));
    let session = soon("a start", user.manager.start_session(config.clone())).await.expect("started");
    let (mut text, mut reached, mut refused) = (String::new(), None, Vec::new());
    for envelope in all(&mut session.subscribe()).await {
        match &envelope.event {
            Event::Text { text: more } => text.push_str(more),
            Event::NetworkConnection(found) => reached = Some((found.host.clone(), found.port)),
            Event::NetworkRefused(found) => refused.push(found.reason.clone()),
            _ => {}
        }
    }
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, ["the model answers", "HTTP/1.1 403 Forbidden", "HTTP/1.1 403 Forbidden"]);
    let request = server.join().expect("served");
    assert!(request.contains(&format!("Authorization: Bearer {key}")), "{request}");
    assert_eq!(request.matches(&key).count(), 1, "in no other header: {request}");
    assert_eq!(reached, Some(("127.0.0.1".to_owned(), port)));
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(!format!("{:?}", user.manager).contains(&key));
    // What cannot keep it outside is refused.
    for (agent, model, why) in [("closed", "near", "{base_url}"), ("keyed", "plain", "cannot stay outside")] {
        let config = AgentSessionConfig { model_config: Some(model.into()), agent: agent.into(), ..config.clone() };
        let refused = user.refusal(config).await;
        assert!(refused.contains(why), "{refused}");
    }
    // Without a network of its own the session has the key itself.
    let config = AgentSessionConfig { session_id: SessionId::mint(), sandbox: SessionSandbox::default(), ..config };
    let session = soon("a start", user.manager.start_session(config)).await.expect("started");
    let found = all(&mut session.subscribe()).await;
    assert!(found.iter().any(|envelope| matches!(&envelope.event, Event::Text { text } if text.contains(&key))));
    soon("the end", user.manager.shutdown()).await;
}
