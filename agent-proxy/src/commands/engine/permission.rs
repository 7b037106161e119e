//! Permission requests for the user at the terminal.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal},
    path::Path,
};

use proxy_server::ProblemDetails;

use super::input_reader::{InputLine, InputPurpose, InputReader};
use crate::{
    render::shared_terminal::SharedTerminal,
    term::{self, TermStyle, folded_details, printable},
};
use agents::permission::{CompiledPolicy, PolicyVerdict};
use proxy_manager::{
    AgentSessionConfig, OpenPermission, PermissionAnswer, PermissionOption, PermissionOptionKind, PermissionRequest,
};

/// Dialog for the requests that the session's policy leaves to the user, one after the other.
#[derive(Debug)]
pub(super) struct PermissionPrompter {
    policy: CompiledPolicy,
    /// Configuration of the session, with its profile.
    config: AgentSessionConfig,
    open: VecDeque<PermissionRequest>,
    /// Id of the request that the user has seen.
    shown: Option<String>,
    /// Typed lines; `None` until the first is needed.
    lines: Option<InputReader>,
    /// True if prompts are typed too.
    is_interactive: bool,
}

/// What the user has typed.
#[derive(Debug)]
pub(super) enum TypedInput {
    /// Answer to the request with this id.
    Answer(String, PermissionAnswer),
    /// Ctrl-C where that is no signal.
    Interrupted,
    /// Line that is no answer.
    Line(String),
    /// End of input.
    End,
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
        let policy = compile(config, config.cwd.as_deref().unwrap_or("/"))?;
        let config = config.clone();
        Ok(Self { policy, config, open: VecDeque::new(), shown: None, lines: None, is_interactive: talks })
    }

    /// Has relative paths of rules mean those in the session's workspace, which was made from the tree `source`: the session has them so.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(super) fn work_in(&mut self, source: &str, tree: &str) -> Result<(), ProblemDetails> {
        let cwd = Path::new(self.config.cwd.as_deref().unwrap_or(source));
        let cwd = Path::new(tree).join(cwd.strip_prefix(source).unwrap_or(Path::new("")));
        self.policy = compile(&self.config, &cwd.to_string_lossy())?;
        Ok(())
    }

    /// Returns true if a request is left to the user.
    pub(super) fn is_for(&self, request: &PermissionRequest) -> bool {
        self.policy.decide(request) == PolicyVerdict::Ask
    }

    /// Shows a request to the user; returns the answer if nobody can be asked. Prompts that come from elsewhere than a terminal answer
    /// nothing.
    pub(super) fn ask(&mut self, request: &PermissionRequest) -> Option<PermissionAnswer> {
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            let title = printable(&request.title, false);
            term::error_line(format_args!(
                "? denied: {title}: standard input and error are no terminal, so nobody can be asked; see --permission"
            ));
            return Some(denial(&request.options));
        }
        self.open.push_back(request.clone());
        self.show();
        None
    }

    /// Removes a request that was answered otherwise, or whose turn has ended.
    pub(super) fn forget(&mut self, id: &str) {
        self.open.retain(|request| request.id != id);
        // An agent that is started again begins its ids anew.
        if self.shown.as_deref() == Some(id) {
            self.shown = None;
        }
    }

    /// Shows the first request, unless the user has seen it.
    fn show(&mut self) {
        let Some(first) = self.open.front().filter(|first| self.shown.as_ref() != Some(&first.id)) else { return };
        // The line of an answer that is no longer wanted.
        let _hold = self.terminal().map(|terminal| terminal.hold());
        print_request(first);
        self.shown = Some(first.id.clone());
    }

    /// Returns true while a request waits for the user's answer.
    pub(super) fn is_asking(&self) -> bool {
        !self.open.is_empty()
    }

    /// Reads the next prompt; while a request is open, its answer. May be dropped while it waits.
    pub(super) async fn line(&mut self, prompt: &str) -> TypedInput {
        if self.is_asking() {
            return self.typed(false).await;
        }
        match self.reader().next(InputPurpose::Prompt, prompt).await {
            InputLine::Line(line) => TypedInput::Line(line),
            InputLine::Interrupted => TypedInput::Interrupted,
            InputLine::End => TypedInput::End,
        }
    }

    /// Reads the next answer and, with `ahead`, what else is typed on a terminal while a turn runs. Else pends while no request is open.
    /// May be dropped while it waits.
    pub(super) async fn typed(&mut self, mut ahead: bool) -> TypedInput {
        loop {
            self.show();
            let Some(request) = self.open.front() else {
                if !ahead {
                    return std::future::pending().await;
                }
                match self.reader().next(InputPurpose::Ahead, "").await {
                    InputLine::Line(line) if line.trim().is_empty() => continue,
                    InputLine::Line(line) => return TypedInput::Line(line),
                    InputLine::Interrupted => return TypedInput::Interrupted,
                    // The next prompt gets it.
                    InputLine::End => ahead = false,
                }
                continue;
            };
            let purpose = InputPurpose::Answer(request.id.clone());
            let line = match self.reader().next(purpose, CHOICE).await {
                InputLine::Line(line) => line,
                InputLine::Interrupted => return TypedInput::Interrupted,
                // Ctrl-D: no answer will come.
                InputLine::End => "n".to_owned(),
            };
            let Some(request) = self.open.front() else { continue };
            let Some(answer) = parse(line.trim(), &request.options) else {
                self.shown = None;
                continue;
            };
            let id = request.id.clone();
            self.forget(&id);
            return TypedInput::Answer(id, answer);
        }
    }

    /// Returns the terminal, if lines are read from it.
    pub(super) fn terminal(&self) -> Option<SharedTerminal> {
        self.lines.as_ref().map(InputReader::terminal)
    }

    /// Returns true while a request waits for the user's answer, or one is still typed.
    pub(super) fn shows_line(&self) -> bool {
        self.is_asking() || self.lines.as_ref().is_some_and(InputReader::shows_line)
    }

    /// Returns true while a prompt is read.
    pub(super) fn reads_prompt(&self) -> bool {
        self.lines.as_ref().is_some_and(InputReader::reads_prompt)
    }

    /// Holds a line that was typed ahead, for the next prompt.
    pub(super) fn hold(&mut self, line: String) {
        self.reader().hold(line);
    }

    /// Has what was typed ahead be edited, and not sent by itself.
    pub(super) fn edit_held(&mut self) {
        self.lines.iter_mut().for_each(InputReader::edit_held);
    }

    fn reader(&mut self) -> &mut InputReader {
        self.lines.get_or_insert_with(|| InputReader::new(self.is_interactive))
    }
}

fn compile(config: &AgentSessionConfig, cwd: &str) -> Result<CompiledPolicy, ProblemDetails> {
    let policy = CompiledPolicy::new(&config.permissions, config.permission_mode, cwd);
    policy.map_err(|error| ProblemDetails::usage(error.to_string()))
}

/// Shows all of a request, and rings the bell: whoever waits for a turn looks elsewhere.
fn print_request(request: &PermissionRequest) {
    let (style, width) = (TermStyle::stderr(), term::error_columns());
    let PermissionRequest { title, tool, kind, options, .. } = request;
    let tool = if tool == kind { printable(kind, false) } else { printable(&format!("{tool} · {kind}"), false) };
    term::error_line(format_args!("{} {} {}", style.bold("May it?"), printable(title, false), style.dim(tool)));
    for line in folded_details(&OpenPermission::from(request).details(), width) {
        term::error_text(format_args!("{line}\n"));
    }
    for (at, option) in options.iter().enumerate() {
        term::error_line(format_args!("  {}  {}", at + 1, printable(&option.name, false)));
    }
    term::ring_bell();
}

/// Returns the answer that denies; without an option to reject it cancels the request.
fn denial(options: &[PermissionOption]) -> PermissionAnswer {
    if has(options, [PermissionOptionKind::RejectOnce, PermissionOptionKind::RejectAlways]) {
        PermissionAnswer::Deny
    } else {
        PermissionAnswer::Cancelled
    }
}

fn has(options: &[PermissionOption], kinds: [PermissionOptionKind; 2]) -> bool {
    options.iter().any(|option| kinds.contains(&option.kind))
}

fn parse(line: &str, options: &[PermissionOption]) -> Option<PermissionAnswer> {
    match line.to_ascii_lowercase().as_str() {
        "y" | "yes" if has(options, [PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways]) => {
            Some(PermissionAnswer::Allow)
        }
        "n" | "no" => Some(denial(options)),
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
