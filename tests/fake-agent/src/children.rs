//! Processes that the agent starts, in all the ways that make them hard to get rid of.
//!
//! None writes to the agent's standard output, and each has the shell command in its argv, so that it can be told apart.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::memfd::{MFdFlags, memfd_create};

/// First argument of a re-executed agent that is to become a child.
pub(crate) const CHILD: &str = "--fake-agent-child";
const SETSID: &str = "setsid";
const DAEMON: &str = "daemon";

/// How long a child may take to run what it is for.
const EXEC: Duration = Duration::from_secs(5);

/// Most that is kept of a tool's output, in bytes.
const MAX_OUTPUT: u64 = 64 * 1024;

#[expect(
    clippy::disallowed_methods,
    reason = "an agent starts processes that the registry did not: this one plays that"
)]
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn shell(script: &str) -> Command {
    let mut command = command("/bin/sh");
    command.arg("-c").arg(script);
    command
}

/// A plain background child, never waited for. Returns its pid.
pub(crate) fn spawn(script: &str) -> io::Result<u32> {
    let pid = shell(script).spawn()?.id();
    await_exec(pid, script);
    Ok(pid)
}

/// Waits until a child runs what it is for, so that whoever looks at it from now on sees that. One that is gone by then, or
/// takes too long, is not waited for.
fn await_exec(pid: u32, script: &str) {
    let is_there = || match script.strip_prefix("exec ").and_then(|rest| rest.split(' ').next()) {
        // A name is cut off after 15 bytes.
        Some(program) => {
            let name = program.rsplit('/').next().unwrap_or_default();
            let name = name.get(..15).unwrap_or(name);
            let is_named = fs::read_to_string(format!("/proc/{pid}/comm")).map(|comm| comm.trim_end() == name);
            // It gets its arguments a moment after its name.
            is_named.and_then(|is_named| Ok(is_named && !fs::read(format!("/proc/{pid}/cmdline"))?.is_empty()))
        }
        None => fs::read(format!("/proc/{pid}/cmdline"))
            .map(|line| line.windows(script.len()).any(|part| part == script.as_bytes())),
    };
    let begin = Instant::now();
    while matches!(is_there(), Ok(false)) && begin.elapsed() < EXEC {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A shell that ignores SIGTERM, as does what it starts. Returns its pid once the signal is ignored.
pub(crate) fn ignore_term(script: &str) -> io::Result<u32> {
    let script = format!("trap '' TERM; echo $$; exec >/dev/null; {script}");
    pid_said_by(&mut shell(&script).stdout(Stdio::piped()).spawn()?)
}

/// A child in a session of its own. Returns its pid once it is there.
pub(crate) fn setsid(reexec: &[String], script: &str) -> io::Result<u32> {
    let pid = pid_said_by(&mut become_child(reexec, SETSID, script)?)?;
    await_exec(pid, script);
    Ok(pid)
}

/// A double-forked daemon: a session of its own, re-parented, no standard streams. Returns its pid once it is there.
pub(crate) fn daemon(reexec: &[String], script: &str) -> io::Result<u32> {
    let mut middle = become_child(reexec, DAEMON, script)?;
    let pid = pid_said_by(&mut middle);
    middle.wait()?;
    pid
}

fn become_child(reexec: &[String], kind: &str, script: &str) -> io::Result<Child> {
    let (program, args) = reexec.split_first().ok_or_else(|| io::Error::other("no program to re-execute was given"))?;
    command(program).args(args).args([CHILD, kind, script]).stdout(Stdio::piped()).spawn()
}

/// The pid that a child writes before it replaces its standard output.
fn pid_said_by(child: &mut Child) -> io::Result<u32> {
    let mut text = String::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.read_to_string(&mut text)?;
    }
    text.trim().parse().map_err(|_| io::Error::other(format!("the child did not start: it said {text:?}")))
}

/// What a re-executed agent does in place of its protocol: `args` are what follows [`CHILD`]. Returns its exit code.
pub(crate) fn run_child(args: &[String]) -> i32 {
    let [kind, script] = args else { return 2 };
    match run_child_of(kind, script) {
        Ok(()) => 0,
        Err(_) => 127,
    }
}

fn run_child_of(kind: &str, script: &str) -> io::Result<()> {
    nix::unistd::setsid()?;
    if kind == DAEMON {
        return writeln!(io::stdout(), "{}", spawn(script)?);
    }
    writeln!(io::stdout(), "{}", std::process::id())?;
    // Standard output is /dev/null from here on, which is what the parent waits for.
    Err(shell(script).exec())
}

/// A shell command that runs as a tool.
#[derive(Debug)]
pub(crate) struct Tool {
    child: Child,
    output: File,
}

impl Tool {
    /// Starts it. Its output goes to a file without a name: a pipe would be held open by what it leaves behind.
    pub(crate) fn start(script: &str) -> io::Result<Self> {
        let output = File::from(memfd_create("tool-output", MFdFlags::MFD_CLOEXEC)?);
        let child = shell(script).stdout(output.try_clone()?).stderr(output.try_clone()?).spawn()?;
        Ok(Self { child, output })
    }

    /// Its exit code once it has ended (128 + signal, as shells say it).
    pub(crate) fn ended(&mut self) -> io::Result<Option<i32>> {
        use std::os::unix::process::ExitStatusExt;
        let status = self.child.try_wait()?;
        Ok(status.map(|status| status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))))
    }

    /// Kills the shell, and only the shell, as agents do.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// What it wrote so far.
    pub(crate) fn output(&self) -> io::Result<String> {
        use std::os::unix::fs::FileExt;
        let len = self.output.metadata()?.len().min(MAX_OUTPUT);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        self.output.read_exact_at(&mut bytes, 0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
