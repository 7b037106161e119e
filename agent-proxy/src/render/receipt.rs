//! Receipts: what a kill ended, how, and on what proof.

use ipc_protocol::{Layer, Outcome, Proof, ReapedBy, ReceiptEntry};
use proxy_manager::Receipt;

use super::{count, duration, table};
use crate::term::{Style, clip, printable};

/// The whole receipt: each process, then how many, how long, and the proof. Clipped to `width` columns.
pub(crate) fn render(receipt: &Receipt, style: Style, width: Option<usize>) -> String {
    render_named(receipt, style, width, |_| None)
}

/// As [`render`], with what the caller knows of a pid.
pub(crate) fn render_named(
    receipt: &Receipt,
    style: Style,
    width: Option<usize>,
    name: impl Fn(u32) -> Option<&'static str> + Copy,
) -> String {
    let mut text = String::new();
    if !receipt.processes.is_empty() {
        text.push_str(&entries(&receipt.processes, style, width, name));
    }
    if !receipt.unattributed.is_empty() {
        text.push_str(&style.yellow("of this session or of another whose proxy died at the same moment:\n"));
        text.push_str(&entries(&receipt.unattributed, style, width, name));
    }
    text.push_str(&verdict(receipt, style));
    text
}

/// The two lines that matter.
pub(crate) fn verdict(receipt: &Receipt, style: Style) -> String {
    let summary = format!(
        "{}, {} in {} ({}, {})",
        survivors(receipt, style),
        ended(receipt),
        duration(receipt.duration()),
        count(usize::try_from(receipt.rounds).unwrap_or(usize::MAX), "round", "rounds"),
        receipt.layers.iter().map(|layer| layer_name(*layer)).collect::<Vec<_>>().join(" + "),
    );
    format!("{summary}\n{} {}\n", style.dim("proof:"), proof(receipt.proof, style))
}

/// One line a receipt, for the end of a daemon.
pub(crate) fn summaries(receipts: &[Receipt]) -> String {
    let style = Style::stdout();
    receipts.iter().map(|receipt| format!("{}: {}\n", receipt.session_id, summary(receipt, style))).collect()
}

/// What came of it, in one line.
pub(crate) fn summary(receipt: &Receipt, style: Style) -> String {
    let proven = if receipt.proof == Proof::None { ", NOT proven" } else { "" };
    format!("{}, {} in {}{proven}", survivors(receipt, style), ended(receipt), duration(receipt.duration()))
}

fn ended(receipt: &Receipt) -> String {
    let ended = receipt.processes.iter().filter(|entry| entry.outcome != Outcome::Survived).count();
    format!("{} ended", count(ended, "process", "processes"))
}

fn survivors(receipt: &Receipt, style: Style) -> String {
    let text = count(receipt.survivors.len(), "survivor", "survivors");
    if receipt.is_empty() { style.green(text) } else { style.red(text) }
}

fn layer_name(layer: Layer) -> &'static str {
    match layer {
        Layer::Baseline => "baseline layer",
        Layer::Cgroup => "cgroup",
        Layer::Strict => "namespaces",
    }
}

fn proof(proof: Proof, style: Style) -> String {
    match proof {
        Proof::NoChildren => {
            "the kernel says that the session's subreaper has no child left\n       (waitpid(-1, __WALL) is ECHILD)"
                .into()
        }
        Proof::QuietRounds(rounds) => {
            format!("{rounds} rounds of the fork server with no process of the session left")
        }
        Proof::ProcessGone => "its pidfd says that it is gone".into(),
        Proof::None => style.red("NONE: something survived, or the kill ran out of time"),
    }
}

fn entries(
    entries: &[ReceiptEntry],
    style: Style,
    width: Option<usize>,
    name: impl Fn(u32) -> Option<&'static str>,
) -> String {
    // PID, ENDED BY and REAPED BY with what is between them.
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

/// What ended a process, in two words.
fn outcome(outcome: Outcome) -> String {
    match outcome {
        Outcome::Ended(exit) => exit.to_string(),
        Outcome::Gone => "itself".into(),
        Outcome::Survived => "STILL ALIVE".into(),
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
    use ipc_protocol::KillCause;
    use proxy_manager::{ExitStatus, ProcessId};

    use super::*;

    fn entry(pid: u32, outcome: Outcome) -> ReceiptEntry {
        ReceiptEntry {
            id: ProcessId { pid, start_time: 7 },
            ppid: 1,
            pgid: 1,
            sid: 1,
            command: Some("sleep 300".into()),
            outcome,
            reaped_by: (outcome != Outcome::Survived).then_some(ReapedBy::Proxy),
        }
    }

    fn receipt(processes: Vec<ReceiptEntry>, proof: Proof) -> Receipt {
        let id = "s-1".parse().expect("a valid id");
        Receipt { processes, proof, rounds: 2, duration_us: 12_300, ..Receipt::begin(id, KillCause::KillSession) }
    }

    #[test]
    fn a_good_one() {
        let entries = vec![
            entry(10, Outcome::Ended(ExitStatus::Signal(15))),
            entry(11, Outcome::Ended(ExitStatus::Signal(9))),
            entry(12, Outcome::Gone),
        ];
        let text = render(&receipt(entries, Proof::NoChildren), Style::PLAIN, Some(80));
        let expected = "\
PID  ENDED BY  REAPED BY  COMMAND
 10  SIGTERM   proxy      sleep 300
 11  SIGKILL   proxy      sleep 300
 12  itself    proxy      sleep 300
0 survivors, 3 processes ended in 12.3 ms (2 rounds, baseline layer)
proof: the kernel says that the session's subreaper has no child left
       (waitpid(-1, __WALL) is ECHILD)
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_bad_one_cannot_be_overlooked() {
        let mut receipt = receipt(vec![entry(10, Outcome::Survived)], Proof::None);
        receipt.survivors = vec![ProcessId { pid: 10, start_time: 7 }];
        let text = render(&receipt, Style::PLAIN, None);
        for part in ["STILL ALIVE", "1 survivor,", "0 processes ended", "NONE"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(summaries(&[receipt]).contains("NOT proven"));
    }
}
