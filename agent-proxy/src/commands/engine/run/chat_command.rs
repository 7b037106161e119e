//! Commands that are typed in a chat, beside prompts.

/// Command of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatCommand {
    /// List the commands.
    Help,
    /// End the session.
    Quit,
    /// Change the model, or show it.
    Model(Option<String>),
    /// Change the mode, or show it.
    Mode(Option<String>),
    /// Change the thinking level, or show it.
    Thinking(Option<String>),
    /// Compact the conversation, with instructions for the agent that does it.
    Compact(Option<String>),
    /// Show the session's processes.
    Processes,
    /// End what the agent has started, or one process with all below it.
    Kill(Option<u32>),
}

/// Typed text: a command, or a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatEntry {
    /// Text for the agent.
    Prompt(String),
    /// Command for this program.
    Command(ChatCommand),
    /// A command that does not exist or lacks something, with the reason.
    Refused(String),
}

/// Commands with their argument, and their meaning.
pub(super) const COMMANDS: [(&str, &str, &str); 8] = [
    ("/help", "", "list the commands"),
    ("/model", "NAME", "use this model from now on; without NAME show it"),
    ("/mode", "NAME", "work in this mode: build, plan, or one of the agent's own"),
    ("/thinking", "LEVEL", "think that hard: off, low, medium, high"),
    ("/compact", "TEXT", "compact the conversation; TEXT says what to retain"),
    ("/ps", "", "show the session's processes"),
    ("/kill", "PID", "end a process and all below it; without PID all but the agent"),
    ("/quit", "", "end the session; so does Ctrl-D"),
];

impl ChatEntry {
    /// Parses what was typed. A path in front is no command, and `//` stands for a `/` that is none.
    pub(super) fn parse(text: &str) -> Self {
        let Some(line) = text.strip_prefix('/') else { return Self::Prompt(text.to_owned()) };
        if line.starts_with('/') {
            return Self::Prompt(line.to_owned());
        }
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if name.contains('/') {
            return Self::Prompt(text.to_owned());
        }
        let rest = rest.trim();
        let value = (!rest.is_empty()).then(|| rest.to_owned());
        let command = match (name, value) {
            ("help", None) => ChatCommand::Help,
            ("quit" | "exit", None) => ChatCommand::Quit,
            ("model", name) => ChatCommand::Model(name),
            ("mode", name) => ChatCommand::Mode(name),
            ("thinking", level) => ChatCommand::Thinking(level),
            ("compact", instructions) => ChatCommand::Compact(instructions),
            ("ps", None) => ChatCommand::Processes,
            ("kill", None) => ChatCommand::Kill(None),
            ("kill", Some(pid)) => match pid.parse() {
                Ok(pid) => ChatCommand::Kill(Some(pid)),
                Err(_) => return Self::Refused(format!("/kill {pid}: that is no pid; /ps shows them")),
            },
            ("help" | "quit" | "exit" | "ps", Some(value)) => {
                return Self::Refused(format!("/{name} takes nothing after it; //{name} {value} sends it as a prompt"));
            }
            _ => {
                let names = COMMANDS.map(|(name, ..)| name).join(" ");
                return Self::Refused(format!(
                    "no command /{name}; //{name} sends it as a prompt. There are\n  {names}"
                ));
            }
        };
        Self::Command(command)
    }
}

/// Formats the list of commands.
pub(super) fn help() -> String {
    let lines = COMMANDS.map(|(name, value, meaning)| format!("  {:<16}{meaning}\n", format!("{name} {value}")));
    format!("{}  {:<16}sends /TEXT to the agent\n", lines.concat(), "//TEXT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_prompts() {
        let prompt = |text: &str| ChatEntry::Prompt(text.to_owned());
        for (typed, expected) in [
            ("hello", prompt("hello")),
            ("//init now", prompt("/init now")),
            ("/home/me/a.rs is wrong", prompt("/home/me/a.rs is wrong")),
            ("say /quit", prompt("say /quit")),
            ("/quit", ChatEntry::Command(ChatCommand::Quit)),
            ("/model  opus ", ChatEntry::Command(ChatCommand::Model(Some("opus".into())))),
            ("/model", ChatEntry::Command(ChatCommand::Model(None))),
            ("/compact keep the plan", ChatEntry::Command(ChatCommand::Compact(Some("keep the plan".into())))),
            ("/kill 17", ChatEntry::Command(ChatCommand::Kill(Some(17)))),
        ] {
            assert_eq!(ChatEntry::parse(typed), expected, "{typed}");
        }
        for (typed, reason) in [
            ("/init", "//init sends it"),
            ("/init", "There are\n  /help /model"),
            ("/", "no command /"),
            ("/kill me", "no pid"),
            ("/ps all", "//ps all sends it"),
        ] {
            let ChatEntry::Refused(why) = ChatEntry::parse(typed) else { panic!("{typed}") };
            assert!(why.contains(reason), "{typed}: {why}");
        }
    }

    #[test]
    fn the_help_fits_a_terminal() {
        for line in help().lines() {
            assert!(line.chars().count() < 80, "{line}");
        }
    }
}
