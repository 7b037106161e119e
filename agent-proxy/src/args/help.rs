//! Help: the commands in groups, options in two depths, and topics.
//!
//! `--help` prints what most people need, in the width of the terminal; `--help-all` prints every option with its
//! whole text; a topic (`agent-proxy help permissions`) prints the options of its subject with an introduction.

use clap::{Arg, ArgAction, Args, Command, builder::StyledStr};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};

use super::AgentArgs;
use api_types::exit;

use crate::{engine, term};

/// Groups of commands, in the order of `--help`. Names without a command are skipped.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Agents in this terminal", &["run", "ask", "demo"]),
    (
        "Daemon and sessions",
        &[
            "serve",
            "stop",
            "restart",
            "status",
            "fleet",
            "start",
            "attach",
            "sessions",
            "wait",
            "suspend",
            "resume",
            "rename",
            "tag",
            "archive",
            "delete",
            "prune",
            "workspaces",
            "diff",
            "apply",
            "drop",
            "acp",
            "mcp",
        ],
    ),
    ("Talking to an agent", &["prompt", "steer", "queue", "abort", "permit", "set", "compact"]),
    ("Processes", &["top", "ps", "signal", "shell", "kill", "leaktest", "orphans"]),
    ("Events", &["logs", "events", "transcript", "export", "import", "append", "log", "hooks", "webhooks"]),
    ("The agent's own side", &["state", "messages", "conversations", "native", "attach-command", "take-back"]),
    ("Setup", &["config", "agents", "profiles", "models", "tokens", "login-link", "doctor", "completions", "help"]),
];

/// Options of a session's start that `--help` shows; the others are in `--help-all` and in the topics.
const COMMON: &[&str] = &[
    "agent",
    "prompt",
    "question",
    "handler",
    "images",
    "files",
    "id",
    "replace",
    "profile",
    "cwd",
    "env",
    "model",
    "model_config",
    "mode",
    "mcp",
    "home",
    "permission",
    "allow",
    "deny",
    "timeout",
    "limits",
    "resume",
    "most_recent",
    "key",
    "argv",
    "tty",
];

/// Commands that start a session, and have too many options for one page.
const STARTERS: [&str; 3] = ["run", "start", "ask"];

/// Width of the longest name of a command or an option, and the space around it.
const NAMES: u16 = 20;
/// Width of an exit code, and the space around it.
const CODES: u16 = 7;

/// Widest help, in columns: longer lines are hard to read.
const WIDEST: usize = 100;
/// Narrowest help, in columns.
const NARROWEST: usize = 40;

/// Subject that no single command's help explains.
#[derive(Debug)]
struct HelpTopic {
    name: &'static str,
    about: &'static str,
    text: &'static str,
    /// Headings of options of `run`, `start` and `ask` to print.
    start: &'static [&'static str],
    /// Headings of options of `serve` to print.
    serve: &'static [&'static str],
}

const TOPICS: [HelpTopic; 7] = [
    HelpTopic {
        name: "permissions",
        about: "Decide what an agent's tools may do",
        text: "An agent asks before it uses a tool. The first rule that matches decides; where none does, the mode \
               (--permission). In `run` a request is put to you in the terminal; a session of the daemon waits for \
               `permit`, and --permission-timeout bounds the wait.\n\n\
               Examples:\n  \
               agent-proxy run --allow read --deny 'command=git push*' 'tidy up'\n  \
               agent-proxy start --id s-1 --agent codex --permission-timeout 60s\n  \
               agent-proxy permit s-1 permission-1 allow\n\n\
               Rules go by what the agent says of itself. They are no containment: see `help limits`.",
        start: &["Permissions"],
        serve: &[],
    },
    HelpTopic {
        name: "limits",
        about: "Bound time, memory, processes, tokens and cost",
        text: "Containment keeps a session's processes together, so that a kill reaches each of them. Limits, clocks \
               and the budget end or abort what takes too much, and an event says which bound was passed.\n\n\
               Examples:\n  \
               agent-proxy run --limit memory=2GiB --limit pids=200 'run the tests'\n  \
               agent-proxy run --timeout turn=10m,action=abort 'refactor'\n  \
               agent-proxy start --agent codex --max-cost 2.50 --on-budget refuse",
        start: &["Containment and limits", "Budget"],
        serve: &["Supervision"],
    },
    HelpTopic {
        name: "lifecycle",
        about: "Suspend, resume, restart and name sessions",
        text: "A session is starting, idle or busy; `suspend` ends its processes and keeps its conversation, and \
               `resume` or the next prompt goes on. An ended session keeps its events until `delete`. With --key, \
               `start` goes on with the conversation of that name instead of beginning another.\n\n\
               Examples:\n  \
               agent-proxy start --agent pi --key chat-7 --idle-suspend 5m\n  \
               agent-proxy suspend chat; agent-proxy prompt chat 'go on'\n  \
               agent-proxy start --agent pi --restart on-crash:3",
        start: &["Lifecycle"],
        serve: &["Durability"],
    },
    HelpTopic {
        name: "resuming",
        about: "Go on with a conversation that the agent has kept",
        text: "Agents keep their conversations in files of their own. `run`, `ask` and `start` can go on with one, or \
               with a copy.\n\n\
               Examples:\n  \
               agent-proxy run --continue 'and now the documentation'\n  \
               agent-proxy run --resume 4f1c9a7e 'where were we?'\n  \
               agent-proxy start --agent claude-code --resume session:s-1 --fork",
        start: &["Conversation"],
        serve: &[],
    },
    HelpTopic {
        name: "output",
        about: "Ids, tables, JSON and templates",
        text: "Ids: a unique beginning of a session's id stands for the id, in every command, unless you have chosen \
               the id. Tables show that much of it in a terminal; a pipe and --json have the whole id.\n\n\
               Listings (sessions, ps, queue, orphans, agents, profiles, models, workspaces, webhooks, tokens, fleet) \
               take -q for the ids alone, and --format:\n  \
               agent-proxy sessions -q\n  \
               agent-proxy sessions --format '{id}\\t{state}'\n  \
               agent-proxy agents --format json\n\n\
               A template names the table's columns, or fields of the JSON with dots between them, as in \
               {metrics.usage.inputTokens}; \\t and \\n are a tab and a new line. json is one array, jsonl one object \
               a line, table the default. --json is --format json, and errors as problem objects on standard error \
               (RFC 9457).\n\n\
               Events are one envelope a line with --json. Offsets are numbers for people (7), and 20 digits in JSON, \
               which sort as text; --from takes both.",
        start: &[],
        serve: &[],
    },
    HelpTopic {
        name: "environment",
        about: "Files, variables and what agents get of them",
        text: "Socket: --socket, else $AGENT_PROXY_SOCKET, else $XDG_RUNTIME_DIR/agent-proxy/daemon.sock, else \
               agent-proxy-$UID/daemon.sock in the temporary directory. It is 0600.\n\n\
               A daemon on the network: --url, else $AGENT_PROXY_URL (unless --socket is given). Its token is the first word of the \
               file --token-file, else $AGENT_PROXY_TOKEN_FILE; for a URL of this machine else the file token of the \
               configuration directory.\n\n\
               Configuration (agents, profiles, models): --config-dir, else $AGENT_PROXY_CONFIG_DIR, else \
               $XDG_CONFIG_HOME/agent-proxy, else ~/.config/agent-proxy.\n\n\
               Agents get PATH, HOME, USER, SHELL, LANG, LC_*, TZ and TMPDIR, and what --env adds.\n\n\
               CODE_IDLE_TIMEOUT (seconds, 300 by default) and CODE_MAX_INSTANCES (5) bound the instances that serve starts for \
               GET /instance/NAME.\n\n\
               COLUMNS sets the width of the help. NO_COLOR switches colours off. RUST_LOG filters the log.",
        start: &[],
        serve: &[],
    },
    HelpTopic { name: "exit-codes", about: "Exit codes of all commands", text: "", start: &[], serve: &[] },
];

/// Arguments of `help`.
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// A command, or a topic
    #[arg(value_name = "COMMAND|TOPIC")]
    pub(crate) words: Vec<String>,
}

/// Arranges the help of the whole command line for a terminal of `width` columns.
pub(super) fn arrange(root: Command, width: usize) -> Command {
    let root = with_help_flags(root);
    let template = root_template(&root, width);
    let root = root.mut_subcommands(|command| arrange_command(command, width));
    root.term_width(width).help_template(template)
}

fn arrange_command(command: Command, width: usize) -> Command {
    let starts = STARTERS.contains(&command.get_name());
    let is_common = |arg: &Arg| COMMON.contains(&arg.get_id().as_str());
    let command = if starts {
        command.mut_args(|arg| if is_common(&arg) { arg } else { arg.hide_short_help(true) })
    } else {
        command
    };
    let mut template = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\n{all-args}".to_owned();
    if starts {
        template.push_str(
            "\n\nMore options: --help-all, and agent-proxy help TOPIC:\n  permissions, limits, lifecycle, resuming",
        );
    }
    let command = command.mut_subcommands(|command| arrange_command(command, width));
    with_help_flags(command).term_width(width).help_template(template)
}

/// Replaces clap's own help flags by `--help` and `--help-all`.
fn with_help_flags(command: Command) -> Command {
    let flag = |id: &'static str, action, help| {
        Arg::new(id).long(id).action(action).help(help).help_heading(None::<&str>).display_order(900)
    };
    let short = flag("help", ArgAction::HelpShort, "Print help").short('h');
    let all = flag("help-all", ArgAction::HelpLong, "Print help with all options and details");
    command.disable_help_flag(true).arg(short).arg(all)
}

/// Builds the template of the first page: examples, groups of commands, flags, topics and exit codes.
fn root_template(root: &Command, width: usize) -> String {
    let mut text = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n".to_owned();
    for (heading, names) in GROUPS {
        let command = |name: &&str| root.find_subcommand(*name);
        let about = |command: &Command| (command.get_name().to_owned(), plain(command.get_about()));
        let rows: Vec<_> = names.iter().filter_map(command).map(about).collect();
        text.push_str(&format!("\n{}\n{}", header(root, heading), columns(&rows, NAMES, width)));
    }
    let mut flags: Vec<_> = root.get_arguments().map(|arg| (flag(arg), plain(arg.get_help()))).collect();
    flags.push(("-V, --version".to_owned(), "Print version".to_owned()));
    text.push_str(&format!("\n{}\n{}", header(root, "Options of all commands"), columns(&flags, NAMES, width)));
    let topics: Vec<_> = TOPICS.iter().map(|topic| (topic.name.to_owned(), topic.about.to_owned())).collect();
    text.push_str(&format!(
        "\n{}\n{}",
        header(root, "Topics (agent-proxy help TOPIC)"),
        columns(&topics, NAMES, width)
    ));
    text.push_str(&format!("\n{}\n{}", header(root, "Exit codes"), exit_codes(width).trim_end()));
    text
}

fn exit_codes(width: usize) -> String {
    let rows = exit::TABLE.map(|(exit, meaning)| (format!("{:>3}", exit.code()), meaning.to_owned()));
    columns(&rows, CODES, width)
}

fn header(command: &Command, text: &str) -> String {
    let style = command.get_styles().get_header();
    format!("{style}{text}:{style:#}")
}

/// Formats an option: `--socket PATH`.
fn flag(arg: &Arg) -> String {
    let short = arg.get_short().map_or_else(String::new, |short| format!("-{short}, "));
    let value = if arg.get_action().takes_values() { arg.get_value_names() } else { None };
    let value = value.into_iter().flatten().map(|name| format!(" {name}")).collect::<String>();
    format!("{short}--{}{value}", arg.get_long().unwrap_or_default())
}

fn plain(text: Option<&StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// Formats names and their descriptions in two columns, the second wrapped.
fn columns(rows: &[(String, String)], names: u16, width: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(u16::try_from(width).unwrap_or(u16::MAX));
    table.add_rows(rows.iter().map(|(name, about)| [name.as_str(), about.as_str()]));
    if let Some(first) = table.column_mut(0) {
        first.set_padding((2, 2)).set_constraint(ColumnConstraint::Absolute(Width::Fixed(names)));
    }
    if let Some(abouts) = table.column_mut(1) {
        abouts.set_padding((0, 0));
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Returns the width of the help: `COLUMNS`, else the terminal's, else 80 columns.
pub(super) fn width() -> usize {
    let given = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    given.or_else(term::columns).unwrap_or(80).clamp(NARROWEST, WIDEST)
}

/// Formats the help of a command or a topic; `None` for anything else.
pub(crate) fn page(words: &[String]) -> Option<StyledStr> {
    let mut root = super::command();
    root.build();
    if let [name] = words
        && let Some(topic) = TOPICS.iter().find(|topic| topic.name == name)
    {
        return Some(topic_page(topic, width()));
    }
    let mut command = &mut root;
    for word in words {
        command = command.find_subcommand_mut(word)?;
    }
    Some(command.render_help())
}

/// Names of the topics, for an error.
pub(crate) fn topics() -> String {
    TOPICS.map(|topic| topic.name).join(", ")
}

fn topic_page(topic: &HelpTopic, width: usize) -> StyledStr {
    let options = |command: Command, headings: &'static [&'static str]| {
        command.mut_args(move |arg| {
            let hidden = !arg.get_help_heading().is_some_and(|heading| headings.contains(&heading));
            arg.hide(hidden)
        })
    };
    let page = |command: Command, template: &'static str| {
        command.disable_help_flag(true).term_width(width).help_template(template).render_long_help()
    };
    let mut text = format!("{}\n", topic.about);
    if topic.name == "exit-codes" {
        return format!("{text}\n{}", exit_codes(width)).into();
    }
    let body = page(Command::new("agent-proxy").after_help(topic.text), "{after-help}");
    text.push_str(body.ansi().to_string().trim_end());
    for (users, headings, command) in [
        ("run, start and ask", topic.start, Some(AgentArgs::augment_args(Command::new("agent-proxy")))),
        ("serve", topic.serve, engine::serve_options()),
    ] {
        if let Some(command) = command.filter(|_| !headings.is_empty()) {
            let shown = page(options(command, headings), "{all-args}");
            text.push_str(&format!("\n\nOptions of {users}\n\n{}", shown.ansi().to_string().trim()));
        }
    }
    text.push('\n');
    text.into()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{super::Cli, *};

    fn lines(command: &[&str]) -> Vec<String> {
        let mut root = arrange(Cli::command(), 80);
        root.build();
        let mut found = &mut root;
        for name in command {
            found = found.find_subcommand_mut(name).expect("a command");
        }
        found.render_help().to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_command_is_in_one_group() {
        let root = Cli::command();
        for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&name)).count();
            assert_eq!(groups, 1, "{name}: add it to a group in args/help.rs");
        }
    }

    #[cfg(feature = "engine")]
    #[test]
    fn common_options_exist() {
        let root = Cli::command();
        let ids: Vec<_> = STARTERS
            .iter()
            .filter_map(|name| root.find_subcommand(name))
            .flat_map(Command::get_arguments)
            .map(|arg| arg.get_id().to_string())
            .collect();
        for id in COMMON {
            assert!(*id == "replace" || ids.iter().any(|known| known == id), "{id}");
        }
    }

    #[test]
    fn pages_fit_a_terminal() {
        for name in STARTERS.iter().filter(|name| Cli::command().find_subcommand(name).is_some()) {
            let lines = lines(&[name]);
            assert!(lines.len() < 80, "{name} has {} lines:\n{}", lines.len(), lines.join("\n"));
        }
        let mut commands: Vec<Vec<String>> = vec![vec![]];
        while let Some(path) = commands.pop() {
            let words: Vec<&str> = path.iter().map(String::as_str).collect();
            for line in lines(&words) {
                assert!(line.chars().count() <= 80, "{words:?}: {line}");
            }
            let root = Cli::command();
            let found = words.iter().try_fold(&root, |command, word| command.find_subcommand(word)).expect("a command");
            commands.extend(found.get_subcommands().map(|sub| [&path[..], &[sub.get_name().to_owned()]].concat()));
        }
    }

    #[test]
    fn examples_are_not_wrapped() {
        fn check(command: &Command) {
            for line in plain(command.get_after_help()).lines().filter(|line| line.starts_with("  ")) {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
        for topic in &TOPICS {
            for line in topic.text.lines().filter(|line| line.starts_with("  ")) {
                assert!(line.chars().count() <= 80, "{}: {line}", topic.name);
            }
        }
    }

    #[cfg(feature = "engine")]
    #[test]
    fn topics_have_their_options() {
        for topic in &TOPICS {
            let text = topic_page(topic, 80).to_string();
            assert!(text.starts_with(topic.about), "{text}");
            for heading in topic.start.iter().chain(topic.serve) {
                assert!(text.contains(&format!("\n{heading}:\n")), "{heading} in {text}");
            }
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
        let permissions = page(&["permissions".to_owned()]).expect("a topic").to_string();
        assert!(permissions.contains("--permission-timeout") && !permissions.contains("--max-tokens"), "{permissions}");
        assert!(page(&["nonsense".to_owned()]).is_none());
    }
}
