//! Processes that a kill of the agent, or of its process group, would not have reached.

use proxy_manager::ProcessInfo;
use proxy_server::ProblemDetails;
use serde::Serialize;

use super::demo_processes::DemoProcesses;
use crate::{
    render::table,
    term::{TermStyle, clip, printable},
};

/// Text for a process that is not reached.
const LIVES: &str = "lives on";

/// Explanation of the columns.
const EXPLANATION: [&str; 2] = [
    "AGENT: SIGKILL to its pid. GROUP: to its process group, which setsid leaves.",
    "What lives on goes to init, and nobody can tell any more whose it was.",
];

/// Longest description of a process.
const WIDTH: usize = 30;

/// Processes that other kills would have left, computed from the live tree without killing anything.
///
/// A signal to the agent's pid reaches that process only. A signal to its process group reaches the processes still
/// in it. Neither is passed on: the remaining processes are re-parented to init, and nobody knows any more who
/// started them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WouldBeSurvivors {
    /// All processes but the agent.
    #[serde(skip)]
    others: Vec<(u32, String)>,
    /// Pids left by a SIGKILL of the agent.
    agent_killed: Vec<u32>,
    /// Pids left by a SIGKILL of the agent's process group.
    group_killed: Vec<u32>,
}

impl WouldBeSurvivors {
    /// Counts the processes left by each kill.
    ///
    /// # Errors
    /// When the agent is not among the processes.
    pub(super) fn count(processes: &[ProcessInfo]) -> Result<Self, ProblemDetails> {
        let agent = processes.iter().find(|process| process.tracked);
        let agent =
            agent.ok_or_else(|| ProblemDetails::failed("the agent is not in the listing of its own session"))?;
        let others: Vec<&ProcessInfo> = processes.iter().filter(|process| process.id != agent.id).collect();
        Ok(Self {
            agent_killed: others.iter().map(|process| process.id.pid).collect(),
            group_killed: others.iter().filter(|p| p.pgid != agent.pgid).map(|p| p.id.pid).collect(),
            others: others.iter().map(|p| (p.id.pid, p.command_line())).collect(),
        })
    }

    /// Formats one line for each process, then the totals.
    pub(super) fn render(&self, kinds: &DemoProcesses, style: TermStyle) -> String {
        let fate = |left: &[u32], pid: u32| if left.contains(&pid) { LIVES } else { "dies" }.to_owned();
        let mut rows: Vec<Vec<String>> = self
            .others
            .iter()
            .map(|(pid, command)| {
                let what = kinds.of(*pid).map_or_else(|| printable(command, false), str::to_owned);
                vec![
                    pid.to_string(),
                    clip(&what, WIDTH),
                    fate(&self.agent_killed, *pid),
                    fate(&self.group_killed, *pid),
                    "dies".to_owned(),
                ]
            })
            .collect();
        let all = self.others.len();
        let of = |left: usize| format!("{left} of {all} left");
        rows.push(vec![String::new(), String::new(), of(self.agent_killed.len()), of(self.group_killed.len()), of(0)]);
        let heading = ["PID", "WHAT", "kill AGENT", "kill GROUP", "kill SESSION"];
        // Colours come last: they must not count in the width of the columns.
        let mut text = table(style, &heading, &[0], rows).replace(LIVES, &style.red(LIVES));
        for line in EXPLANATION {
            text.push_str(&style.dim(line));
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::tree::tests::family;

    #[test]
    fn who_left_the_group_lives_on() {
        let spared = WouldBeSurvivors::count(&family()).expect("there is an agent");
        assert_eq!(spared.agent_killed, [14, 12, 11, 13]);
        assert_eq!(spared.group_killed, [14, 13]);
        let kinds = DemoProcesses::from_answer("spawn 11\nsetsid 13\ndaemon 14\nignore-term 15\n").expect("all there");
        let text = spared.render(&kinds, TermStyle::PLAIN);
        assert!(text.contains(" 14  a double-fork daemon  lives on"), "{text}");
        assert!(text.contains("4 of 4 left  2 of 4 left  0 of 4 left"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 76), "{text}");
    }

    #[test]
    fn without_an_agent_nothing_is_claimed() {
        assert!(WouldBeSurvivors::count(&[]).is_err());
    }
}
