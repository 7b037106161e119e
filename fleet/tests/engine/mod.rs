//! A nats-server of the test's own, from $NATS_SERVER or the cache that tests/fleet/nats-server fills.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

/// Version in the cache.
const VERSION: &str = "2.15.1";

/// Longer than anything takes: what waits this long has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Servers that are ended with the test.
#[derive(Debug)]
pub(crate) struct Engine {
    servers: Vec<Server>,
    _directory: tempfile::TempDir,
}

#[derive(Debug)]
struct Server {
    child: Child,
    client: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the program; says NOT RUN without one.
fn program() -> Option<PathBuf> {
    let cache = || {
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
        let cache = std::env::var_os("AGENT_PROXY_CACHE").map_or_else(|| cache.join("agent-proxy"), PathBuf::from);
        Some(cache.join(format!("nats-server-{VERSION}/bin/nats-server")))
    };
    let program = std::env::var_os("NATS_SERVER").map(PathBuf::from).or_else(cache);
    let found = program.filter(|program| program.is_file());
    if found.is_none() {
        not_run("no nats-server: tests/fleet/nats-server installs it");
    }
    found
}

/// Says that a test is not run, and why.
pub(crate) fn not_run(why: &str) {
    // Lost only with the terminal itself.
    let _ = writeln!(std::io::stdout(), "NOT RUN: fleet: {why}");
}

impl Engine {
    /// Starts one server; `None` without the program.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with("")
    }

    /// Starts one server with more of a configuration.
    pub(crate) fn start_with(configuration: &str) -> Option<Self> {
        let program = program()?;
        let directory = tempfile::tempdir().expect("a directory");
        let store = directory.path().display();
        let configuration =
            format!("listen: 127.0.0.1:-1\njetstream {{ store_dir: \"{store}/js\" }}\n{configuration}\n");
        let server = Server::start(&program, &directory.path().join("server.conf"), &configuration);
        Some(Self { servers: vec![server], _directory: directory })
    }

    /// Starts a cluster of three; `None` without the program.
    pub(crate) fn start_cluster() -> Option<Self> {
        let program = program()?;
        let directory = tempfile::tempdir().expect("a directory");
        // Each server has to know the others' addresses before they run.
        let reserved = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let ports = reserved.each_ref().map(|port| port.local_addr().expect("an address").port());
        drop(reserved);
        let routes = ports.map(|port| format!("nats://127.0.0.1:{port}")).join(", ");
        let server = |(number, port): (usize, &u16)| {
            let store = directory.path().join(number.to_string());
            let configuration = format!(
                "server_name: s{number}\nlisten: 127.0.0.1:-1\njetstream {{ store_dir: \"{}\" }}\n\
                 cluster {{ name: test, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n",
                store.display()
            );
            Server::start(&program, &store.with_extension("conf"), &configuration)
        };
        let servers = ports.iter().enumerate().map(server).collect();
        Some(Self { servers, _directory: directory })
    }

    /// Addresses of the servers, with commas between them.
    pub(crate) fn address(&self) -> String {
        self.servers.iter().map(|server| server.client.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Pid of a server.
    pub(crate) fn pid(&self, server: usize) -> i32 {
        i32::try_from(self.servers[server].child.id()).expect("a pid")
    }

    /// Kills a server of the cluster.
    pub(crate) fn kill(&mut self, server: usize) {
        drop(self.servers.remove(server));
    }
}

impl Server {
    fn start(program: &PathBuf, file: &std::path::Path, configuration: &str) -> Self {
        std::fs::write(file, configuration).expect("written");
        #[expect(clippy::disallowed_methods, reason = "tests start the program as a shell does")]
        let mut command = Command::new(program);
        command.arg("-c").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("nats-server starts");
        let log = BufReader::new(child.stderr.take().expect("piped"));
        let (lines, said) = mpsc::channel();
        std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line))));
        let (mut client, mut log) = (None, Vec::new());
        loop {
            let Ok(line) = said.recv_timeout(DEADLINE) else { panic!("nats-server did not get ready: {log:#?}") };
            let address = line.split_once("Listening for client connections on ");
            client = client.or_else(|| address.map(|(_, address)| format!("nats://{}", address.trim())));
            if line.contains("Server is ready") {
                break;
            }
            log.push(line);
        }
        Self { child, client: client.expect("it listens") }
    }
}
