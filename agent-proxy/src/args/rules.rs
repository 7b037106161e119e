//! Arguments for rules on permissions.

use std::str::FromStr;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, error::ErrorKind};
use ipc_protocol::{PermissionRule, RuleDecision};

/// Values of `--allow`, `--deny` and `--ask`, in the order in which they were given: the first rule that matches
/// decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleArgs(pub(crate) Vec<PermissionRule>);

/// Flags: decision, name, help.
const FLAGS: [(RuleDecision, &str, &str); 3] = [
    (RuleDecision::Allow, "allow", "Allow what matches, as in bash or \"tool=bash,command='git *'\"; repeatable"),
    (RuleDecision::Deny, "deny", "Reject what matches; repeatable"),
    (RuleDecision::Ask, "ask", "Ask about what matches; repeatable"),
];

const LONG: &str = "A rule is tool=GLOB, command=GLOB and path=GLOB, with commas between them; all that are given have to match. A word \
    alone is a tool: its machine name, or its kind (execute, edit, read, …). A value with a comma in it stands in quotes. `*` matches \
    anything; in a path it stays within a directory, and `**` does not. The first rule that matches decides, in the order of the \
    command line, --allow, --deny and --ask together; then those of the profile; where none does, --permission.";

impl Args for RuleArgs {
    fn augment_args(mut command: Command) -> Command {
        for (_, name, help) in FLAGS {
            let arg = Arg::new(name).long(name).value_name("RULE").action(ArgAction::Append).help(help);
            let arg = arg.value_parser(|text: &str| text.parse::<RulePattern>());
            command = command.arg(arg.long_help(format!("{help}\n\n{LONG}")));
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut rules = Vec::new();
        for (decision, name, _) in FLAGS {
            let patterns = matches.try_get_many::<RulePattern>(name);
            let patterns = patterns.map_err(|error| clap::Error::raw(ErrorKind::InvalidValue, error))?;
            let places = matches.indices_of(name).into_iter().flatten();
            rules.extend(places.zip(patterns.into_iter().flatten()).map(|(at, pattern)| (at, pattern.rule(decision))));
        }
        rules.sort_by_key(|(at, _)| *at);
        Ok(Self(rules.into_iter().map(|(_, rule)| rule).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Patterns of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RulePattern {
    tool: Option<String>,
    command: Option<String>,
    path: Option<String>,
}

impl RulePattern {
    fn rule(&self, decision: RuleDecision) -> PermissionRule {
        let Self { tool, command, path } = self.clone();
        PermissionRule { tool, command, path, decision }
    }
}

impl FromStr for RulePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const KEYS: &str = "write tool=GLOB, command=GLOB or path=GLOB, with commas between them";
        let mut pattern = Self::default();
        let mut rest = text;
        loop {
            let end = rest.find(['=', ',']).unwrap_or(rest.len());
            let (key, after) = rest.split_at(end);
            let (key, value, after) = match after.strip_prefix('=') {
                Some(after) => {
                    let (value, after) = value(after)?;
                    (key.trim(), value, after)
                }
                None => ("tool", key, after),
            };
            let field = match key {
                "tool" => &mut pattern.tool,
                "command" => &mut pattern.command,
                "path" => &mut pattern.path,
                _ => return Err(format!("a rule has no {key:?}: {KEYS}")),
            };
            let value = value.trim();
            if value.is_empty() {
                return Err(format!("{key} is empty: {KEYS}"));
            }
            if field.replace(value.to_owned()).is_some() {
                return Err(format!("{key} is given twice: write two rules"));
            }
            match after.strip_prefix(',') {
                Some(after) => rest = after,
                None => return Ok(pattern),
            }
        }
    }
}

/// Splits off a value, perhaps in quotes, from the text after it.
fn value(text: &str) -> Result<(&str, &str), String> {
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        return Ok(text.split_at(text.find(',').unwrap_or(text.len())));
    };
    let inner = &text[1..];
    let end = inner.find(quote).ok_or_else(|| format!("the quote in {text:?} is not closed"))?;
    let after = &inner[end + 1..];
    if !after.is_empty() && !after.starts_with(',') {
        return Err(format!("{after:?} stands after a quote: put a comma there"));
    }
    Ok((&inner[..end], after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(tool: Option<&str>, command: Option<&str>, path: Option<&str>) -> RulePattern {
        let text = |text: Option<&str>| text.map(str::to_owned);
        RulePattern { tool: text(tool), command: text(command), path: text(path) }
    }

    #[test]
    fn rules_as_they_are_written() {
        for (text, expected) in [
            ("bash", pattern(Some("bash"), None, None)),
            ("tool=bash,command='git *'", pattern(Some("bash"), Some("git *"), None)),
            ("command=git push *", pattern(None, Some("git push *"), None)),
            ("command=\"echo a, b='c'\",path=/src/**", pattern(None, Some("echo a, b='c'"), Some("/src/**"))),
            ("edit, path = /tmp/*", pattern(Some("edit"), None, Some("/tmp/*"))),
            ("command=make A=1", pattern(None, Some("make A=1"), None)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for (text, part) in [
            ("", "is empty"),
            ("tool=", "is empty"),
            ("cmd=x", "no \"cmd\""),
            ("bash,edit", "twice"),
            ("command='git", "not closed"),
            ("command='git'x", "put a comma"),
            ("bash,", "is empty"),
        ] {
            let error = text.parse::<RulePattern>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_rule_or_an_error(text in "[a-z=,'\" *]{0,40}|\\PC{0,40}") {
            let _ = text.parse::<RulePattern>();
        }

        #[test]
        fn what_stands_in_quotes_is_taken_whole(command in "[^'\\s][^']{0,20}[^'\\s]", tool in "[a-z]{1,9}") {
            let parsed = format!("{tool},command='{command}'").parse();
            proptest::prop_assert_eq!(parsed, Ok(pattern(Some(&tool), Some(&command), None)));
        }
    }

    #[test]
    fn the_order_of_the_command_line_is_kept() {
        let command = RuleArgs::augment_args(Command::new("x"));
        let line = ["x", "--deny", "command=git push*", "--allow", "command=git *", "--ask", "*", "--deny", "edit"];
        let matches = command.try_get_matches_from(line).expect("parses");
        let rules = RuleArgs::from_arg_matches(&matches).expect("they are rules").0;
        let decisions: Vec<RuleDecision> = rules.iter().map(|rule| rule.decision).collect();
        assert_eq!(decisions, [RuleDecision::Deny, RuleDecision::Allow, RuleDecision::Ask, RuleDecision::Deny]);
        assert_eq!(rules[3].tool.as_deref(), Some("edit"));
    }
}
