//! The core does no I/O and reads no clock: its sources name nothing that could.

use std::{fs, path::Path};

/// All that the core may import. What is beside it in `session` and has states of its own is held to the same.
const ALLOWED: &[&str] = &[
    "std::collections::",
    "std::sync::Arc",
    "std::time::Duration",
    "std::time::SystemTime",
    "tokio::sync::oneshot",
    "tokio::time::Instant",
    "serde::de::IgnoredAny",
    "agents::ModelPrice",
    "agents::PriceTable",
    "ipc_protocol::",
    "crate::deadlines::",
    "crate::description::",
    "crate::error::",
    "crate::fork_server::ProxyGone",
    "crate::fork_server::ForkServerEvent",
    "crate::session::AcceptedPrompt",
    "crate::session::EventToAppend",
    "crate::session::BEGUN",
    "crate::session::DesiredState",
    "crate::session::ENDED",
    "crate::session::PromptMode",
    "crate::session::PromptQueue",
    "crate::session::ReplySender",
    "crate::session::SessionCommand",
    "crate::session::TurnEnd",
    "crate::session::TurnTicket",
    "crate::session::WarmClaim",
    "crate::session::SessionView",
    "crate::session::clocks::",
    "crate::session::core::",
    "crate::session::session_ending::",
    "crate::session::process_listings::",
    "crate::session::meter::",
    "crate::session::metrics::UsageCounters",
    "crate::session::pending_requests::",
    "crate::session::prompts::WaitingPrompt",
    "crate::session::pulse::",
    "crate::session::turn::TurnSender",
];
/// Paths that are written out where they are used.
const INLINE: &[&str] = &["std::mem::", "std::result::Result", "serde_json::from_str", "registry::file_size_exceeded"];
/// Whatever it is imported as.
const FORBIDDEN: &[&str] = &[
    "Instant::now",
    "super::super",
    "SystemTime::now",
    ".elapsed()",
    "impl Drop",
    "packet",
    "spawn(",
    "async ",
    "Journal",
    "Writer",
    "SessionHistory",
    "Arc<ManagedSession>",
];
const BESIDE: &[&str] =
    &["clocks.rs", "session_ending.rs", "process_listings.rs", "meter.rs", "pending_requests.rs", "pulse.rs"];

/// The code of a file: no comments, no unit tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a source file");
    let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default().trim()).collect::<Vec<_>>().join(" ")
}

/// The paths that a tree of imports names, each with `parent` before it.
fn flatten(parent: &str, tree: &str, paths: &mut Vec<String>) {
    let (mut depth, mut begin) = (0, 0);
    for (at, sign) in tree.char_indices().chain([(tree.len(), ',')]) {
        match sign {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let branch = tree[begin..at].trim();
                begin = at + 1;
                match branch.split_once('{') {
                    Some((path, rest)) => {
                        flatten(&format!("{parent}{path}"), rest.trim_end().trim_end_matches('}'), paths);
                    }
                    None if branch.is_empty() => {}
                    None => paths.push(format!("{parent}{branch}")),
                }
            }
            _ => {}
        }
    }
}

fn check(path: &Path, module: &str, parent: &str) {
    let code = code(path);
    let mut rest = String::new();
    let mut paths = Vec::new();
    for statement in code.split_inclusive(';') {
        match statement.trim().trim_start_matches("pub(crate) ").strip_prefix("use ") {
            Some(tree) => flatten("", tree.trim_end_matches(';'), &mut paths),
            None => rest.push_str(statement),
        }
    }
    for path_of in paths {
        let full = path_of.replacen("self::", &format!("{module}::"), 1).replacen("super::", &format!("{parent}::"), 1);
        let is_allowed = !full.contains("super::") && ALLOWED.iter().any(|allowed| full.starts_with(allowed));
        assert!(is_allowed, "{path:?} imports {full}");
    }
    let names = rest.split(|sign: char| !(sign.is_alphanumeric() || sign == '_' || sign == ':'));
    let roots = ["std::", "tokio::", "crate::", "registry::", "event_log::", "rustix::", "nix::", "serde_json::"];
    for name in names.filter(|name| roots.iter().any(|root| name.starts_with(root))) {
        let mut allowed = ALLOWED.iter().chain(INLINE);
        assert!(allowed.any(|allowed| name.starts_with(allowed)), "{path:?} names {name}");
    }
    for word in FORBIDDEN {
        assert!(!rest.contains(word), "{path:?} has {word}");
    }
}

#[test]
fn the_core_names_nothing_that_does_io_or_reads_a_clock() {
    let session = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/session");
    let mut files = 0;
    for entry in fs::read_dir(session.join("core")).expect("the core") {
        let path = entry.expect("an entry").path();
        let parent = if path.ends_with("mod.rs") { "crate::session" } else { "crate::session::core" };
        check(&path, "crate::session::core", parent);
        files += 1;
    }
    assert!(files > 10, "{files}");
    for file in BESIDE {
        check(&session.join(file), "crate::session", "crate::session");
    }
}
