//! Made-up process tables, most of them as public reports show them.

use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

use agents::{
    Catalog,
    marks::{self, ProcessFacts},
};
use ipc_protocol::{MARKER, Pid, ProcessId};
use proptest::prelude::*;
use proxy_manager::SESSION_MARKER;
use registry::MachineProcess;

use super::judge::{OrphanKind, OrphanReport, OrphanViewer, SeenProgram, SpareReason, find_orphans};

const USER: u32 = 1000;

/// A process, started in the order of its pid, in the POSIX session of its parent unless it is said otherwise.
fn process(pid: Pid, ppid: Pid, sid: Pid, command: &str) -> MachineProcess {
    let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
    let name = argv[0].rsplit('/').next().unwrap_or_default().trim_start_matches('-').to_owned();
    MachineProcess {
        id: ProcessId { pid, start_time: u64::from(pid) },
        ppid,
        sid,
        has_terminal: false,
        uid: USER,
        is_namespace_init: pid == 1,
        program: Some(format!("/usr/bin/{name}")),
        name,
        argv,
        env: BTreeMap::new(),
        cgroup: None,
        has_piped_stdin: false,
        ignores_hangup: false,
        memory_bytes: 1 << 20,
        cpu_time: Duration::ZERO,
        started_at: UNIX_EPOCH,
    }
}

/// What the tables say beside that.
trait Facts: Sized {
    fn change(self, change: impl FnOnce(&mut MachineProcess)) -> Self;

    fn tty(self) -> Self {
        self.change(|process| process.has_terminal = true)
    }
    fn env(self, name: &str, value: &str) -> Self {
        self.change(|process| _ = process.env.insert(name.to_owned(), value.to_owned()))
    }
    /// Started by Claude Code's shell tool, or by the Claude with this pid.
    fn by_claude(self, owner: Option<Pid>) -> Self {
        let marked = self.env("CLAUDECODE", "1");
        match owner {
            Some(pid) => marked.env("CLAUDE_PID", &pid.to_string()),
            None => marked,
        }
    }
    fn piped(self) -> Self {
        self.change(|process| process.has_piped_stdin = true)
    }
    fn cgroup(self, path: &str) -> Self {
        self.change(|process| process.cgroup = Some(path.to_owned()))
    }
    fn root(self) -> Self {
        self.change(|process| process.uid = 0)
    }
    /// A title, in place of the command line.
    fn title(self, title: &str) -> Self {
        self.change(|process| process.argv = vec![title.to_owned()])
    }
    fn container_init(self) -> Self {
        self.change(|process| process.is_namespace_init = true)
    }
}

impl Facts for MachineProcess {
    fn change(mut self, change: impl FnOnce(&mut MachineProcess)) -> Self {
        change(&mut self);
        self
    }
}

/// A machine with systemd, and a user manager 900.
fn desktop(more: impl IntoIterator<Item = MachineProcess>) -> Vec<MachineProcess> {
    let base = [
        process(1, 0, 1, "/sbin/init").root().change(|init| init.name = "systemd".into()),
        process(900, 1, 900, "/usr/lib/systemd/systemd --user")
            .cgroup("/user.slice/user-1000.slice/user@1000.service/init.scope"),
    ];
    base.into_iter().chain(more).collect()
}

fn judged_as(table: Vec<MachineProcess>, viewer: OrphanViewer) -> OrphanReport {
    let rows = Catalog::default();
    let recognized = |process: MachineProcess| {
        let facts = ProcessFacts { program: process.program.as_deref(), argv: &process.argv, env: &process.env };
        let mark = marks::recognize(rows.rows(), facts);
        SeenProgram { process, mark }
    };
    let seen: Vec<_> = table.into_iter().map(recognized).collect();
    find_orphans(&seen, viewer)
}

fn judged(table: Vec<MachineProcess>) -> OrphanReport {
    judged_as(table, OrphanViewer { pid: 999_999, uid: USER, all_users: false })
}

/// The orphans' pids, each with whether there is a doubt.
fn orphans(table: Vec<MachineProcess>) -> Vec<(Pid, bool)> {
    judged(table).orphans.iter().map(|orphan| (orphan.root.pid, orphan.doubt.is_some())).collect()
}

#[track_caller]
fn spared(table: Vec<MachineProcess>, pid: Pid, reason: &SpareReason) {
    let report = judged(table);
    assert!(report.orphans.is_empty(), "{:?}", report.orphans);
    assert_eq!(report.spared.get(&pid), Some(reason));
}

const SCOPE: &str =
    "/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-1.scope";

/// anthropics/claude-code 19022, 21287: the terminal was closed, and `systemd --user`, or init, has the agent.
#[test]
fn an_agent_whose_terminal_was_closed() {
    let table = desktop([
        process(2000, 900, 1900, "claude").cgroup(SCOPE),
        process(2001, 1, 1901, "claude --resume 4bc1f741").cgroup("/user.slice/user-1000.slice/session-3.scope"),
        // The one that is in use.
        process(1950, 900, 1950, "/usr/libexec/gnome-terminal-server"),
        process(1960, 1950, 1960, "bash").tty(),
        process(1970, 1960, 1960, "claude").tty(),
    ]);
    let report = judged(table);
    let found: Vec<_> = report.orphans.iter().map(|orphan| (orphan.root.pid, orphan.adopter.0)).collect();
    assert_eq!(found, [(2000, 900), (2001, 1)]);
    assert_eq!(report.orphans[0].kind, OrphanKind::Agent("claude-code".into()));
    assert!(report.orphans.iter().all(|orphan| orphan.doubt.is_none()), "{report:?}");
}

/// anomalyco/opencode 10563, 15808; anthropics/claude-code 26658: MCP servers, and the `npm exec` above them.
#[test]
fn mcp_servers_left_by_agents_that_ended() {
    let table = desktop([
        process(3000, 1, 2900, "npm").title("npm exec @playwright/mcp@latest").piped(),
        process(3001, 3000, 2900, "sh -c playwright-mcp").piped(),
        process(3002, 3001, 2900, "node /home/u/.npm/_npx/9/node_modules/.bin/playwright-mcp").piped(),
        process(3010, 1, 2901, "mcp-searxng").piped(),
        // Chrome begins a session of its own (playwright-mcp 1634).
        process(3020, 1, 3020, "chrome --headless --user-data-dir=/home/u/.cache/ms-playwright/mcp-chrome-1a"),
        process(3021, 3020, 3020, "chrome --type=renderer"),
        // Somebody's own server, by HTTP, under nohup.
        process(3030, 1, 2902, "node /srv/mcp-server.js --http 8080"),
    ]);
    let report = judged(table);
    let found: Vec<_> = report.orphans.iter().map(|orphan| (orphan.root.pid, orphan.members.len())).collect();
    assert_eq!(found, [(3000, 3), (3010, 1), (3020, 2)]);
    assert_eq!(report.orphans[0].kind, OrphanKind::McpServer("@playwright/mcp".into()));
    assert_eq!(report.spared.get(&3030), Some(&SpareReason::Standalone));
}

/// pingdotgg/t3code 5241, remorses/kimaki 117: `opencode serve`, whose wrapper or backend is dead.
#[test]
fn a_server_that_outlived_its_wrapper() {
    let table = desktop([process(4000, 1, 3900, "/usr/lib/node_modules/opencode-ai/bin/.opencode serve --port 4096")]);
    assert_eq!(orphans(table), [(4000, false)]);
}

/// thedotmack/claude-mem 603: a plugin's daemon with hundreds of agents below it: one tree.
#[test]
fn a_plugin_s_daemon_and_its_agents_are_one_tree() {
    let mut table = desktop([
        process(5000, 1, 5000, "bun /home/u/.claude/plugins/x/worker-service.cjs --daemon").by_claude(Some(4000))
    ]);
    table.extend((5001..5122).map(|pid| process(pid, 5000, 5000, "claude --output-format stream-json")));
    let report = judged(table);
    assert_eq!(report.orphans.len(), 1, "{report:?}");
    assert_eq!(report.orphans[0].members.len(), 122);
    assert_eq!(report.orphans[0].kind, OrphanKind::AgentChild("claude-code".into()));
}

/// anthropics/claude-code 27959; Sterll/claude-terminal 203: commands in the background.
#[test]
fn what_an_agent_s_shell_started_is_spared_while_that_agent_lives() {
    let alive = |owner| {
        desktop([
            process(1950, 900, 1950, "/usr/libexec/gnome-terminal-server"),
            process(1960, 1950, 1960, "bash").tty(),
            process(1970, 1960, 1960, "claude").tty(),
            process(2100, 900, 2050, "node server.js").by_claude(owner),
        ])
    };
    spared(alive(Some(1970)), 2100, &SpareReason::Owner(1970));
    // Its agent is gone, although another lives.
    assert_eq!(orphans(alive(Some(1800))), [(2100, false)]);
    // It does not say whose it is.
    assert_eq!(orphans(alive(None)), [(2100, true)]);
    // The agent is an orphan itself.
    let table =
        desktop([process(1970, 900, 1960, "claude"), process(2100, 900, 2050, "node server.js").by_claude(Some(1970))]);
    assert_eq!(orphans(table), [(1970, false), (2100, false)]);
    // A younger agent that has the dead one's pid is none.
    let table = desktop([
        process(1960, 900, 1960, "xterm"),
        process(2100, 900, 2050, "node server.js").by_claude(Some(2200)),
        process(2200, 1960, 2200, "claude").tty(),
    ]);
    assert_eq!(orphans(table), [(2100, false)]);
}

/// anthropics/claude-code 61800: a host of terminals for an agent's background sessions, whose daemon is dead.
#[test]
fn a_terminal_that_an_agent_shows_itself_is_no_living_one() {
    let host = |parent| {
        [
            process(6000, parent, 6000, "claude --bg-pty-host /tmp/cc-daemon-501/spare").title("claude bg-pty-host"),
            process(6001, 6000, 6001, "claude --resume x").tty(),
        ]
    };
    // It began a POSIX session of its own, and says no owner: whoever ends it has to name it.
    assert_eq!(orphans(desktop(host(1))), [(6000, true)]);
    let daemon = process(5900, 1, 5900, "claude").title("claude daemon");
    spared(desktop([daemon].into_iter().chain(host(5900))), 5900, &SpareReason::Daemon("claude-code".into()));
}

/// gastownhall/gastown 923: a cleanup killed agents in people's own tmux sessions.
#[test]
fn what_a_multiplexer_holds_is_never_listed() {
    for server in ["tmux: server", "SCREEN", "/usr/bin/zellij", "dtach", "/usr/bin/mosh-server"] {
        let mut table = desktop([
            process(7000, 1, 7000, "tmux").title(server).by_claude(None),
            process(7001, 7000, 7001, "-bash").by_claude(None),
            // Its terminal is not seen for a moment.
            process(7002, 7001, 7001, "claude").by_claude(None),
        ]);
        table[2].name = server.rsplit('/').next().unwrap_or_default().trim_start_matches("SCREEN").to_owned();
        if server == "SCREEN" {
            table[2].name = "screen".into();
        }
        let report = judged(table);
        assert!(report.orphans.is_empty(), "{server}: {report:?}");
    }
}

#[test]
fn what_editors_and_remote_logins_run_is_never_listed() {
    let server = "/home/u/.vscode-server/bin/c08/node /home/u/.vscode-server/bin/c08/out/server-main.js";
    let extension = "/home/u/.vscode-server/extensions/anthropic.claude-code/resources/native-binary/claude";
    // Its terminal is gone, as is usual; it belongs to nobody but the editor's windows.
    let table = desktop([
        process(8000, 1, 7990, server),
        process(8001, 8000, 7990, "node /home/u/.vscode-server/bin/c08/out/bootstrap-fork --type=extensionHost"),
        process(8002, 8001, 7990, extension),
    ]);
    assert_eq!(orphans(table), []);
    // The host of extensions died, and the server, which began the session, lives.
    let table = desktop([process(8000, 1, 8000, server), process(8002, 1, 8000, extension)]);
    spared(table, 8002, &SpareReason::Host(8000, "node".into()));
    // All of the editor is gone (anthropics/claude-code 22612).
    assert_eq!(orphans(desktop([process(8002, 1, 8000, extension)])), [(8002, false)]);
    let ssh = desktop([
        process(8100, 1, 8100, "sshd: /usr/sbin/sshd -D").root(),
        process(8101, 8100, 8101, "sshd: u@notty").root(),
        process(8102, 8101, 8102, "claude -p x"),
    ]);
    assert_eq!(orphans(ssh), []);
    // Emacs, started from an agent's shell: somebody edits in it.
    let table = desktop([process(8200, 900, 8150, "emacs --daemon").by_claude(Some(12))]);
    spared(table, 8200, &SpareReason::ShowsTerminal(8200, "emacs".into()));
    let table = desktop([process(8201, 900, 8150, "firefox").by_claude(Some(12))]);
    spared(table, 8201, &SpareReason::UserProgram);
    // A terminal emulator that nobody knows.
    let table = desktop([
        process(8300, 900, 8150, "newterm").by_claude(Some(12)),
        process(8301, 8300, 8301, "bash").by_claude(Some(12)).tty(),
    ]);
    spared(table, 8300, &SpareReason::ShowsTerminal(8301, "bash".into()));
}

#[test]
fn nohup_under_a_living_shell_has_a_parent_and_later_a_doubt() {
    let nohup = |ppid| process(2000, ppid, 1960, "claude -p x").change(|process| process.ignores_hangup = true);
    let shell = process(1960, 1950, 1960, "bash").tty();
    let terminal = process(1950, 900, 1950, "xterm");
    assert_eq!(orphans(desktop([terminal.clone(), shell.clone(), nohup(1960)])), []);
    // `(claude &)`: adopted at once, in a terminal that is open.
    spared(desktop([terminal, shell, nohup(900).tty()]), 2000, &SpareReason::Terminal);
    assert_eq!(orphans(desktop([nohup(900)])), [(2000, true)]);
    // `setsid -f claude`.
    assert_eq!(orphans(desktop([process(2000, 900, 2000, "claude -p x")])), [(2000, true)]);
}

/// rjwalters/loom 2268: pane_shell → wrapper.sh → timeout → claude, after `tmux kill-session`.
#[test]
fn a_script_that_runs_an_agent_is_listed_with_a_doubt() {
    let table = desktop([
        process(2000, 1, 1960, "/bin/bash ./wrapper.sh"),
        process(2001, 2000, 1960, "timeout 3600 claude -p x"),
        process(2002, 2001, 1960, "claude -p x"),
        // A program of somebody's that runs agents.
        process(2100, 1, 1961, "python3 bot.py"),
        process(2101, 2100, 1961, "claude -p x"),
    ]);
    let report = judged(table);
    assert_eq!(report.orphans.len(), 1, "{report:?}");
    assert_eq!(report.orphans[0].kind, OrphanKind::Wrapper("claude-code".into()));
    assert!(report.orphans[0].doubt.is_some());
    let table = desktop([process(2001, 1, 1960, "timeout 3600 claude -p x"), process(2002, 2001, 1960, "claude -p x")]);
    assert_eq!(orphans(table), [(2001, false)]);
}

#[test]
fn services_are_not_listed_but_what_they_left_is() {
    let unit = "/user.slice/user-1000.slice/user@1000.service/app.slice/opencode.service";
    let service = process(2000, 900, 2000, "opencode serve --port 4096").cgroup(unit);
    spared(desktop([service.clone()]), 2000, &SpareReason::Service("opencode.service".into()));
    // Type=forking: the shell that systemd started is gone.
    let forking = process(2000, 900, 1990, "opencode serve").cgroup(unit);
    spared(desktop([forking]), 2000, &SpareReason::Service("opencode.service".into()));
    // An MCP server of an agent of it that ended; cron's the same (anomalyco/opencode 15808).
    let left = process(2005, 900, 1999, "mcp-searxng").piped().cgroup(unit);
    assert_eq!(orphans(desktop([service, left])), [(2005, false)]);
    let cron = process(800, 1, 800, "/usr/sbin/cron -f").root().cgroup("/system.slice/cron.service");
    let left = process(2005, 1, 1999, "mcp-searxng").piped().cgroup("/system.slice/cron.service");
    assert_eq!(orphans(desktop([cron, left])), [(2005, false)]);
}

#[test]
fn what_the_desktop_started_is_not_listed() {
    let app = "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-opencode-2000.scope";
    let started = process(2000, 900, 880, "opencode").cgroup(app);
    spared(desktop([started]), 2000, &SpareReason::Application("app-gnome-opencode-2000.scope".into()));
    // In the scope of a terminal that was closed.
    let app = "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-Alacritty-1900.scope";
    assert_eq!(orphans(desktop([process(2000, 900, 1950, "opencode").cgroup(app)])), [(2000, false)]);
}

/// An agent's shell opened a page, and the browser was not running yet.
#[test]
fn a_browser_below_an_orphan_may_be_in_use() {
    let below = |browser: &str| {
        desktop([
            process(2000, 900, 1950, "claude"),
            process(2001, 2000, 1950, browser),
            process(2002, 2001, 1950, "chrome --type=renderer"),
        ])
    };
    assert_eq!(orphans(below("firefox http://localhost:3000")), [(2000, true)]);
    let driven = below("chrome --remote-debugging-pipe --user-data-dir=/tmp/playwright-1");
    assert_eq!(orphans(driven), [(2000, false)]);
}

/// What a kill of the tree ends is listed with it.
#[test]
fn what_a_tree_has_lost_to_init_is_of_the_tree() {
    let table = desktop([
        process(2000, 1, 2000, "node /x/a-mcp/index.js").piped(),
        process(2001, 2000, 2000, "node worker.js"),
        // Its parent was a process of the tree.
        process(2005, 1, 2000, "node helper.js").by_claude(Some(9)),
        process(2006, 2005, 2006, "sleep 9"),
        process(2007, 1, 2006, "sleep 9"),
        // Of another session.
        process(2008, 1, 1950, "sleep 9"),
    ]);
    let report = judged(table);
    let pids: Vec<_> = report
        .orphans
        .iter()
        .map(|orphan| orphan.members.iter().map(|(_, member)| member.id.pid).collect::<Vec<_>>())
        .collect();
    assert_eq!(pids, [[2000, 2001, 2005, 2006, 2007]]);
}

#[test]
fn containers_and_inits_that_start_programs_themselves() {
    // The first process of a container runs the agent as its child: nobody lost it.
    let app =
        |init: &str| vec![process(1, 0, 1, init), process(10, 1, 1, "claude -p x"), process(11, 1, 11, "codex exec x")];
    for init in ["node /srv/server.js", "/sbin/tini -- claude -p x", "dumb-init run", "/process_api"] {
        assert_eq!(orphans(app(init)), [], "{init}");
    }
    // It is no longer in the session of the `docker exec` that began it.
    let left =
        |init: &str| vec![process(1, 0, 1, init), process(12, 1, 5, "claude -p x"), process(13, 1, 13, "codex exec x")];
    assert_eq!(orphans(left("node /srv/server.js")), [(12, false)]);
    // What only sleeps has started nothing.
    assert_eq!(orphans(left("sleep infinity")), [(12, false), (13, true)]);
    // `docker run -it … bash`: the terminal is that of the container's init.
    let mut table = left("bash");
    table[0].has_terminal = true;
    assert_eq!(orphans(table), []);
    // From outside: below the shim is a container that lives.
    let table = desktop([
        process(500, 1, 500, "containerd-shim-runc-v2 -namespace moby").root(),
        process(510, 500, 510, "tini -- sleep infinity").container_init(),
        process(520, 500, 520, "claude -p x"),
        process(530, 510, 525, "claude -p x"),
    ]);
    assert_eq!(orphans(table), [(530, false)]);
    // sysvinit and the like may have started it.
    let table = vec![process(1, 0, 1, "/sbin/init"), process(12, 1, 12, "opencode serve"), process(13, 1, 9, "claude")];
    assert_eq!(orphans(table), [(12, true), (13, false)]);
}

#[test]
fn subreapers_adopt_too() {
    let reaper = |name: &str| process(950, 900, 950, name);
    let left = process(2000, 950, 1960, "claude");
    assert_eq!(orphans(desktop([reaper("some-session-manager"), left.clone()])), [(2000, false)]);
    spared(desktop([reaper("kitty"), left.clone()]), 2000, &SpareReason::Host(950, "kitty".into()));
    spared(desktop([reaper("bash").tty(), left.clone()]), 2000, &SpareReason::Host(950, "bash".into()));
    // It started this one itself.
    assert_eq!(orphans(desktop([reaper("some-session-manager"), process(2000, 950, 950, "claude")])), []);
    // Somebody who lives began its session.
    assert_eq!(
        orphans(desktop([process(1960, 900, 1960, "sh job.sh"), process(2000, 900, 1960, "claude -p x")])),
        [(2000, true)]
    );
}

#[test]
fn sessions_of_agent_proxy_are_spared_while_they_live() {
    let marked = |process: MachineProcess| process.env(MARKER, "run-1").env(SESSION_MARKER, "s-1");
    let proxy = process(2000, 1, 1990, "ap").title("agent-proxy: session s-1");
    let agent = marked(process(2001, 2000, 2001, "claude -p x"));
    assert_eq!(orphans(desktop([proxy.clone(), agent])), []);
    // What left the tree is the session's all the same; so is what has lost its marks.
    let stray = marked(process(2002, 1, 1999, "sleep 300"));
    spared(desktop([proxy.clone(), stray.clone()]), 2002, &SpareReason::Session(Some("s-1".into())));
    spared(desktop([proxy, process(2003, 2000, 1999, "claude")]), 2003, &SpareReason::Session(None));
    let report = judged(desktop([stray]));
    assert_eq!(report.orphans[0].kind, OrphanKind::Session("s-1".into()));
    assert!(report.orphans[0].doubt.as_deref().is_some_and(|doubt| doubt.contains("agent-proxy serve")), "{report:?}");
    // It is known even below an init that starts programs itself, and in a POSIX session of its own.
    let init = process(1, 0, 1, "/process_api");
    let table = vec![init, marked(process(14, 1, 14, "sleep 300")), marked(process(15, 14, 15, "sleep 301"))];
    assert_eq!(orphans(table), [(14, true)]);
    // A daemon that was started from an agent's shell.
    let daemon = process(2000, 1, 1990, "agent-proxy serve").by_claude(Some(4));
    spared(desktop([daemon]), 2000, &SpareReason::UserProgram);
}

#[test]
fn nobody_ends_other_users_processes_or_the_own_command() {
    let table = || {
        desktop([
            process(2000, 1, 1990, "claude").root(),
            process(2100, 1, 2090, "codex"),
            process(2101, 2100, 2090, "agent-proxy orphans"),
        ])
    };
    let viewer = |all_users| OrphanViewer { pid: 2101, uid: USER, all_users };
    let report = judged_as(table(), viewer(false));
    assert!(report.orphans.is_empty(), "{report:?}");
    assert_eq!(report.spared, [(2000, SpareReason::OtherUser), (2100, SpareReason::OwnCommand)].into());
    let report = judged_as(table(), viewer(true));
    assert_eq!(report.orphans.iter().map(|orphan| orphan.root.pid).collect::<Vec<_>>(), [2000]);
}

#[test]
fn torn_listings_have_no_orphans() {
    // Its parent is gone meanwhile; its parent's pid is a younger process's; it is its own parent.
    let table = desktop([
        process(2000, 1999, 1990, "claude"),
        process(2001, 2500, 1990, "claude"),
        process(2500, 1, 2500, "sleep 9"),
        process(2600, 2600, 1990, "claude"),
    ]);
    assert_eq!(orphans(table), []);
}

/// Any process, somewhere.
fn arbitrary_table() -> impl Strategy<Value = Vec<MachineProcess>> {
    let commands = prop::sample::select(vec![
        "claude",
        "codex exec x",
        "bash",
        "sh -c x",
        "tmux",
        "node server.js",
        "npx a-mcp",
        "sshd",
        "sleep 9",
        "code",
        "python3 x.py",
    ]);
    let one = (commands, any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<[bool; 6]>());
    prop::collection::vec(one, 1..40).prop_map(|drawn| {
        let mut table = desktop([]);
        for (at, (command, parent, sid, [tty, own, lost, marked, piped, owned])) in drawn.into_iter().enumerate() {
            let pid = 1000 + Pid::try_from(at).unwrap_or(0);
            let parent = if tty || own { parent.get(&table).clone() } else { table[usize::from(lost)].clone() };
            let sid = match (own, lost) {
                (true, _) => pid,
                (_, true) => 990,
                _ => sid.get(&table).sid,
            };
            let mut process = process(pid, parent.id.pid, sid, command);
            process.has_terminal = tty || parent.has_terminal && !own;
            process.has_piped_stdin = piped;
            if marked {
                process = process.by_claude(owned.then_some(parent.id.pid));
            }
            table.push(process);
        }
        table
    })
}

proptest! {
    /// Whatever the table: no orphan has a terminal or a terminal's host above it, each is recognised, nothing is in two trees.
    #[test]
    fn what_somebody_may_use_is_never_listed(table in arbitrary_table()) {
        let by_pid: BTreeMap<Pid, MachineProcess> = table.iter().map(|process| (process.id.pid, process.clone())).collect();
        let report = judged(table);
        let mut seen = std::collections::BTreeSet::new();
        for orphan in &report.orphans {
            let root = &by_pid[&orphan.root.pid];
            prop_assert!(!root.has_terminal, "{orphan:?}");
            let mut above = root;
            while let Some(parent) = by_pid.get(&above.ppid) {
                prop_assert!(!parent.has_terminal, "{orphan:?} below {parent:?}");
                prop_assert!(!matches!(parent.name.as_str(), "tmux" | "sshd" | "code"), "{orphan:?} below {parent:?}");
                above = parent;
            }
            for (_, member) in &orphan.members {
                prop_assert!(seen.insert(member.id.pid), "{} is in two trees", member.id.pid);
                prop_assert!(!matches!(member.name.as_str(), "tmux" | "sshd" | "code"), "{member:?}");
            }
            prop_assert!(!report.spared.contains_key(&orphan.root.pid));
            prop_assert!(matches!(orphan.adopter.0, 1 | 900) || !by_pid.contains_key(&root.sid));
        }
    }
}
