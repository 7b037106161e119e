//! One agent's screen, step by step: by itself, with `run --tty`, with `start --tty` and `attach`.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use agent_proxy_tests::mock_model::MockModel;
use ipc_protocol::{ProcessId, Signal};

use crate::{
    agents::ScreenAgent,
    normal::normal,
    pane::{CapturedScreen, Shot, TmuxPane},
};

/// Size of the windows at first: that of a terminal that nobody views.
const SIZE: (u16, u16) = (80, 24);
/// Sizes that the window gets, one after the other.
const SIZES: [(u16, u16); 2] = [(110, 34), (64, 20)];
/// Size of the window from which somebody attaches again.
const SECOND_SIZE: (u16, u16) = (100, 28);
/// Longest wait for the screen that the bare program had.
const SAME_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for a question to go away.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for processes to be gone.
const GONE_TIMEOUT: Duration = Duration::from_secs(10);

/// How the program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// By itself.
    Bare,
    /// `run --tty`.
    Run,
    /// `start --tty` and `attach`.
    Attach,
}

/// Outcome of a step.
#[derive(Debug)]
pub(crate) struct StepOutcome {
    pub(crate) name: String,
    /// Difference to what is expected; `None` if there is none.
    pub(crate) text: Option<String>,
    pub(crate) colors: Option<String>,
    pub(crate) modes: Option<String>,
    pub(crate) title: Option<String>,
}

impl StepOutcome {
    fn is_same(&self) -> bool {
        [&self.text, &self.colors, &self.modes, &self.title].into_iter().all(Option::is_none)
    }
}

/// Everything that one agent's walks need.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    pub(crate) agent: &'static ScreenAgent,
    pub(crate) model: &'a MockModel,
    /// Folder with the agents' programs.
    pub(crate) agents: &'a Path,
    /// Our program.
    pub(crate) program: &'a Path,
    /// Folder of the walk. Its path is the same on each side, since it is seen.
    pub(crate) folder: &'a Path,
}

/// What the bare program has shown: a step's name and its screen.
pub(crate) type BareShots = Vec<(String, Shot)>;

struct SideWalk<'a> {
    walk: &'a Walk<'a>,
    side: Side,
    expected: Option<&'a BareShots>,
    shots: BareShots,
    outcomes: Vec<StepOutcome>,
}

impl Walk<'_> {
    /// Goes through all steps on one side.
    pub(crate) fn side(&self, side: Side, expected: Option<&BareShots>) -> io::Result<(BareShots, Vec<StepOutcome>)> {
        self.clean()?;
        for below in ["home", "work", "tmp", "bin"] {
            fs::create_dir_all(self.folder.join(below))?;
        }
        self.agent.furnish(&self.home(), &self.work(), &self.model.root_url())?;
        let mut walk = SideWalk { walk: self, side, expected, shots: Vec::new(), outcomes: Vec::new() };
        let done = walk.go();
        if side != Side::Attach {
            self.end_processes(side == Side::Bare)?;
        } else {
            let _ = self.ours(&["stop", "--now"]);
            self.end_processes(false)?;
        }
        done?;
        Ok((walk.shots, walk.outcomes))
    }

    fn clean(&self) -> io::Result<()> {
        match fs::remove_dir_all(self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn home(&self) -> PathBuf {
        self.folder.join("home")
    }

    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("daemon.sock")
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let bin = self.folder.join("bin");
        vec![
            ("HOME", text(&self.home())),
            ("PATH", format!("{}:{}:/usr/local/bin:/usr/bin:/bin", bin.display(), self.agents.display())),
            ("TMPDIR", text(&self.folder.join("tmp"))),
            ("TERM", "xterm-256color".to_owned()),
            ("COLORTERM", "truecolor".to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
            ("SHELL", "/bin/bash".to_owned()),
            ("PS1", "$ ".to_owned()),
            // Pi would look for programs in the network.
            ("PI_OFFLINE", "1".to_owned()),
            ("AGENT_PROXY_SOCKET", text(&self.socket())),
            ("AGENT_PROXY_CONFIG_DIR", text(&self.folder.join("config"))),
        ]
    }

    /// Runs our program.
    #[expect(clippy::disallowed_methods, reason = "our program as a user starts it")]
    fn ours(&self, words: &[&str]) -> io::Result<Output> {
        let mut command = Command::new(self.program);
        command.args(words).env_clear().envs(self.environment()).current_dir(self.work());
        let output = command.output()?;
        if output.status.success() {
            return Ok(output);
        }
        Err(io::Error::other(format!("agent-proxy {words:?}: {}", String::from_utf8_lossy(&output.stderr))))
    }

    /// Processes with the home of the walk; with `sessions_only` those of our sessions.
    fn processes(&self, sessions_only: bool) -> Vec<(ProcessId, String)> {
        let home = format!("HOME={}", self.home().display());
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_one = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            let has = |wanted: &[u8]| environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(wanted));
            variables.any(|variable| variable == home.as_bytes()) && (!sessions_only || has(b"AGENT_PROXY_SESSION="))
        };
        let named = |pid: u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            Some((registry::identify(pid).ok()?, line))
        };
        pids.filter(is_one).filter_map(named).collect()
    }

    /// Waits until no process of a session is left.
    fn nothing_left(&self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let left = self.processes(true);
            if left.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > GONE_TIMEOUT {
                return Err(format!("left: {left:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends what has the walk's home: the shells, and what a bare program leaves.
    fn end_processes(&self, is_bare: bool) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            let left = self.processes(false);
            if left.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > GONE_TIMEOUT {
                return Err(io::Error::other(format!("cannot be ended: {left:?}")));
            }
            if is_bare || begin.elapsed() > GONE_TIMEOUT / 2 {
                for (id, _) in left {
                    // An error is that it is gone.
                    let _ = registry::PidFd::open(id).and_then(|process| process.signal(Signal::Kill));
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl SideWalk<'_> {
    fn go(&mut self) -> io::Result<()> {
        let walk = self.walk;
        let agent = walk.agent;
        let program = walk.program.display();
        let begin = match self.side {
            Side::Bare => agent.bare.to_owned(),
            Side::Run => format!("{program} run --tty -- {}", agent.command),
            Side::Attach => {
                walk.ours(&["serve", "--detach"])?;
                let mut words = vec!["start", "--tty", "--id", "s", "--agent", agent.id];
                let environment: Vec<String> =
                    walk.environment().iter().map(|(name, value)| format!("{name}={value}")).collect();
                for variable in &environment {
                    words.extend(["--env", variable]);
                }
                // What the bare program shows is a screen alone: for prompts beside it Pi would have an extension of ours, which it shows,
                // Codex' conversation the session's name, and OpenCode would begin in the conversation, not on its first page.
                words.extend(["--surface", "terminal"]);
                walk.ours(&words)?;
                format!("{program} attach s")
            }
        };
        self.script(&begin)?;
        let mut pane = self.open("first", SIZE)?;
        let before = pane.settings(walk.folder)?;
        self.begin(&pane)?;
        pane.until(agent.ready)?;
        self.step(&pane, "start")?;
        for (name, text, shown) in
            [("prompt", "say hello to me", "you said: say hello to me"), ("permission", agent.tool, agent.asks)]
        {
            if shown.is_empty() {
                continue;
            }
            self.prompt(&pane, text)?;
            pane.until(shown)?;
            self.step(&pane, name)?;
        }
        if agent.asks.is_empty() {
            self.prompt(&pane, agent.tool)?;
        } else {
            self.allow(&pane)?;
        }
        pane.until("done:")?;
        self.step(&pane, "tool")?;
        for size in SIZES {
            pane.resize(size)?;
            self.step(&pane, &format!("resize to {}x{}", size.0, size.1))?;
        }
        if self.side == Side::Attach {
            pane.press(&["C-p", "C-q"])?;
            pane.until("which goes on")?;
            self.check("detach", self.restored(&pane, &before)?);
            drop(pane);
            pane = self.open("second", SECOND_SIZE)?;
            let before = pane.settings(walk.folder)?;
            self.begin(&pane)?;
            pane.until("you said: say hello to me").or_else(|_| pane.until("done:"))?;
            self.step(&pane, "second size")?;
            walk.ours(&["kill", "s"])?;
            pane.until("session ended").or_else(|_| pane.until("program ended"))?;
            let mut end = self.restored(&pane, &before)?;
            end = end.or_else(|| walk.nothing_left().err());
            self.check("kill", end);
            return Ok(());
        }
        pane.resize(SECOND_SIZE)?;
        self.step(&pane, "second size")?;
        self.prompt(&pane, agent.quit)?;
        pane.look("the shell", SAME_TIMEOUT, |screen| {
            screen.text.iter().rev().find(|line| !line.is_empty()).is_some_and(|line| line == "$")
        })?;
        self.step(&pane, "exit")?;
        if self.side == Side::Run {
            self.check(
                "exit: settings, processes",
                match self.restored(&pane, &before)? {
                    None => walk.nothing_left().err(),
                    wrong => wrong,
                },
            );
            self.begin(&pane)?;
            pane.until(agent.ready)?;
            self.terminate(&pane)?;
            pane.until("session ended: 0 survivors")?;
            self.check(
                "kill",
                match self.restored(&pane, &before)? {
                    None => walk.nothing_left().err(),
                    wrong => wrong,
                },
            );
        }
        Ok(())
    }

    /// Writes the command that the shell runs, with the screen cleared before.
    fn script(&self, command: &str) -> io::Result<()> {
        let script = self.walk.folder.join("bin/go");
        fs::write(&script, format!("#!/bin/sh\nprintf '\\033[2J\\033[3J\\033[H'\nexec {command}\n"))?;
        fs::set_permissions(script, fs::Permissions::from_mode(0o755))
    }

    fn open(&self, name: &str, size: (u16, u16)) -> io::Result<TmuxPane> {
        let walk = self.walk;
        TmuxPane::open(&walk.folder.join(name), size, &walk.work(), &walk.environment())
    }

    fn begin(&self, pane: &TmuxPane) -> io::Result<()> {
        pane.write("go")?;
        pane.press(&["Enter"])
    }

    /// Types a prompt, and the return key once it is shown.
    fn prompt(&self, pane: &TmuxPane, text: &str) -> io::Result<()> {
        pane.write(text)?;
        let end: String = text.chars().skip(text.chars().count().saturating_sub(8)).collect();
        pane.until(&end)?;
        pane.rest(|screen| normal(self.walk.agent, screen))?;
        pane.press(&["Enter"])
    }

    /// Allows what is asked for, until it was done. A key that comes soon after the question may be ignored.
    fn allow(&self, pane: &TmuxPane) -> io::Result<()> {
        for _ in 0..3 {
            pane.press(&["Enter"])?;
            // Not by what is gone: a screen that is being drawn lacks more than that.
            let is_done = |screen: &CapturedScreen| screen.text.iter().any(|line| line.contains("done:"));
            if pane.look("the answer", ANSWER_TIMEOUT, is_done).is_ok() {
                break;
            }
        }
        Ok(())
    }

    /// Ends `agent-proxy` in the window by SIGTERM.
    fn terminate(&self, pane: &TmuxPane) -> io::Result<()> {
        let shell = pane.pid()?;
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"))?;
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            registry::identify(child).and_then(|id| registry::PidFd::open(id)?.signal(Signal::Term))?;
        }
        Ok(())
    }

    /// Returns what of the window's terminal is not as it was.
    fn restored(&self, pane: &TmuxPane, before: &str) -> io::Result<Option<String>> {
        let after = pane.settings(self.walk.folder)?;
        if after != before {
            return Ok(Some(format!("settings were {before}, are {after}")));
        }
        let modes = pane.capture()?.modes;
        let is_reset = modes == "visible 1 alternate 0 mouse 0000 keypad 00";
        Ok((!is_reset).then_some(modes))
    }

    /// Compares the screen with that of the bare program, or keeps it.
    fn step(&mut self, pane: &TmuxPane, name: &str) -> io::Result<()> {
        let agent = self.walk.agent;
        let Some(expected) = self.expected else {
            let shot = pane.rest(|screen| normal(agent, screen))?;
            self.shots.push((name.to_owned(), shot));
            return Ok(());
        };
        let Some((_, expected)) = expected.iter().find(|(known, _)| known == name) else {
            return Err(io::Error::other(format!("the bare program has no step {name:?}")));
        };
        let mut outcome = compare(name, expected, &Shot::default());
        let _ = pane.look(name, SAME_TIMEOUT, |screen| {
            outcome = compare(name, expected, &normal(agent, screen.clone()));
            outcome.is_same()
        });
        self.outcomes.push(outcome);
        Ok(())
    }

    fn check(&mut self, name: &str, wrong: Option<String>) {
        self.outcomes.push(StepOutcome { name: name.to_owned(), text: wrong, colors: None, modes: None, title: None });
    }
}

/// Returns how a screen differs from the bare program's. Where the receipt has a line of its own, the first line of a full screen has
/// scrolled away.
fn compare(name: &str, expected: &Shot, shown: &Shot) -> StepOutcome {
    let gone = if shown.receipts > 0 { expected.text.len().saturating_sub(shown.text.len()) } else { 0 };
    let modes = |shot: &Shot| if shown.receipts > 0 { String::new() } else { shot.modes.clone() };
    StepOutcome {
        name: name.to_owned(),
        text: difference(&expected.text[gone..], &shown.text),
        colors: difference(&expected.colors[gone..], &shown.colors),
        modes: difference(&[modes(expected)], &[modes(shown)]),
        title: match (&expected.title, &shown.title) {
            (Some(expected), Some(shown)) => difference(std::slice::from_ref(expected), std::slice::from_ref(shown)),
            _ => None,
        },
    }
}

/// Lines that differ.
fn difference(expected: &[String], shown: &[String]) -> Option<String> {
    let lines = expected.len().max(shown.len());
    let empty = String::new();
    let line = |lines: &[String], at: usize| lines.get(at).unwrap_or(&empty).clone();
    let differing: Vec<String> = (0..lines)
        .filter(|at| line(expected, *at) != line(shown, *at))
        .map(|at| format!("{at:3} bare {:?}\n    here {:?}", line(expected, at), line(shown, at)))
        .collect();
    (!differing.is_empty()).then(|| differing.join("\n"))
}
