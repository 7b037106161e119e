//! Formatting of receipts: the processes that a kill ended, how they ended, and the proof.

use ipc_protocol::Receipt;
use ipc_protocol::{ContainmentLayer, KillCause, ProcessOutcome, Proof, ReapedBy, ReceiptEntry};

use super::{count, duration, table};
use crate::term::{TermStyle, clip, filled, printable};

/// Formats the complete receipt: each process, then their number, the time, and the proof. Clipped to `width`
/// columns.
pub(crate) fn render(receipt: &Receipt, style: TermStyle, width: Option<usize>) -> String {
    render_named(receipt, style, width, |_| None)
}

/// Formats like [`render`], with the caller's names for pids.
pub(crate) fn render_named(
    receipt: &Receipt,
    style: TermStyle,
    width: Option<usize>,
    name: impl Fn(u32) -> Option<&'static str> + Copy,
) -> String {
    let mut text = String::new();
    if !receipt.processes.is_empty() {
        text.push_str(&entries(&receipt.processes, style, width, name));
    }
    if receipt.omitted > 0 {
        text.push_str(&style.dim(format_args!("and {} more, too many to list\n", receipt.omitted)));
    }
    if !receipt.unattributed.is_empty() {
        text.push_str(&style.yellow("of this session or of another whose proxy died at the same moment:\n"));
        text.push_str(&entries(&receipt.unattributed, style, width, name));
    }
    text.push_str(&filled(&verdict(receipt, style), width));
    text
}

/// Formats the most important lines: the number of processes, the time, and the proof with all its parts.
pub(crate) fn verdict(receipt: &Receipt, style: TermStyle) -> String {
    let what = match spared(receipt.cause) {
        Some(_) if is_proven(receipt) && receipt.processes.is_empty() && receipt.omitted == 0 => {
            style.green("nothing had to be ended,")
        }
        _ => format!("{}, {}", survivors(receipt, style), ended(receipt)),
    };
    let summary = format!(
        "{what} in {} ({}, {})",
        duration(receipt.duration()),
        count(usize::try_from(receipt.rounds).unwrap_or(usize::MAX), "round", "rounds"),
        layers(&receipt.layers),
    );
    let proof = match (spared(receipt.cause), receipt.proof) {
        (Some(spared), Proof::QuietRounds(rounds)) => format!("{rounds} rounds that found nothing but {spared}"),
        (_, proof) => self::proof(proof, style),
    };
    let mut text = format!("{summary}\n{} {proof}\n", style.dim("proof:"));
    let more = [
        render_check(receipt.cgroup_empty, "its cgroup has no member left", "its cgroup still has MEMBERS", style),
        render_check(receipt.unmarked, "no process carries its marker", "a process still carries its MARKER", style),
        render_check(
            receipt.container.as_ref().map(|container| container.is_removed),
            "its container is removed",
            "its container is still THERE",
            style,
        ),
    ];
    for line in more.into_iter().flatten() {
        text.push_str(&format!("       {line}\n"));
    }
    text
}

/// Names what a kill leaves running, if it is not of everything.
fn spared(cause: KillCause) -> Option<&'static str> {
    match cause {
        KillCause::AbortTurn => Some("what ran before the turn, which goes on"),
        KillCause::KillAll => Some("the agent, which goes on"),
        _ => None,
    }
}

/// Describes the result of one check, if it was made.
fn render_check(found: Option<bool>, good: &str, bad: &str, style: TermStyle) -> Option<String> {
    found.map(|is_good| if is_good { good.to_owned() } else { style.red(bad) })
}

/// Names the layers of containment, the weakest first.
pub(crate) fn layers(layers: &[ContainmentLayer]) -> String {
    layers.iter().map(|layer| layer_name(*layer)).collect::<Vec<_>>().join(" + ")
}

/// Formats one line for each receipt, for the end of a daemon.
#[cfg(any(test, feature = "engine"))]
pub(crate) fn summaries(receipts: &[Receipt]) -> String {
    let style = TermStyle::stdout();
    receipts.iter().map(|receipt| format!("{}: {}\n", receipt.session_id, summary(receipt, style))).collect()
}

/// Formats the result in one line.
pub(crate) fn summary(receipt: &Receipt, style: TermStyle) -> String {
    let proven = if is_proven(receipt) { "" } else { ", NOT proven" };
    format!("{}, {} in {}{proven}", survivors(receipt, style), ended(receipt), duration(receipt.duration()))
}

/// Returns true if all checks made show that nothing is left.
fn is_proven(receipt: &Receipt) -> bool {
    receipt.proof != Proof::None
        && receipt.cgroup_empty != Some(false)
        && receipt.unmarked != Some(false)
        && receipt.container.as_ref().is_none_or(|container| container.is_removed)
}

fn ended(receipt: &Receipt) -> String {
    let listed = receipt.processes.iter().filter(|entry| entry.outcome != ProcessOutcome::Survived).count();
    let ended = listed.saturating_add(usize::try_from(receipt.omitted).unwrap_or(usize::MAX));
    format!("{} ended", count(ended, "process", "processes"))
}

fn survivors(receipt: &Receipt, style: TermStyle) -> String {
    let text = match receipt.doubt() {
        None => count(receipt.survivors.len(), "survivor", "survivors"),
        Some(doubt) => format!("survivors not provable: {doubt}"),
    };
    if receipt.is_empty() { style.green(text) } else { style.red(text) }
}

fn layer_name(layer: ContainmentLayer) -> &'static str {
    match layer {
        ContainmentLayer::Baseline => "baseline",
        ContainmentLayer::Cgroup => "cgroup",
        ContainmentLayer::Strict => "namespaces",
    }
}

fn proof(proof: Proof, style: TermStyle) -> String {
    match proof {
        Proof::NoChildren => {
            "the kernel says that the session's subreaper has no child left\n       (waitpid(-1, __WALL) is ECHILD)"
                .into()
        }
        Proof::QuietRounds(rounds) => {
            format!("{rounds} rounds of the fork server with no process of the session left")
        }
        Proof::ProcessGone => "the pidfds of all that was to end say that they are gone".into(),
        Proof::None => style.red("NONE: something survived or may have survived, or the kill ran out of time"),
    }
}

fn entries(
    entries: &[ReceiptEntry],
    style: TermStyle,
    width: Option<usize>,
    name: impl Fn(u32) -> Option<&'static str>,
) -> String {
    // PID, ENDED BY and REAPED BY with the space between them.
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(7 + 2 + 12 + 2 + 11 + 2).max(12));
    let rows = entries
        .iter()
        .map(|entry| {
            let command = printable(entry.command.as_deref().unwrap_or("[gone before it could be read]"), false);
            let name = name(entry.id.pid).map_or_else(String::new, |name| format!("  [{name}]"));
            vec![
                entry.id.pid.to_string(),
                outcome(entry.outcome),
                entry.reaped_by.map_or("-", reaper).to_owned(),
                // The name says more than the end of a long command line.
                format!("{}{}", clip(&command, room.saturating_sub(name.chars().count()).max(12)), style.dim(name)),
            ]
        })
        .collect();
    table(style, &["PID", "ENDED BY", "REAPED BY", "COMMAND"], &[0], rows)
}

/// Describes the end of a process in a receipt.
pub(crate) fn outcome_text(entry: &ReceiptEntry) -> String {
    outcome(entry.outcome)
}

/// Describes the end of a process in two words.
fn outcome(outcome: ProcessOutcome) -> String {
    match outcome {
        ProcessOutcome::Ended(exit) => exit.to_string(),
        ProcessOutcome::Gone => "gone".into(),
        ProcessOutcome::Survived => "STILL ALIVE".into(),
    }
}

fn reaper(reaper: ReapedBy) -> &'static str {
    match reaper {
        ReapedBy::Proxy => "proxy",
        ReapedBy::ForkServer => "fork server",
        ReapedBy::Parent => "its parent",
        ReapedBy::System => "the system",
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{ExitStatus, ProcessId};

    use super::*;

    fn entry(pid: u32, outcome: ProcessOutcome) -> ReceiptEntry {
        ReceiptEntry {
            id: ProcessId { pid, start_time: 7 },
            ppid: 1,
            pgid: 1,
            sid: 1,
            command: Some("sleep 300".into()),
            outcome,
            reaped_by: (outcome != ProcessOutcome::Survived).then_some(ReapedBy::Proxy),
        }
    }

    fn receipt(processes: Vec<ReceiptEntry>, proof: Proof) -> Receipt {
        let id = "s-1".parse().expect("a valid id");
        Receipt { processes, proof, rounds: 2, duration_us: 12_300, ..Receipt::begin(id, KillCause::KillSession) }
    }

    #[test]
    fn a_good_one() {
        let entries = vec![
            entry(10, ProcessOutcome::Ended(ExitStatus::Signal(15))),
            entry(11, ProcessOutcome::Ended(ExitStatus::Signal(9))),
            entry(12, ProcessOutcome::Gone),
        ];
        let text = render(&receipt(entries, Proof::NoChildren), TermStyle::PLAIN, Some(80));
        let expected = "\
PID  ENDED BY  REAPED BY  COMMAND
 10  SIGTERM   proxy      sleep 300
 11  SIGKILL   proxy      sleep 300
 12  gone      proxy      sleep 300
0 survivors, 3 processes ended in 12.3 ms (2 rounds, baseline)
proof: the kernel says that the session's subreaper has no child left
       (waitpid(-1, __WALL) is ECHILD)
";
        assert_eq!(text, expected);
    }

    #[test]
    fn all_that_the_proof_rests_on_is_said() {
        let entries = vec![entry(10, ProcessOutcome::Ended(ExitStatus::Signal(9)))];
        let receipt = Receipt {
            layers: vec![ContainmentLayer::Baseline, ContainmentLayer::Cgroup],
            omitted: 2000,
            cgroup_empty: Some(true),
            unmarked: Some(true),
            ..receipt(entries, Proof::NoChildren)
        };
        let text = render(&receipt, TermStyle::PLAIN, Some(80));
        let expected = "\
PID  ENDED BY  REAPED BY  COMMAND
 10  SIGKILL   proxy      sleep 300
and 2000 more, too many to list
0 survivors, 2001 processes ended in 12.3 ms (2 rounds, baseline + cgroup)
proof: the kernel says that the session's subreaper has no child left
       (waitpid(-1, __WALL) is ECHILD)
       its cgroup has no member left
       no process carries its marker
";
        assert_eq!(text, expected);
        let bad = Receipt { unmarked: Some(false), ..receipt };
        assert!(render(&bad, TermStyle::PLAIN, None).contains("still carries its MARKER"));
        assert!(summary(&bad, TermStyle::PLAIN).contains("NOT proven"));
    }

    /// The agent lives: "no process of the session left" would be false.
    #[test]
    fn an_abort_says_what_goes_on() {
        let id = "s-1".parse().expect("a valid id");
        let aborted = |processes| Receipt {
            processes,
            proof: Proof::QuietRounds(3),
            rounds: 3,
            duration_us: 4_500,
            ..Receipt::begin(id, KillCause::AbortTurn)
        };
        let nothing = render(&aborted(Vec::new()), TermStyle::PLAIN, None);
        let expected = "\
nothing had to be ended, in 4.5 ms (3 rounds, baseline)
proof: 3 rounds that found nothing but what ran before the turn, which goes on
";
        assert_eq!(nothing, expected);
    }

    #[test]
    fn what_an_abort_ended_is_listed() {
        let ended = Receipt {
            proof: Proof::QuietRounds(3),
            cause: KillCause::AbortTurn,
            ..receipt(vec![entry(10, ProcessOutcome::Ended(ExitStatus::Signal(15)))], Proof::NoChildren)
        };
        let text = render(&ended, TermStyle::PLAIN, None);
        assert!(text.contains("0 survivors, 1 process ended") && text.contains("which goes on"), "{text}");
    }

    #[test]
    fn a_bad_one_cannot_be_overlooked() {
        let mut receipt = receipt(vec![entry(10, ProcessOutcome::Survived)], Proof::None);
        receipt.survivors = vec![ProcessId { pid: 10, start_time: 7 }];
        let text = render(&receipt, TermStyle::PLAIN, None);
        for part in ["STILL ALIVE", "1 survivor,", "0 processes ended", "NONE"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(summaries(&[receipt]).contains("NOT proven"));
    }

    #[test]
    fn where_nothing_is_proven_nobody_is_said_to_have_been_ended() {
        let receipt = receipt(Vec::new(), Proof::None);
        for text in [render(&receipt, TermStyle::PLAIN, None), summary(&receipt, TermStyle::PLAIN), receipt.to_string()]
        {
            assert!(text.contains("not provable") && !text.contains("0 survivors"), "{text}");
        }
    }
}
