//! Permission requests for the user at the terminal.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal},
};

use proxy_server::ProblemDetails;

use super::input_reader::{InputLine, InputReader};
use crate::term::{self, TermStyle, printable};
use agents::permission::{CompiledPolicy, PolicyVerdict};
use proxy_manager::{AgentSessionConfig, PermissionAnswer, PermissionOption, PermissionOptionKind, PermissionRequest};

/// Dialog for the requests that the session's policy leaves to the user, one after the other.
#[derive(Debug)]
pub(super) struct PermissionPrompter {
    policy: CompiledPolicy,
    open: VecDeque<PermissionRequest>,
    /// Typed lines; `None` until the first is needed.
    lines: Option<InputReader>,
    /// True if prompts are typed too: then a user is present, terminal or not.
    is_interactive: bool,
}

/// Prompt for the answer to a request.
const CHOICE: &str = "  y = allow once, n = deny, or a number: ";

impl PermissionPrompter {
    /// Creates the dialog for a session of this configuration, with its profile applied. Reads nothing before the
    /// first request.
    ///
    /// # Errors
    /// If one of its rules is invalid.
    pub(super) fn of(config: &AgentSessionConfig, talks: bool) -> Result<Self, ProblemDetails> {
        let cwd = config.cwd.as_deref().unwrap_or("/");
        let policy = CompiledPolicy::new(&config.permissions, config.permission_mode, cwd);
        let policy = policy.map_err(|error| ProblemDetails::usage(error.to_string()))?;
        Ok(Self { policy, open: VecDeque::new(), lines: None, is_interactive: talks })
    }

    /// Returns true if a request is left to the user.
    pub(super) fn is_for(&self, request: &PermissionRequest) -> bool {
        self.policy.decide(request) == PolicyVerdict::Ask
    }

    /// Shows a request to the user; returns the answer if nobody can be asked.
    pub(super) fn ask(&mut self, request: &PermissionRequest) -> Option<PermissionAnswer> {
        if !self.is_interactive && (!io::stdin().is_terminal() || !io::stderr().is_terminal()) {
            term::error_line("? denied: standard input is no terminal, so nobody can be asked; see --permission");
            return Some(PermissionAnswer::Deny);
        }
        self.open.push_back(request.clone());
        if self.open.len() == 1 {
            print_request(request);
        }
        None
    }

    /// Removes a request that was answered otherwise, or whose turn has ended.
    pub(super) fn forget(&mut self, id: &str) {
        self.open.retain(|request| request.id != id);
    }

    /// Returns true while a request waits for the user's answer.
    pub(super) fn is_asking(&self) -> bool {
        !self.open.is_empty()
    }

    /// Reads the next line that is no answer to a request. May be dropped while it waits.
    pub(super) async fn line(&mut self, prompt: &str) -> InputLine {
        self.lines.get_or_insert_with(|| InputReader::new(self.is_interactive)).next(prompt).await
    }

    /// Reads the next answer; `None` for Ctrl-C where that is no signal. Pends forever while no request is open.
    /// May be dropped while it waits.
    pub(super) async fn answer(&mut self) -> Option<(String, PermissionAnswer)> {
        loop {
            let Some(request) = self.open.front() else { return std::future::pending().await };
            let line = match self.lines.get_or_insert_with(|| InputReader::new(self.is_interactive)).next(CHOICE).await
            {
                InputLine::Line(line) => line,
                InputLine::Interrupted => return None,
                // Ctrl-D: no answer will come.
                InputLine::End => "n".to_owned(),
            };
            let Some(answer) = parse(line.trim(), &request.options) else {
                print_request(request);
                continue;
            };
            let id = request.id.clone();
            self.open.pop_front();
            self.open.front().inspect(|next| print_request(next));
            return Some((id, answer));
        }
    }
}

fn print_request(request: &PermissionRequest) {
    let style = TermStyle::stderr();
    term::error_line(format_args!("{} {}", style.bold("May it?"), printable(&request.title, false)));
    for (at, option) in request.options.iter().enumerate() {
        term::error_line(format_args!("  {}  {}", at + 1, printable(&option.name, false)));
    }
}

fn parse(line: &str, options: &[PermissionOption]) -> Option<PermissionAnswer> {
    let has = |kinds: [PermissionOptionKind; 2]| options.iter().any(|option| kinds.contains(&option.kind));
    match line.to_ascii_lowercase().as_str() {
        "y" | "yes" if has([PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways]) => {
            Some(PermissionAnswer::Allow)
        }
        "n" | "no" if has([PermissionOptionKind::RejectOnce, PermissionOptionKind::RejectAlways]) => {
            Some(PermissionAnswer::Deny)
        }
        // Without an option to reject, cancel the request.
        "n" | "no" => Some(PermissionAnswer::Cancelled),
        number => {
            let option = options.get(number.parse::<usize>().ok()?.checked_sub(1)?)?;
            Some(PermissionAnswer::Option(option.id.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let option = |id: &str, kind| PermissionOption { id: id.into(), name: id.into(), kind };
        let options = [option("once", PermissionOptionKind::AllowOnce), option("no", PermissionOptionKind::RejectOnce)];
        assert_eq!(parse("y", &options), Some(PermissionAnswer::Allow));
        assert_eq!(parse("NO", &options), Some(PermissionAnswer::Deny));
        assert_eq!(parse("2", &options), Some(PermissionAnswer::Option("no".into())));
        for bad in ["", "0", "3", "maybe"] {
            assert_eq!(parse(bad, &options), None, "{bad:?}");
        }
        assert_eq!(parse("n", &options[..1]), Some(PermissionAnswer::Cancelled));
    }
}
