//! Completion of the command line, as the shells do it: keys are typed, and the screen is looked at.

use std::process::{Command, Stdio};

use ipc_protocol::Event;

use crate::{
    harness::{Daemon, PROGRAM, Place, not_run},
    terminal::Terminal,
};

/// Prompt of the shells.
const PROMPT: &str = "ready> ";

/// A shell with the completion, and how it is started without anyone's settings.
struct Shell {
    name: &'static str,
    argv: &'static [&'static str],
    /// Lines that its user would have in its settings.
    setup: &'static str,
}

const BASH: Shell = Shell {
    name: "bash",
    argv: &["bash", "--noprofile", "--norc", "-i"],
    setup: "bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; source <(agent-proxy completions bash)",
};
const ZSH: Shell = Shell {
    name: "zsh",
    argv: &["zsh", "--no-rcs", "--no-globalrcs", "-i"],
    setup: "unsetopt beep prompt_sp; autoload -U compinit; compinit -D -u; source <(agent-proxy completions zsh)",
};
const FISH: Shell = Shell {
    name: "fish",
    argv: &["fish", "--no-config", "--interactive"],
    setup: "set -g fish_autosuggestion_enabled 0; agent-proxy completions fish | source",
};

impl Shell {
    /// Starts it, unless this machine lacks it.
    fn start(&self, place: &Place) -> Option<Terminal> {
        if !is_installed(self.name) {
            not_run(format_args!("completion in {}, which is not installed", self.name));
            return None;
        }
        let directory = std::path::Path::new(PROGRAM).parent().expect("a directory");
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", directory.display());
        let home = place.directory.to_str().expect("UTF-8");
        let environment =
            [("PATH", path.as_str()), ("HOME", home), ("PS1", PROMPT), ("PROMPT", PROMPT), ("XDG_CONFIG_HOME", home)];
        let mut terminal = Terminal::start(place, self.argv, &environment);
        if self.name == "fish" {
            terminal.press(&format!("function fish_prompt; echo -n '{PROMPT}'; end; clear\r"));
        }
        terminal.until_last(PROMPT.trim_end());
        terminal.press(&format!("{}; clear\r", self.setup));
        terminal.until_screen(PROMPT.trim_end());
        Some(terminal)
    }
}

#[expect(clippy::disallowed_methods, reason = "tests start a shell as its user does")]
fn is_installed(shell: &str) -> bool {
    Command::new(shell).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Types a line up to a Tab, and expects the shell to complete it to this.
#[track_caller]
fn completes(terminal: &mut Terminal, typed: &str, expected: &str) {
    terminal.press(&format!("{typed}\t"));
    terminal.until_last(&format!("{PROMPT}{expected}"));
    // Takes the line back.
    terminal.press("\x15");
    terminal.until_last(PROMPT.trim_end());
}

/// A daemon's place with a session that runs, one that has ended, a profile and a model configuration.
fn furnish(place: &Place, daemon: &Daemon<'_>) {
    let _follower = daemon.start("alive-1", &["cat"]);
    daemon.run(&["start", "--id", "dead-1", "--agent", "command", "--", "cat"]).exits(0);
    daemon.run(&["kill", "dead-1"]).exits(0);
    place.run(&["profiles", "create", "weekly-review", "--agent", "command", "--model", "llama-7"]).exits(0);
    place.run(&["models", "create", "home-server", "--provider", "ollama"]).exits(0);
}

fn completes_what_there_is(shell: &Shell) {
    let place = Place::new();
    let daemon = place.serve();
    furnish(&place, &daemon);
    let Some(mut terminal) = shell.start(&place) else { return };
    for (typed, expected) in [
        ("agent-proxy compl", "agent-proxy completions"),
        ("agent-proxy attach-", "agent-proxy attach-command"),
        ("agent-proxy attach al", "agent-proxy attach alive-1"),
        ("agent-proxy kill ", "agent-proxy kill alive-1"),
        ("agent-proxy attach-command al", "agent-proxy attach-command alive-1"),
        ("agent-proxy delete ", "agent-proxy delete dead-1"),
        ("agent-proxy kill alive-1 --gr", "agent-proxy kill alive-1 --grace"),
        ("agent-proxy run --agent gem", "agent-proxy run --agent gemini"),
        ("agent-proxy run --agent=gem", "agent-proxy run --agent=gemini"),
        ("agent-proxy run --profile week", "agent-proxy run --profile weekly-review"),
        ("agent-proxy profiles show week", "agent-proxy profiles show weekly-review"),
        ("agent-proxy run --model-config ", "agent-proxy run --model-config home-server"),
        ("agent-proxy run --model ", "agent-proxy run --model llama-7"),
        ("agent-proxy append alive-1 agent:action:pr", "agent-proxy append alive-1 agent:action:prompt:called"),
        ("agent-proxy run --cwd /pro", "agent-proxy run --cwd /proc/"),
        ("agent-proxy leaktest -- agent-prox", "agent-proxy leaktest -- agent-proxy"),
        ("agent-proxy leaktest -- cat /proc/versio", "agent-proxy leaktest -- cat /proc/version"),
        ("agent-proxy start --agent command -- /proc/self/ex", "agent-proxy start --agent command -- /proc/self/exe"),
        ("agent-proxy run --agent acp hello -- agent-prox", "agent-proxy run --agent acp hello -- agent-proxy"),
        ("agent-proxy run --agent acp -- cat /proc/versio", "agent-proxy run --agent acp -- cat /proc/version"),
        ("agent-proxy shell alive-1 -- agent-prox", "agent-proxy shell alive-1 -- agent-proxy"),
        ("agent-proxy kill -- al", "agent-proxy kill -- alive-1"),
    ] {
        completes(&mut terminal, typed, expected);
    }
    let mut follower = daemon.start_fake("asks-1");
    daemon.run(&["prompt", "--no-wait", "asks-1", "ask May I?"]).exits(0);
    let request = follower.until(|envelope| match &envelope.event {
        Event::PermissionRequested(request) => Some(request.id.clone()),
        _ => None,
    });
    completes(&mut terminal, "agent-proxy permit asks-1 ", &format!("agent-proxy permit asks-1 {request}"));
    completes(&mut terminal, "agent-proxy permit asks-1 x al", "agent-proxy permit asks-1 x allow");
    // Without a daemon there are no ids, and no message.
    terminal.press("export AGENT_PROXY_SOCKET=/nowhere/x; clear; echo moved\r");
    terminal.until_screen(&format!("moved\n{}", PROMPT.trim_end()));
    terminal.press("agent-proxy kill al\tx");
    terminal.until_screen(&format!("moved\n{PROMPT}agent-proxy kill alx"));
    terminal.press("\x15exit\r");
    terminal.end();
}

#[test]
fn bash_completes_what_there_is() {
    completes_what_there_is(&BASH);
}

#[test]
fn zsh_completes_what_there_is() {
    completes_what_there_is(&ZSH);
}

#[test]
fn fish_completes_what_there_is() {
    completes_what_there_is(&FISH);
}

/// A file in `fpath` is read when it is first needed, and is the function itself.
#[test]
fn zsh_finds_the_script_by_itself() {
    let place = Place::new();
    let script = place.run(&["completions", "zsh"]).exits(0).stdout;
    std::fs::write(place.directory.join("_agent-proxy"), script).expect("written");
    let setup = "unsetopt beep prompt_sp; fpath=($HOME $fpath); autoload -U compinit; compinit -D -u";
    let Some(mut terminal) = (Shell { setup, ..ZSH }).start(&place) else { return };
    completes(&mut terminal, "agent-proxy run --agent gem", "agent-proxy run --agent gemini");
    terminal.press("exit\r");
    terminal.end();
}
