//! Ways to a program's terminal that are compared.

use std::{
    cell::Cell,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::client::TerminalClient;
use crate::{
    error::{Error, Result},
    programs,
};

/// Way between a terminal window and the program in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TerminalWay {
    /// A bare pseudo-terminal.
    Floor,
    /// A client of tmux.
    Peer,
    /// `agent-proxy run --tty`.
    Ours,
    /// `agent-proxy attach` to a session of a daemon.
    Attached,
}

impl TerminalWay {
    /// In the order in which they alternate.
    pub(super) const ALL: [Self; 4] = [Self::Floor, Self::Peer, Self::Ours, Self::Attached];

    /// Name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Peer => "peer",
            Self::Ours => "ours",
            Self::Attached => "attached",
        }
    }
}

/// Tells that it is ready, and the process that it is a child of; then shows what is typed.
const ECHO: &str = "stty raw -echo; printf 'ready:%s;' $PPID; exec cat";
/// Tells the same; then prints the file that each line names, and the mark after its name.
const PRINT: &str = "stty -echo; printf 'ready:%s;' $PPID; while read -r file mark; do cat \"$file\"; printf '\\n%s\\n' \"$mark\"; done";

/// Program in a terminal, ready to be measured.
pub(super) struct ReadyTerminal {
    pub(super) client: TerminalClient,
    /// Process that has the other end of the program's terminal.
    pub(super) holder: u32,
}

/// Directory, daemon and tmux of a run. Dropping it ends them.
pub(super) struct TerminalStage {
    directory: TempDir,
    program: PathBuf,
    tmux: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
    /// Number of tmux's servers.
    servers: Cell<u32>,
}

impl TerminalStage {
    /// Starts a daemon of its own.
    ///
    /// # Errors
    /// `program` is not there, or does not start.
    pub(super) fn new(program: Option<PathBuf>) -> Result<Self> {
        let program = match program {
            Some(program) => program,
            None => programs::own()?.with_file_name("agent-proxy"),
        };
        let directory = tempfile::tempdir().map_err(Error::system("making a directory"))?;
        let home = directory.path();
        let config = "set -g status off\nset -s escape-time 0\nset -g destroy-unattached on\nset -g default-terminal tmux-256color\n";
        fs::write(home.join("tmux.conf"), config).map_err(Error::system("writing tmux's configuration"))?;
        let environment = [
            ("PATH", std::env::var_os("PATH").unwrap_or_default()),
            ("HOME", home.into()),
            ("TMUX_TMPDIR", home.into()),
            ("XDG_RUNTIME_DIR", home.into()),
            ("AGENT_PROXY_SOCKET", home.join("daemon.sock").into()),
            ("TERM", "xterm-256color".into()),
            ("LANG", "C.UTF-8".into()),
        ];
        let environment = environment.map(|(name, value)| (name.into(), value)).to_vec();
        let stage =
            Self { directory, program, tmux: programs::find("tmux").ok(), environment, servers: Cell::default() };
        stage.ask(&["serve", "--detach"])?;
        Ok(stage)
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns true if it can be measured here.
    pub(super) fn has(&self, way: TerminalWay) -> bool {
        way != TerminalWay::Peer || self.tmux.is_some()
    }

    /// Starts the program that echoes.
    ///
    /// # Errors
    /// The system's; it does not become ready.
    pub(super) fn echo(&self, way: TerminalWay) -> Result<ReadyTerminal> {
        self.ready(way, ECHO)
    }

    /// Starts the program that prints files.
    ///
    /// # Errors
    /// As of [`TerminalStage::echo`].
    pub(super) fn print(&self, way: TerminalWay) -> Result<ReadyTerminal> {
        self.ready(way, PRINT)
    }

    /// Starts a program that ends at once.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(&self, way: TerminalWay) -> Result<TerminalClient> {
        TerminalClient::start(&self.argv(way, &["true"])?, &self.environment)
    }

    fn ready(&self, way: TerminalWay, script: &str) -> Result<ReadyTerminal> {
        let mut client = TerminalClient::start(&self.argv(way, &["sh", "-c", script])?, &self.environment)?;
        client.read_until(b"ready:")?;
        let holder = String::from_utf8_lossy(&client.read_until(b";")?).parse();
        let holder = holder.map_err(|_| Error::answer("the program in a terminal", "does not tell its parent"))?;
        client.stop_answers();
        Ok(ReadyTerminal { client, holder })
    }

    fn argv(&self, way: TerminalWay, command: &[&str]) -> Result<Vec<OsString>> {
        let own: OsString = self.program.clone().into();
        let mut argv: Vec<OsString> = match way {
            TerminalWay::Floor => vec![],
            TerminalWay::Peer => {
                let tmux = self.tmux.clone().unwrap_or_default();
                let config = self.path().join("tmux.conf");
                self.servers.set(self.servers.get() + 1);
                let server = format!("bench-{}", self.servers.get());
                let before: [OsString; 7] = [
                    tmux.into(),
                    "-u".into(),
                    "-L".into(),
                    server.into(),
                    "-f".into(),
                    config.into(),
                    "new-session".into(),
                ];
                before.to_vec()
            }
            TerminalWay::Ours => vec![own, "run".into(), "--tty".into(), "--".into()],
            TerminalWay::Attached => {
                let start = ["start", "--tty", "--agent", "command", "--"];
                let id = self.ask(&[&start, command].concat())?;
                return Ok(vec![own, "attach".into(), id.trim().into()]);
            }
        };
        argv.extend(command.iter().map(|word| OsString::from(*word)));
        Ok(argv)
    }

    /// Runs a command of ours, and returns its output.
    fn ask(&self, args: &[&str]) -> Result<String> {
        let output = programs::output(&self.program, args, &self.environment)
            .map_err(Error::system(format!("starting {}", self.program.display())))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::answer(format!("agent-proxy {}", args.join(" ")), format!("failed: {said}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for TerminalStage {
    fn drop(&mut self) {
        let _ = self.ask(&["stop", "--now"]);
    }
}
