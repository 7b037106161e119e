//! The language of the prompt: one command a line.

use std::time::Duration;

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
    Flood { count: u64, size: usize },
    Tool(String),
    Plan,
    Usage,
    Tokens { input: u64, output: u64 },
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
        "flood" => {
            let (count, size) = rest.split_once(' ')?;
            let size = size.trim().parse().ok().filter(|size| *size <= MAX_FLOOD_SIZE)?;
            Some(Step::Flood { count: count.parse().ok()?, size })
        }
        "tool" => text().map(Step::Tool),
        "plan" => alone(Step::Plan),
        "usage" => alone(Step::Usage),
        "tokens" => {
            let (input, output) = rest.split_once(' ')?;
            Some(Step::Tokens { input: input.parse().ok()?, output: output.trim().parse().ok()? })
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
                   thinking\nhistory\nblocks\n";
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
            ]
        );
    }

    #[test]
    fn what_is_no_command_is_said() {
        for line in
            ["hello there", "sleep well", "exit", "flood 1", "flood x 2", "flood 1 99999999", "crash now", "say"]
        {
            assert_eq!(parse(&format!("\n  {line}\n\n")), [Step::Say(line.into())]);
        }
    }
}
