//! Starts the program, and waits for it with a deadline.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Lines, Read, Write as _},
    net::SocketAddr,
    os::{
        fd::OwnedFd,
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use ipc_protocol::{Envelope, Event, ProcessId};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::Value;

/// Longer than anything takes: what waits this long has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_agent-proxy");

#[expect(clippy::disallowed_methods, reason = "tests start the program as a shell does")]
fn command(program: &str) -> Command {
    Command::new(program)
}

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Fails the test unless it exited with this code. Returns what it printed.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// Standard output as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The problem object on standard error.
    #[track_caller]
    pub(crate) fn problem(&self) -> Value {
        let last = self.stderr.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Standard output as envelopes.
    #[track_caller]
    pub(crate) fn envelopes(&self) -> Vec<Envelope> {
        self.stdout.lines().map(envelope).collect()
    }
}

#[track_caller]
pub(crate) fn envelope(line: &str) -> Envelope {
    let value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    Envelope::from_json(value).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// A directory of the test's own, and the socket in it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
    /// As whom the program runs here, if not as whoever tests it.
    user: Option<u32>,
    /// Arguments before the program's, of one that becomes it.
    wrapper: Vec<String>,
}

impl Place {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("agent-proxy-cli-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a fresh directory");
        Self { directory, user: None, wrapper: Vec::new() }
    }

    /// One of another user's, as whom the program runs there. Takes root.
    pub(crate) fn of_user(user: u32) -> Self {
        let mut place = Self::new();
        place.user = Some(user);
        std::os::unix::fs::chown(&place.directory, Some(user), Some(user)).expect("handed over");
        place
    }

    /// One in which the program runs behind these arguments.
    pub(crate) fn behind(wrapper: &[&str]) -> Self {
        let mut place = Self::new();
        place.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        place
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("run/daemon.sock")
    }

    /// Where agents, profiles and models are configured.
    pub(crate) fn config(&self) -> PathBuf {
        self.directory.join("config")
    }

    /// The program with these arguments, on this place's socket.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let wrapper: Vec<&str> = self.wrapper.iter().map(String::as_str).collect();
        self.command_as(&[&wrapper[..], &[PROGRAM], args].concat())
    }

    /// Another program with the environment of the one under test.
    pub(crate) fn command_of(&self, argv: &[&str]) -> Command {
        self.command_as(argv)
    }

    /// The same of another program, which becomes the one under test.
    pub(crate) fn command_as(&self, argv: &[&str]) -> Command {
        let mut command = command(argv[0]);
        command.args(&argv[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("AGENT_PROXY_SOCKET", self.socket()).env("AGENT_PROXY_CONFIG_DIR", self.config());
        for name in ["RUST_LOG", "NO_COLOR", "AGENT_PROXY_DEPTH"] {
            command.env_remove(name);
        }
        if let Some(user) = self.user {
            // Where the tests run it may not be allowed to be.
            command.uid(user).gid(user).current_dir("/");
        }
        command
    }

    /// Runs the program to its end.
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Running::new(self.command(args)).end()
    }

    /// Runs another program, which becomes the one under test, to its end.
    #[track_caller]
    pub(crate) fn run_as(&self, argv: &[&str]) -> Ran {
        self.spawn_as(argv).end()
    }

    /// Starts the program.
    pub(crate) fn spawn(&self, args: &[&str]) -> Running {
        Running::new(self.command(args))
    }

    /// Starts another program, which becomes the one under test.
    pub(crate) fn spawn_as(&self, argv: &[&str]) -> Running {
        Running::new(self.command_as(argv))
    }

    /// Starts a daemon, and returns once it answers.
    pub(crate) fn serve(&self) -> Daemon<'_> {
        self.serve_with(&[])
    }

    /// Starts a daemon with these flags, and returns once it answers.
    pub(crate) fn serve_with(&self, flags: &[&str]) -> Daemon<'_> {
        self.serve_as(&[&[PROGRAM, "serve"], flags].concat())
    }

    /// Starts a daemon that listens on the network too, and returns its address.
    pub(crate) fn serve_network(&self, flags: &[&str]) -> (Daemon<'_>, SocketAddr) {
        self.serve_command(self.spawn(&[&["serve", "--json", "--listen", "127.0.0.1:0"], flags].concat()))
    }

    /// Takes a daemon that listens on the network and says so in JSON, and returns its address.
    pub(crate) fn serve_command(&self, mut running: Running) -> (Daemon<'_>, SocketAddr) {
        let Some(line) = running.line() else { panic!("{}", running.end().stderr) };
        let announced: Value = serde_json::from_str(&line).expect("JSON");
        let address = announced["addresses"][0].as_str().expect("an address").parse().expect("an address");
        (Daemon { place: self, running: Some(running) }, address)
    }

    /// Starts another program, which becomes a daemon, and returns once it answers.
    pub(crate) fn serve_as(&self, argv: &[&str]) -> Daemon<'_> {
        let mut running = self.spawn_as(argv);
        let line = running.line();
        assert_eq!(line, Some(format!("listening on {}", self.socket().display())), "{}", running.end().stderr);
        Daemon { place: self, running: Some(running) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The program while it runs. Standard output is read line by line, or at its end.
#[derive(Debug)]
pub(crate) struct Running {
    child: Option<Child>,
    stdout: Option<mpsc::Receiver<String>>,
}

impl Running {
    pub(crate) fn new(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let stdout = child.stdout.take().map(|stdout| lines(BufReader::new(stdout).lines()));
        Self { child: Some(child), stdout }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it was not waited for").id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a pid");
        // Not reaped yet, so the pid is its own.
        kill(Pid::from_raw(pid), signal).expect("the program is there");
    }

    /// The next line of standard output; `None` at its end.
    #[track_caller]
    pub(crate) fn line(&mut self) -> Option<String> {
        match self.stdout.as_ref().expect("piped").recv_timeout(DEADLINE) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("no line within {DEADLINE:?}"),
        }
    }

    /// Reads events until one of them is as wanted.
    #[track_caller]
    pub(crate) fn until<T>(&mut self, mut wanted: impl FnMut(&Envelope) -> Option<T>) -> T {
        let mut seen = Vec::new();
        while let Some(line) = self.line() {
            let envelope = envelope(&line);
            if let Some(found) = wanted(&envelope) {
                return found;
            }
            seen.push(line);
        }
        panic!("it did not come; these came: {seen:#?}");
    }

    /// Its standard input, where that is piped; the end of it with the value's.
    pub(crate) fn stdin(&mut self) -> std::process::ChildStdin {
        self.child.as_mut().and_then(|child| child.stdin.take()).expect("piped, and taken once")
    }

    /// Standard error, line by line.
    pub(crate) fn stderr(&mut self) -> Stderr {
        let stderr = self.child.as_mut().and_then(|child| child.stderr.take()).expect("piped, and taken once");
        Stderr(lines(BufReader::new(stderr).lines()))
    }

    /// Reads events until the agent has printed each of these lines.
    #[track_caller]
    pub(crate) fn until_printed(&mut self, lines: &[&str]) {
        let mut awaited: BTreeSet<&str> = lines.iter().copied().collect();
        self.until(|envelope| {
            if let Event::Text { text } = &envelope.event {
                awaited.remove(text.trim_end());
            }
            awaited.is_empty().then_some(())
        });
    }

    /// Nobody reads its output any more.
    pub(crate) fn close_stdout(&mut self) {
        self.stdout = None;
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ran {
        let child = self.child.take().expect("it was not waited for");
        let pid = child.id();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(child.wait_with_output()));
        let output = receiver.recv_timeout(DEADLINE).unwrap_or_else(|_| {
            let _ = kill(Pid::from_raw(i32::try_from(pid).expect("a pid")), Signal::SIGKILL);
            panic!("it did not end within {DEADLINE:?}")
        });
        let output = output.expect("waiting works");
        let mut stdout = String::new();
        for line in self.stdout.iter().flatten() {
            stdout.push_str(&line);
            stdout.push('\n');
        }
        Ran { status: output.status, stdout, stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Standard error while the program runs.
#[derive(Debug)]
pub(crate) struct Stderr(mpsc::Receiver<String>);

impl Stderr {
    /// The next line; `None` at its end.
    pub(crate) fn line(&mut self) -> Option<String> {
        self.0.recv_timeout(DEADLINE).ok()
    }

    /// Whether a line with this in it comes.
    pub(crate) fn until(&mut self, wanted: &str) -> bool {
        while let Ok(line) = self.0.recv_timeout(DEADLINE) {
            if line.contains(wanted) {
                return true;
            }
        }
        false
    }
}

fn lines(lines: Lines<BufReader<impl Read + Send + 'static>>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// A daemon. It is ended with the test.
#[derive(Debug)]
pub(crate) struct Daemon<'a> {
    place: &'a Place,
    running: Option<Running>,
}

impl Daemon<'_> {
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.place.run(args)
    }

    pub(crate) fn spawn(&self, args: &[&str]) -> Running {
        self.place.spawn(args)
    }

    /// Starts a session of any command, and returns a follower of its events.
    #[track_caller]
    pub(crate) fn start(&self, id: &str, argv: &[&str]) -> Running {
        self.run(&[&["start", "--id", id, "--agent", "command", "--"], argv].concat()).exits(0);
        self.spawn(&["events", id, "--follow", "--json"])
    }

    /// Starts a session of the fake agent.
    #[track_caller]
    pub(crate) fn start_fake(&self, id: &str) -> Running {
        self.run(&["start", "--id", id, "--agent", "acp", "--", PROGRAM, "fake-agent"]).exits(0);
        self.spawn(&["events", id, "--follow", "--json"])
    }

    /// How many starts wait for a place.
    #[track_caller]
    pub(crate) fn waiting(&self) -> u64 {
        let body = self.get("/v1/health");
        let health: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        health["waiting"].as_u64().unwrap_or_else(|| panic!("{health}"))
    }

    /// The body of an answer.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = UnixStream::connect(self.place.socket()).expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: agent-proxy\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.as_ref().expect("it runs").pid()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.running.as_ref().expect("it runs").signal(signal);
    }

    /// Its standard error, line by line.
    pub(crate) fn stderr(&mut self) -> Stderr {
        self.running.as_mut().expect("it runs").stderr()
    }

    /// Has it drain: itself, and what it says of that.
    pub(crate) fn drain(mut self) -> (Running, Stderr) {
        let mut running = self.running.take().expect("it runs");
        let stderr = running.stderr();
        running.signal(Signal::SIGTERM);
        (running, stderr)
    }

    /// Waits for its end, which somebody else brings about.
    #[track_caller]
    pub(crate) fn ended(mut self) -> Ran {
        self.running.take().expect("it runs").end()
    }

    /// Ends it by a signal.
    #[track_caller]
    pub(crate) fn end(mut self, signal: Signal) -> Ran {
        let running = self.running.take().expect("it runs");
        running.signal(signal);
        running.end()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            // Without waiting for turns that run.
            running.signal(Signal::SIGINT);
            running.end();
        }
    }
}

/// The process that has `pid` now.
#[track_caller]
pub(crate) fn process(pid: u32) -> ProcessId {
    registry::identify(pid).expect("it is alive")
}

/// The pid of a process's parent.
#[track_caller]
pub(crate) fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    // The name before the last parenthesis may hold anything; then come the state and the parent.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    fields.split_whitespace().nth(1).expect("a parent").parse().expect("a pid")
}

/// A named pipe by which a program tells one thing.
pub(crate) struct TellingPipe(PathBuf);

impl TellingPipe {
    pub(crate) fn new(path: PathBuf) -> Self {
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("made");
        Self(path)
    }

    pub(crate) fn path(&self) -> std::path::Display<'_> {
        self.0.display()
    }

    /// Waits until a program has written its pid there.
    #[track_caller]
    pub(crate) fn process(&self) -> ProcessId {
        let (sender, told) = mpsc::channel();
        let path = self.0.clone();
        thread::spawn(move || sender.send(fs::read_to_string(path)));
        let told = told.recv_timeout(DEADLINE).expect("it is written in time").expect("it is read");
        process(told.trim().parse().expect("a pid"))
    }
}

/// Looks again and again, by running the program, until it is so.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
    }
}

/// Waits until a process is dead.
#[track_caller]
pub(crate) fn gone(id: ProcessId) {
    let Ok(held) = registry::PidFd::open(id) else { return };
    let begin = Instant::now();
    let timeout = PollTimeout::try_from(DEADLINE).expect("it fits");
    let ready = poll(&mut [PollFd::new(std::os::fd::AsFd::as_fd(&held), PollFlags::POLLIN)], timeout);
    assert_eq!(ready, Ok(1), "process {id} is alive after {:?}", begin.elapsed());
}

/// Whether a process is there, if only as a zombie.
pub(crate) fn is_there(id: ProcessId) -> bool {
    registry::identify(id.pid).is_ok_and(|now| now == id)
}

/// Waits until a process that was sent a stop has stopped.
#[track_caller]
pub(crate) fn stands_still(pid: u32) {
    let begin = Instant::now();
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')) {
            return;
        }
        assert!(begin.elapsed() < DEADLINE, "process {pid} goes on: {stat}");
        thread::yield_now();
    }
}

/// Whether a run ended by a signal.
pub(crate) fn signalled(ran: &Ran) -> Option<i32> {
    ran.status.signal()
}

/// Says what this machine or this user cannot have, past the capture of what tests print.
pub(crate) fn not_run(what: impl std::fmt::Display) {
    // Lost only with the terminal itself.
    let _ = writeln!(std::io::stdout(), "NOT RUN: {what}");
}

/// Both ends of a terminal: ours, and the program's.
///
/// Each is closed on exec from its beginning. A flag that is set afterwards is late for a program that another test starts meanwhile,
/// and that program holds the terminal open: its window is never hung up, and its output has no end.
pub(crate) fn open_terminal((rows, columns): (u16, u16)) -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let controller = openpt(flags).expect("a terminal");
    grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("it can be used");
    let side = ioctl_tiocgptpeer(&controller, flags).expect("its other end");
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&controller, size).expect("its size");
    (controller, side)
}

/// Names in a directory.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("readable");
    entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect()
}
