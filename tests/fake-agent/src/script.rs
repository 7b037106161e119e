//! The language of the prompt: one command a line.

use std::time::Duration;

use serde_json::Value;

/// What one line of a prompt asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Say(String),
    Think(String),
    Sleep(Duration),
    Run(String),
    Spawn(String),
    Setsid(String),
    Daemon(String),
    IgnoreTerm(String),
    IgnoreSigterm,
    Ask(String),
    /// A permission request about the tool call that this describes.
    AskCall(Value),
    Flood {
        count: u64,
        size: usize,
    },
    Tool(String),
    Plan,
    Usage,
    Tokens(Tokens),
    Look(Look),
    Cost(u64),
    Crash,
    Exit(i32),
    Hang,
    Wait,
    Stderr(String),
    Raw(String),
    Mcp,
    Model,
    System,
    Env,
    Cwd,
    Mode,
    Thinking,
    History,
    Blocks,
}

/// Tokens that a turn is said to have taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// All that was read, with what follows.
    pub(crate) input: u64,
    pub(crate) output: u64,
    /// Read from a cache, and put into one.
    pub(crate) cached: Option<(u64, u64)>,
}

/// Something for people to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Edit(String),
    Create(String),
    Delete(String),
    PlanOf { done: usize, all: usize },
    Commands(Vec<String>),
    Title(String),
    SwitchMode(String),
    SwitchModel(String),
    SubAgent(String),
    Live { count: u32, pause: Duration },
    Image,
    Markdown,
    Hostile,
    LongLine,
}

/// Most steps of a plan.
const MAX_PLAN: usize = 1000;
/// Longest text of one `flood` chunk, in bytes.
const MAX_FLOOD_SIZE: usize = 1024 * 1024;

/// The steps of a prompt. A line that is no command, or one whose arguments do not parse, is said as it stands.
pub(crate) fn parse(prompt: &str) -> Vec<Step> {
    prompt.lines().map(str::trim).filter(|line| !line.is_empty()).map(step).collect()
}

fn step(line: &str) -> Step {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    command(word, rest.trim()).unwrap_or_else(|| Step::Say(line.to_owned()))
}

fn command(word: &str, rest: &str) -> Option<Step> {
    let text = || (!rest.is_empty()).then(|| rest.to_owned());
    let alone = |step: Step| rest.is_empty().then_some(step);
    match word {
        "say" => text().map(Step::Say),
        "think" => text().map(Step::Think),
        "sleep" => duration(rest).map(Step::Sleep),
        "run" => text().map(Step::Run),
        "spawn" => text().map(Step::Spawn),
        "setsid" => text().map(Step::Setsid),
        "daemon" => text().map(Step::Daemon),
        "ignore-term" => text().map(Step::IgnoreTerm),
        "ignore-sigterm" => alone(Step::IgnoreSigterm),
        "ask" => text().map(Step::Ask),
        "ask-call" => serde_json::from_str(rest).ok().map(Step::AskCall),
        "flood" => {
            let (count, size) = rest.split_once(' ')?;
            let size = size.trim().parse().ok().filter(|size| *size <= MAX_FLOOD_SIZE)?;
            Some(Step::Flood { count: count.parse().ok()?, size })
        }
        "tool" => text().map(Step::Tool),
        "plan" if rest.is_empty() => Some(Step::Plan),
        "plan" => {
            let (done, all) = rest.split_once('/')?;
            let all = all.parse().ok().filter(|all| *all <= MAX_PLAN)?;
            Some(Step::Look(Look::PlanOf { done: done.parse().ok()?, all }))
        }
        "edit" => text().map(|path| Step::Look(Look::Edit(path))),
        "create" => text().map(|path| Step::Look(Look::Create(path))),
        "delete" => text().map(|path| Step::Look(Look::Delete(path))),
        "commands" => Some(Step::Look(Look::Commands(rest.split_whitespace().map(str::to_owned).collect()))),
        "title" => text().map(|title| Step::Look(Look::Title(title))),
        "switch-mode" => text().map(|mode| Step::Look(Look::SwitchMode(mode))),
        "switch-model" => text().map(|model| Step::Look(Look::SwitchModel(model))),
        "subagent" => text().map(|text| Step::Look(Look::SubAgent(text))),
        "live" => {
            let (count, pause) = rest.split_once(' ')?;
            Some(Step::Look(Look::Live { count: count.parse().ok()?, pause: duration(pause.trim())? }))
        }
        "image" => alone(Step::Look(Look::Image)),
        "markdown" => alone(Step::Look(Look::Markdown)),
        "hostile" => alone(Step::Look(Look::Hostile)),
        "long-line" => alone(Step::Look(Look::LongLine)),
        "usage" => alone(Step::Usage),
        "tokens" => {
            let numbers: Option<Vec<u64>> = rest.split_whitespace().map(|number| number.parse().ok()).collect();
            let (input, output, cached) = match numbers?[..] {
                [input, output] => (input, output, None),
                [input, output, read, written] => (input, output, Some((read, written))),
                _ => return None,
            };
            Some(Step::Tokens(Tokens { input, output, cached }))
        }
        "cost" => rest.parse().ok().map(Step::Cost),
        "crash" => alone(Step::Crash),
        "exit" => rest.parse().ok().map(Step::Exit),
        "hang" => alone(Step::Hang),
        "wait" => alone(Step::Wait),
        "stderr" => text().map(Step::Stderr),
        "raw" => text().map(Step::Raw),
        "mcp" => alone(Step::Mcp),
        "model" => alone(Step::Model),
        "system" => alone(Step::System),
        "env" => alone(Step::Env),
        "cwd" => alone(Step::Cwd),
        "mode" => alone(Step::Mode),
        "thinking" => alone(Step::Thinking),
        "history" => alone(Step::History),
        "blocks" => alone(Step::Blocks),
        _ => None,
    }
}

/// `300ms` or `2s`.
fn duration(text: &str) -> Option<Duration> {
    let (digits, millis) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix('s')?, 1000),
    };
    digits.parse::<u64>().ok()?.checked_mul(millis).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_parses() {
        let all = "say hello  there\nthink hm\nsleep 300ms\nsleep 2s\nrun ls -l | wc\nspawn sleep 9\nsetsid sleep 9\n\
                   daemon sleep 9\nignore-term sleep 9\nignore-sigterm\nask May I?\nflood 10 64\ntool Bash\nplan\nusage\n\
                   crash\nexit 3\nhang\nwait\nstderr oops\nraw {\"a\":1}\nmcp\nmodel\nsystem\nenv\ncwd\nmode\n\
                   thinking\nhistory\nblocks\nedit a.rs\nplan 2/5\ncommands\ncommands a b\nlive 3 5ms\nimage\ntokens 9 1 5 2\n\
                   ask-call {\"title\":\"ls\"}\n";
        let sleep = || "sleep 9".to_owned();
        assert_eq!(
            parse(all),
            [
                Step::Say("hello  there".into()),
                Step::Think("hm".into()),
                Step::Sleep(Duration::from_millis(300)),
                Step::Sleep(Duration::from_secs(2)),
                Step::Run("ls -l | wc".into()),
                Step::Spawn(sleep()),
                Step::Setsid(sleep()),
                Step::Daemon(sleep()),
                Step::IgnoreTerm(sleep()),
                Step::IgnoreSigterm,
                Step::Ask("May I?".into()),
                Step::Flood { count: 10, size: 64 },
                Step::Tool("Bash".into()),
                Step::Plan,
                Step::Usage,
                Step::Crash,
                Step::Exit(3),
                Step::Hang,
                Step::Wait,
                Step::Stderr("oops".into()),
                Step::Raw("{\"a\":1}".into()),
                Step::Mcp,
                Step::Model,
                Step::System,
                Step::Env,
                Step::Cwd,
                Step::Mode,
                Step::Thinking,
                Step::History,
                Step::Blocks,
                Step::Look(Look::Edit("a.rs".into())),
                Step::Look(Look::PlanOf { done: 2, all: 5 }),
                Step::Look(Look::Commands(vec![])),
                Step::Look(Look::Commands(vec!["a".into(), "b".into()])),
                Step::Look(Look::Live { count: 3, pause: Duration::from_millis(5) }),
                Step::Look(Look::Image),
                Step::Tokens(Tokens { input: 9, output: 1, cached: Some((5, 2)) }),
                Step::AskCall(serde_json::json!({ "title": "ls" })),
            ]
        );
    }

    #[test]
    fn what_is_no_command_is_said() {
        for line in [
            "hello there",
            "sleep well",
            "exit",
            "plan 1",
            "edit",
            "image now",
            "tokens 1",
            "flood 1",
            "flood x 2",
            "flood 1 99999999",
            "crash now",
            "say",
            "ask-call ls",
        ] {
            assert_eq!(parse(&format!("\n  {line}\n\n")), [Step::Say(line.into())]);
        }
    }
}
