//! Adapter for any program in a terminal: what it shows is on its screen, and a prompt is typed there. What an agent does there its hooks
//! report: `terminal/reports.rs`.

mod permissions;
mod reports;
mod titles;
mod tools;
mod transcript;

pub use self::reports::events_of_report;

use std::time::Instant;

use ipc_protocol::{PermissionAnswer, Prompt, PromptPart, ResolvedBy, WireError};

use self::{
    permissions::{HookDialect, ScreenPermissions},
    reports::ScreenReports,
    titles::TitleStatus,
    transcript::ScreenTranscript,
};
use crate::{Action, Adapter, AdapterSetup, LineSplitter, Result, permission::CompiledPolicy};

/// Name of the adapter. It is no protocol of a row: a session has it where it has a terminal.
pub const PROTOCOL: &str = "terminal";

/// State machine of the adapter.
#[derive(Debug)]
struct TerminalAdapter {
    agent: String,
    /// Lines of the agent's hooks.
    lines: LineSplitter,
    reports: ScreenReports,
    titles: TitleStatus,
}

/// Makes the adapter.
///
/// # Errors
/// [`WireError::Protocol`] names a permission rule that cannot be followed. What cannot be had in a terminal is refused where the
/// command is made.
pub(crate) fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>> {
    let AdapterSetup { config, agent, resume, fresh_id, protocol_config, directories, .. } = setup;
    let begun = resume.as_ref().is_none_or(|resume| resume.fork);
    let family = protocol_config.get("config").and_then(|family| family.as_str());
    let dialect = match family {
        Some("codex") => HookDialect::Codex,
        Some("gemini" | "qwen") => HookDialect::Gemini,
        _ => HookDialect::Claude,
    };
    // As its provision has it.
    let takes_id = family == Some("claude") && config.command.is_empty();
    let conversation = if begun { takes_id.then_some(fresh_id) } else { resume.and_then(|resume| resume.id) };
    let cwd = config.cwd.as_deref().unwrap_or("/");
    let policy = CompiledPolicy::new(&config.permissions, config.permission_mode, cwd)
        .map_err(|error| WireError::Protocol { reason: error.to_string() })?;
    let permissions = ScreenPermissions::new(policy, dialect);
    let roots = [("CLAUDE_CONFIG_DIR", ""), ("HOME", "/.claude")];
    let roots = roots.iter().filter_map(|(name, below)| Some(format!("{}{below}", directories.get(*name)?))).collect();
    let transcript = (dialect == HookDialect::Claude).then(|| ScreenTranscript::new(roots));
    let reports = ScreenReports::new(conversation, permissions, transcript);
    let titles = TitleStatus::new(family == Some("gemini"));
    Ok(Box::new(TerminalAdapter { agent, lines: LineSplitter::default(), reports, titles }))
}

impl Adapter for TerminalAdapter {
    fn agent(&self) -> &str {
        &self.agent
    }

    fn has_turns(&self) -> bool {
        false
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        out.push(Action::Ready { native_session_id: self.reports.conversation.clone() });
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let reports = &mut self.reports;
        self.lines.push(bytes, |line| reports.take(line, out));
    }

    fn stderr(&mut self, _bytes: &[u8], _out: &mut Vec<Action>) {}

    fn hook_ended(&mut self, id: u64, out: &mut Vec<Action>) {
        self.reports.permissions.hook_ended(id, out);
    }

    fn terminal_status(&mut self, status: &str, out: &mut Vec<Action>) {
        self.reports.status(status, out);
    }

    fn terminal_title(&mut self, title: &str, out: &mut Vec<Action>) {
        self.titles.take(title, out);
    }

    fn file_read(&mut self, next: u64, bytes: &[u8], out: &mut Vec<Action>) {
        self.reports.take_file(next, bytes, out);
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Action>) -> Option<Instant> {
        self.reports.tick(now, out)
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        self.reports.finish(out);
    }

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        if prompt.parts.iter().any(|part| matches!(part, PromptPart::Image { .. })) {
            return Err(self.unsupported("take pictures in a terminal"));
        }
        let words = prompt.parts.iter().filter_map(|part| match part {
            PromptPart::Text(text) => Some(text.as_str()),
            PromptPart::File { path } => Some(path.as_str()),
            PromptPart::Image { .. } => None,
        });
        out.push(Action::Write(words.collect::<Vec<_>>().join(" ").into_bytes()));
        Ok(())
    }

    fn permission(&mut self, id: &str, answer: &PermissionAnswer, by: ResolvedBy, out: &mut Vec<Action>) -> Result<()> {
        self.reports.permissions.answer(&self.agent, id, answer, by, out)
    }
}
