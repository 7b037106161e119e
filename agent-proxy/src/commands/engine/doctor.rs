//! Command `doctor`.

use std::path::Path;

use proxy_manager::ChildProgram;
use proxy_server::ProgramExit;

use crate::{
    command_failure::CommandFailure,
    doctor::{self, CheckVerdict, DoctorCheck},
    render,
    socket_path::SocketPath,
    term::{self, TermStyle, printable},
};

/// Runs all checks, and reports what is missing, with advice.
pub(super) async fn run(
    child: ChildProgram,
    socket: &SocketPath,
    directory: Option<&Path>,
    as_json: bool,
) -> Result<(), CommandFailure> {
    let checks = doctor::examine(child, socket, directory).await;
    if as_json {
        term::json(&checks)?;
    } else {
        term::out(text(&checks, TermStyle::stdout(), term::columns()))?;
    }
    if doctor::baseline_is_usable(&checks) { Ok(()) } else { Err(CommandFailure::Exit(ProgramExit::Unsupported)) }
}

fn text(checks: &[DoctorCheck], style: TermStyle, width: Option<usize>) -> String {
    let rows = checks
        .iter()
        .map(|check| {
            let mark = match check.verdict {
                CheckVerdict::Ok => "ok",
                CheckVerdict::Note => "-",
                CheckVerdict::Missing => "MISSING",
            };
            vec![check.name.clone(), mark.to_owned(), printable(&check.found, false)]
        })
        .collect();
    let mut text = render::wrapped_table(style, &["WHAT", "", "FOUND"], &[], rows, width);
    // Advice for several checks is printed once.
    let mut advice: Vec<(&str, Vec<&str>)> = Vec::new();
    for check in checks {
        let Some(what) = check.advice.as_deref() else { continue };
        match advice.iter_mut().find(|(known, _)| *known == what) {
            Some((_, names)) if names.contains(&check.name.as_str()) => {}
            Some((_, names)) => names.push(&check.name),
            None => advice.push((what, vec![&check.name])),
        }
    }
    if !advice.is_empty() {
        text.push('\n');
    }
    for (advice, names) in advice {
        text.push_str(&term::filled(&format!("{}: {advice}\n", style.yellow(names.join(", "))), width));
    }
    let verdict = if doctor::baseline_is_usable(checks) {
        style.green("layer A (baseline) is usable: every kill ends with a proof")
    } else {
        style.red("layer A (baseline) is NOT usable here: no session can be started")
    };
    format!("{text}\n{verdict}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_advice() {
        let check = |name: &str, verdict, advice: Option<&str>| DoctorCheck {
            name: name.to_owned(),
            verdict,
            needed: true,
            found: "x".into(),
            advice: advice.map(str::to_owned),
        };
        let good = [check("a", CheckVerdict::Ok, None)];
        let missing = |name| check(name, CheckVerdict::Missing, Some("install it"));
        let bad = [good[0].clone(), missing("b"), missing("c")];
        assert!(text(&good, TermStyle::PLAIN, None).ends_with("every kill ends with a proof\n"));
        let text = text(&bad, TermStyle::PLAIN, None);
        assert!(text.contains("b, c: install it") && text.contains("NOT usable"), "{text}");
    }
}
