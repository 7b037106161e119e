//! The command line.

use agent_proxy_tests::real_agents::{AGENTS, Agent, SCENARIOS, scenarios::Scenario};

/// What is to be run, and how it is told.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) agents: Vec<&'static Agent>,
    pub(crate) scenarios: Vec<&'static Scenario>,
    pub(crate) form: Form,
    pub(crate) at_once: Option<usize>,
    /// So many starts are measured instead.
    pub(crate) starts: Option<usize>,
}

/// The form of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    Markdown,
    Json,
}

/// Starts of each kind that are measured, unless `--pairs` says otherwise.
const STARTS: usize = 30;

impl Args {
    /// Reads them. What is wrong with them comes back as text.
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed =
            Self { agents: Vec::new(), scenarios: Vec::new(), form: Form::Plain, at_once: None, starts: None };
        let mut args = args;
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => parsed.form = Form::Json,
                "--page" => parsed.form = Form::Markdown,
                "--scenario" => {
                    let name = args.next().ok_or_else(usage)?;
                    let found = SCENARIOS.iter().find(|scenario| scenario.name == name.replace('-', " "));
                    parsed.scenarios.push(found.ok_or_else(|| format!("no scenario {name:?}\n{}", usage()))?);
                }
                "--at-once" => parsed.at_once = Some(number(args.next())?),
                "--start" => parsed.starts = Some(parsed.starts.unwrap_or(STARTS)),
                "--pairs" => parsed.starts = Some(number(args.next())?),
                // cargo's own, for tests.
                "--nocapture" => {}
                name => {
                    parsed.agents.push(Agent::named(name).ok_or_else(|| format!("no agent {name:?}\n{}", usage()))?)
                }
            }
        }
        if parsed.agents.is_empty() {
            parsed.agents = AGENTS.iter().collect();
        }
        if parsed.scenarios.is_empty() {
            parsed.scenarios = SCENARIOS.iter().collect();
        }
        Ok(parsed)
    }
}

fn number(word: Option<String>) -> Result<usize, String> {
    word.and_then(|word| word.parse().ok()).filter(|number| *number > 0).ok_or_else(usage)
}

fn usage() -> String {
    let agents: Vec<&str> = AGENTS.iter().map(|agent| agent.id).collect();
    let scenarios: Vec<String> = SCENARIOS.iter().map(|one| format!("  {:18}{}", one.name, one.shows)).collect();
    format!(
        "usage: tests/real-agents/run [AGENT…] [--scenario NAME…] [--json | --page] [--at-once N]\n       \
         tests/real-agents/run --start [AGENT…] [--pairs N]\n          \
         (on ext4 not within five minutes of the last: for so long removed files hold up new ones)\n\
         agents: {}\nscenarios:\n{}",
        agents.join(", "),
        scenarios.join("\n")
    )
}
