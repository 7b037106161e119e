//! Runs the commands of a page, as a person would type them into one shell.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
};

use crate::page::ShownCommand;

/// A command that has run.
#[derive(Debug)]
pub(crate) struct CommandRun {
    pub(crate) code: i32,
    /// Both streams.
    pub(crate) output: String,
}

/// Longest time for a page, in seconds.
const DEADLINE: &str = "180";

/// Port that pages show.
const PORT: u16 = 8480;
/// Ports that no system gives to whoever asks for any, and of which each page has its own.
const PORTS: Range<u16> = 20_000..30_000;

/// Ends the daemon of the page, if that is still there.
const PRELUDE: &str = r#"trap 'agent-proxy stop >"$OUT/stop" 2>&1' EXIT
"#;

/// Runs all commands in a home of their own.
///
/// # Errors
/// What went wrong with the shell itself.
pub(crate) fn run(commands: &[ShownCommand]) -> Result<Vec<CommandRun>, String> {
    let place = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let home = place.path().join("home");
    let out = place.path().join("out");
    prepare(place.path()).map_err(|error| format!("making a home failed: {error}"))?;

    let port = free_port().ok_or("no port is free")?;
    let (shown, own) = (format!("127.0.0.1:{PORT}"), format!("127.0.0.1:{port}"));
    let mut script = PRELUDE.to_owned();
    for (at, command) in commands.iter().enumerate() {
        let text = command.text.replace(&shown, &own);
        let _ = writeln!(
            script,
            "(exit \"${{code-0}}\")\n{{ {text}\n}} >\"$OUT/{at}\" 2>&1\ncode=$?; echo $code >\"$OUT/{at}.code\""
        );
    }
    fs::write(place.path().join("script"), script).map_err(|error| format!("writing the script failed: {error}"))?;

    #[expect(clippy::disallowed_methods, reason = "a page is for a shell")]
    let mut shell = Command::new("timeout");
    shell.args([DEADLINE, "bash", "--norc", "--noprofile"]).arg(place.path().join("script"));
    shell
        .env_clear()
        .current_dir(home.join("project"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    let path = format!("{}:/usr/bin:/bin", place.path().join("bin").display());
    shell.env("PATH", path).env("HOME", &home).env("OUT", &out).env("XDG_RUNTIME_DIR", place.path().join("run"));
    shell.env("TERM", "dumb").env("COLUMNS", "80").env("LANG", "C.UTF-8").env("USER", "ada");
    let status = shell.status().map_err(|error| format!("no shell: {error}"))?;
    if status.code() == Some(124) {
        let text = commands.iter().enumerate().find(|(at, _)| !out.join(format!("{at}.code")).exists());
        return Err(format!("not done in {DEADLINE} s: {}", text.map_or("", |(_, command)| &command.text)));
    }
    let runs = commands.iter().enumerate().map(|(at, command)| {
        let code = fs::read_to_string(out.join(format!("{at}.code"))).ok().and_then(|code| code.trim().parse().ok());
        let output = fs::read(out.join(at.to_string())).unwrap_or_default();
        let output = String::from_utf8_lossy(&output).replace(&home.display().to_string(), "/home/ada");
        let output = output.replace(&place.path().join("run").display().to_string(), "/run/user/1000");
        let output = output.replace(&own, &shown);
        let code = code.ok_or_else(|| format!("line {}: the shell ended in it: {output}", command.line))?;
        Ok(CommandRun { code, output })
    });
    runs.collect()
}

/// Finds a port of loopback that nobody has.
fn free_port() -> Option<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let most = PORTS.end - PORTS.start;
    // Two runs at once begin at different places.
    let first = u16::try_from(std::process::id() % u32::from(most)).unwrap_or_default();
    (0..most).find_map(|_| {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % most;
        let port = PORTS.start + number;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok().then_some(port)
    })
}

/// Makes the folders, the program, and an agent that speaks ACP.
fn prepare(place: &Path) -> std::io::Result<()> {
    for folder in ["home/project", "home/.my-agent", "out", "bin", "run"] {
        fs::create_dir_all(place.join(folder))?;
    }
    fs::set_permissions(place.join("run"), fs::Permissions::from_mode(0o700))?;
    symlink(env!("CARGO_BIN_EXE_agent-proxy"), place.join("bin/agent-proxy"))?;
    let agent = place.join("bin/my-agent");
    fs::write(&agent, "#!/bin/sh\nexec agent-proxy fake-agent --store \"$HOME/.my-agent\" --modes \"$@\"\n")?;
    fs::set_permissions(agent, fs::Permissions::from_mode(0o755))
}
