//! Real orphans, of fake programs, in a PID namespace of their own: what is listed, and what a kill ends.

use std::{fs, io::Write as _, process::Stdio};

use serde_json::Value;

use crate::documented::documented;
use crate::harness::{PROGRAM, Place, Running, not_run};

/// Prints the next line of a program that tells that it is there.
const TOLD: &str = "read line <&3; echo $line";

/// A shell that is the first process of a PID namespace, and does what it is told.
#[derive(Debug)]
struct Machine<'a> {
    place: &'a Place,
    shell: Running,
    stdin: std::process::ChildStdin,
}

impl<'a> Machine<'a> {
    /// `None` where this system has no such namespaces for this user.
    fn new(place: &'a Place) -> Option<Self> {
        const UNSHARE: [&str; 6] = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let argv = |program| [&["unshare"], &UNSHARE[..], &[program]].concat();
        let tried = place.spawn_as(&argv("true")).end();
        if !tried.status.success() {
            not_run(format_args!("orphans in a PID namespace: {}", tried.stderr.trim()));
            return None;
        }
        let mut command = place.command(&[]);
        let env: Vec<_> =
            command.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
        command = unshared(&argv("sh"));
        for (name, value) in env.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            command.env(name, value);
        }
        for mark in ["CLAUDECODE", "CLAUDE_PID", "AGENT_PROXY_RUN", "AGENT_PROXY_SESSION"] {
            command.env_remove(mark);
        }
        command.current_dir(&place.directory);
        let mut shell = Running::new(command);
        let stdin = shell.stdin();
        let mut machine = Self { place, shell, stdin };
        machine.answer("mkfifo told; exec 3<>told; echo ready");
        Some(machine)
    }

    /// A script of this name in the place. It starts `below`, tells that it is there, and stays.
    fn program(&self, name: &str, below: &str) {
        let text = format!("#!/bin/sh\n{below}\necho \"$1 $$\" >told\nwhile :; do sleep 1000; done\n");
        fs::write(self.place.directory.join(name), text).expect("written");
    }

    /// Runs a command line; returns the next line that it prints.
    #[track_caller]
    fn answer(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}").expect("the shell is there");
        self.shell.line().expect("a line")
    }

    /// Starts something in a POSIX session whose first process ends at once; returns the pid of the program that tells it.
    #[track_caller]
    fn leave(&mut self, script: &str) -> u32 {
        let told = self.answer(&format!("setsid sh -c '{script}' </dev/null >/dev/null 2>&1; {TOLD}"));
        pid(&told)
    }

    #[track_caller]
    fn list(&mut self) -> Vec<Value> {
        let text = self.answer(&format!("{PROGRAM} --json orphans"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Runs the program; returns all it prints, and its exit code.
    #[track_caller]
    fn run(&mut self, args: &str) -> (String, i32) {
        writeln!(self.stdin, "{PROGRAM} {args} 2>&1; echo \"exit $?\"").expect("the shell is there");
        self.until_exit()
    }

    /// Runs `orphans kill --all` on a terminal, where its question is answered so; returns all that is on it, and its exit code.
    #[track_caller]
    fn answers(&mut self, answer: &str) -> (String, i32) {
        let asks =
            format!("echo {answer} | script --quiet --return --command '{PROGRAM} orphans kill --all' /dev/null");
        writeln!(self.stdin, "{asks}; echo \"exit $?\"").expect("the shell is there");
        self.until_exit()
    }

    fn until_exit(&mut self) -> (String, i32) {
        let mut text = String::new();
        loop {
            let line = self.shell.line().expect("a line");
            if let Some(code) = line.strip_prefix("exit ") {
                return (text, code.parse().expect("a code"));
            }
            text.push_str(&line);
            text.push('\n');
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a shell in a PID namespace of its own")]
fn unshared(argv: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(argv[0]);
    command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// The pid in what a program told.
#[track_caller]
fn pid(told: &str) -> u32 {
    told.split_whitespace().last().and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("{told}"))
}

/// Asks for a process; a dead one that nobody has reaped is gone.
fn is_alive(pid: u32) -> String {
    format!("grep -q '^State:.[RSDT]' /proc/{pid}/status 2>/dev/null && echo alive || echo gone")
}

fn pids(listed: &[Value]) -> Vec<u64> {
    listed.iter().map(|orphan| orphan["pid"].as_u64().expect("a pid")).collect()
}

/// An orphan with a child of its own, beside an agent that a terminal holds, and one that has left its shell there.
#[test]
fn an_orphan_is_ended_by_its_pid_and_what_has_a_terminal_lives_on() {
    let place = Place::new();
    let Some(mut machine) = Machine::new(&place) else { return };
    // The child ignores SIGTERM, and stays in the receipt.
    machine.program("claude", "sh -c \"trap : TERM; while :; do sleep 1000; done\" & trap : TERM");
    let orphan = machine.leave("sh ./claude orphan &");
    let mut in_terminal = Vec::new();
    if machine.answer("command -v script || echo none") == "none" {
        not_run("agents in a terminal: there is no script(1)");
    } else {
        for script in ["exec sh ./claude used", "(sh ./claude left &); exec sleep 1000"] {
            let terminal = format!("script -qc '{script}' /dev/null </dev/null >/dev/null 2>&1");
            in_terminal.push(pid(&machine.answer(&format!("{terminal} & {TOLD}"))));
        }
    }
    let listed = machine.list();
    documented("orphans", listed.clone().into());
    assert_eq!(pids(&listed), [u64::from(orphan)], "{listed:?}");
    let [found] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((&found["kind"], &found["name"]), (&"agent".into(), &"claude-code".into()));
    assert_eq!((&found["doubt"], &found["adoptedBy"]["pid"]), (&Value::Null, &1.into()));
    assert!(found["processes"].as_array().is_some_and(|processes| processes.len() >= 3), "{found}");
    assert!(found["memoryBytes"].as_u64() > Some(0), "{found}");
    let (text, code) = machine.run("orphans");
    assert_eq!(code, 0);
    for part in ["claude-code", &orphan.to_string(), "1 orphan, "] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let (quiet, _) = machine.run("orphans -q");
    assert_eq!(quiet, format!("{orphan}@{}\n", found["startTime"]));
    let (filled, _) = machine.run("orphans --format '{kind} {pid} {processes.0.pid}'");
    assert_eq!(filled, format!("agent {orphan} {orphan}\n"));
    let (lines, _) = machine.run("orphans --format jsonl");
    let line: Value = serde_json::from_str(&lines).expect("one line of JSON");
    assert_eq!((&line["pid"], &line["startTime"]), (&found["pid"], &found["startTime"]));

    // Nothing is signalled unless all are orphans, and the same as before.
    let below = found["processes"][1]["pid"].to_string();
    for (args, code, part) in [
        (format!("orphans kill {orphan} 1"), 8, "no mark of an agent"),
        (format!("orphans kill {orphan} 999999"), 3, "there is no process 999999"),
        (format!("orphans kill {orphan}@1"), 3, "another one by now"),
        (format!("orphans kill {below}"), 8, "is below orphan"),
        ("orphans kill --all </dev/null".to_owned(), 2, "--yes"),
        ("orphans kill".to_owned(), 2, "required"),
    ] {
        let ran = machine.run(&args);
        assert!(ran.1 == code && ran.0.contains(part), "{args}: {ran:?}");
    }
    for held in &in_terminal {
        let ran = machine.run(&format!("orphans kill {held}"));
        assert!(ran.1 == 8 && ran.0.contains("has a terminal"), "{ran:?}");
    }
    assert_eq!(pids(&machine.list()), [u64::from(orphan)]);

    let (text, code) = machine.run(&format!("--json orphans kill --grace 100ms {}", quiet.trim()));
    assert_eq!(code, 0, "{text}");
    let receipts: Value = serde_json::from_str(&text).expect("receipts");
    let receipt = &receipts[0];
    assert_eq!((&receipt["proof"], &receipt["survivors"]), (&"processGone".into(), &serde_json::json!([])));
    let ended: Vec<&Value> =
        receipt["processes"].as_array().expect("an array").iter().map(|entry| &entry["id"]).collect();
    for process in found["processes"].as_array().expect("an array") {
        assert!(
            ended.iter().any(|id| id["pid"] == process["pid"] && id["startTime"] == process["startTime"]),
            "{process} in {receipt}"
        );
        let pid = process["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("a pid");
        assert_eq!(machine.answer(&is_alive(pid)), "gone");
    }
    assert_eq!(machine.run("orphans"), ("no orphans\n".to_owned(), 0));
    for held in in_terminal {
        assert_eq!(machine.answer(&is_alive(held)), "alive");
    }
}

/// What agents start: an MCP server with a pipe, and a command by its environment, of an agent that lives and of one that is dead.
#[test]
fn all_is_what_nobody_may_use() {
    let place = Place::new();
    let Some(mut machine) = Machine::new(&place) else { return };
    for name in ["a-mcp-server", "server", "claude"] {
        machine.program(name, "");
    }
    let server = machine.leave("sleep 1000 | sh ./a-mcp-server x &");
    let standalone = machine.leave("sh ./a-mcp-server y </dev/null &");
    let living = machine.answer(&format!("sh ./claude z </dev/null >/dev/null 2>&1 & {TOLD}"));
    let living = pid(&living);
    let used = machine.leave(&format!("CLAUDECODE=1 CLAUDE_PID={living} sh ./server u &"));
    let dead = machine.leave("CLAUDECODE=1 CLAUDE_PID=999999 sh ./server d &");
    let unknown = machine.leave("CLAUDECODE=1 sh ./server n &");
    let listed = machine.list();
    assert_eq!(pids(&listed), [server, dead, unknown].map(u64::from), "{listed:?}");
    let kinds: Vec<_> = listed.iter().map(|orphan| (orphan["kind"].as_str(), orphan["doubt"].is_null())).collect();
    assert_eq!(kinds, [(Some("mcp-server"), true), (Some("child"), true), (Some("child"), false)]);
    for (pid, part) in [(standalone, "no agent started"), (used, "the agent that started it lives")] {
        let ran = machine.run(&format!("orphans kill {pid}"));
        assert!(ran.1 == 8 && ran.0.contains(part), "{ran:?}");
    }
    // On a terminal it asks, and anything but a yes ends nothing.
    let asked = machine.answers("n");
    assert!(asked.0.contains("nothing was signalled") && asked.1 != 0, "{asked:?}");
    assert_eq!(machine.list().len(), 3, "{asked:?}");
    let (text, code) = machine.answers("y");
    assert_eq!(code, 0, "{text}");
    for part in ["0 survivors", "proof:", "freed"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(pids(&machine.list()), [u64::from(unknown)], "what is uncertain is left");
    let (text, code) = machine.run("orphans kill --all --yes");
    assert!(code == 0 && text.contains("name the pid"), "{text}");
    assert_eq!(machine.run(&format!("orphans kill {unknown}")).1, 0, "by its name");
    assert_eq!(machine.run("--json orphans"), ("[]\n".to_owned(), 0));
    for pid in [standalone, used, living] {
        assert_eq!(machine.answer(&is_alive(pid)), "alive");
    }
}
