//! Permission policy: decisions by a session's rules and mode, or by somebody who is asked.
//!
//! Pure: the proxy applies it to each request, with or without a host. It relies on what the agent says of itself. An agent that lies,
//! or a puzzle for the shell, gets past any rule on text. The layers of containment exist to hold an agent back.

mod bypass;
mod command;
mod open_requests;
mod path;
mod search;

use globset::{GlobBuilder, GlobMatcher};
use ipc_protocol::{PermissionMode, PermissionPolicy, PermissionRequest, PermissionRule, ResolvedBy, RuleDecision};

pub use self::bypass::BypassDetector;
#[cfg(feature = "opencode")]
pub(crate) use self::path::absolute;
pub(crate) use self::{
    command::script,
    open_requests::{AnswerChoice, OpenRequest, OpenRequests, PreparedOption, plain_request},
    search::beginning,
};

use self::{command::CommandGlob, path::PathGlob};

/// Most rules of a policy.
const MAX_RULES: usize = 256;
/// Longest glob, in bytes.
const MAX_GLOB: usize = 1024;
/// Kinds of requests that change nothing.
const READING: [&str; 3] = ["read", "search", "think"];
/// Kind of a request that asks the user a question.
const QUESTION: &str = "question";
/// Kind of a request that would run a command, whatever name the agent uses.
const EXECUTE: &str = "execute";
/// Separator between the kinds of a request for several things at once.
const AND: char = '+';

/// Decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// Somebody has to answer the request.
    Ask,
    /// The request is allowed, once.
    Allow(ResolvedBy),
    /// The request is rejected, once.
    Deny(ResolvedBy),
}

/// Error in a policy.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// A glob cannot be used.
    #[error("the {field} of permission rule {rule} cannot be {glob:?}: {reason}")]
    Glob {
        /// Index of the rule, from 0.
        rule: usize,
        /// Name of the rule's glob.
        field: &'static str,
        /// Glob as configured.
        glob: String,
        /// Error in the glob.
        reason: String,
    },
    /// There are too many rules.
    #[error("{rules} permission rules are more than the {MAX_RULES} that are taken")]
    Rules {
        /// Number of rules.
        rules: usize,
    },
}

/// Checks that `policy` can be followed.
///
/// # Errors
/// [`PolicyError`] names the rule.
pub fn check(policy: &PermissionPolicy) -> Result<(), PolicyError> {
    CompiledPolicy::new(policy, PermissionMode::default(), "/").map(drop)
}

/// Compiled permission rule.
#[derive(Debug)]
struct CompiledRule {
    tool: Option<GlobMatcher>,
    command: Option<CommandGlob>,
    path: Option<PathGlob>,
    decision: RuleDecision,
}

/// Part of a request that asks for several things; most requests have one part.
#[derive(Debug)]
struct RequestPart<'a> {
    kind: &'a str,
    /// Command of the part; `None` if the command belongs to another part.
    command: Option<&'a str>,
    whole: &'a PermissionRequest,
}

/// Compiled policy of a session.
#[derive(Debug)]
pub struct CompiledPolicy {
    rules: Vec<CompiledRule>,
    mode: PermissionMode,
    cwd: String,
}

impl CompiledPolicy {
    /// Compiles the policy of a session in `mode` that works in `cwd`, an absolute path.
    ///
    /// # Errors
    /// Same as for [`check`].
    pub fn new(policy: &PermissionPolicy, mode: PermissionMode, cwd: &str) -> Result<Self, PolicyError> {
        if policy.rules.len() > MAX_RULES {
            return Err(PolicyError::Rules { rules: policy.rules.len() });
        }
        let rules = policy.rules.iter().enumerate().map(|(at, rule)| CompiledRule::new(at, rule, cwd));
        Ok(Self { rules: rules.collect::<Result<_, _>>()?, mode, cwd: cwd.to_owned() })
    }

    /// Decides on `request`: the first rule that matches decides, else the mode. For several things at once each is decided: the request
    /// is denied if one of them is, and allowed if all are.
    ///
    /// A question is never allowed before somebody has seen it: it would have no answer.
    pub fn decide(&self, request: &PermissionRequest) -> PolicyVerdict {
        let strictness = |verdict: &PolicyVerdict| match verdict {
            PolicyVerdict::Allow(_) => 0,
            PolicyVerdict::Ask => 1,
            PolicyVerdict::Deny(_) => 2,
        };
        let parts = request.kind.split(AND).map(|kind| self.decide_part(request, kind));
        let strictest = parts.reduce(|a, b| if strictness(&b) > strictness(&a) { b } else { a });
        strictest.unwrap_or(PolicyVerdict::Ask)
    }

    /// Decides on the part of `request` that is of this kind.
    fn decide_part(&self, request: &PermissionRequest, kind: &str) -> PolicyVerdict {
        // A command that is requested together with other things is a part of its own.
        let command = request.command.as_deref().filter(|_| kind == request.kind || kind == EXECUTE);
        let part = RequestPart { kind, command, whole: request };
        let rule = self.rules.iter().enumerate().find(|(_, rule)| rule.matches(&part, &self.cwd));
        let (decision, by) = match rule {
            Some((at, rule)) => (rule.decision, ResolvedBy::Rule { index: u32::try_from(at).unwrap_or(u32::MAX) }),
            None => (self.by_mode(&part), ResolvedBy::Mode(self.mode)),
        };
        match decision {
            RuleDecision::Ask => PolicyVerdict::Ask,
            RuleDecision::Allow if kind == QUESTION => PolicyVerdict::Ask,
            RuleDecision::Allow => PolicyVerdict::Allow(by),
            RuleDecision::Deny => PolicyVerdict::Deny(by),
        }
    }

    fn by_mode(&self, part: &RequestPart<'_>) -> RuleDecision {
        match self.mode {
            PermissionMode::Ask => RuleDecision::Ask,
            PermissionMode::Allow => RuleDecision::Allow,
            PermissionMode::ReadOnly if part.kind == QUESTION => RuleDecision::Ask,
            // Some agents use the kind `read` for a command that they consider reading.
            PermissionMode::ReadOnly if part.command.is_none() && READING.contains(&part.kind) => RuleDecision::Allow,
            PermissionMode::Deny | PermissionMode::ReadOnly => RuleDecision::Deny,
        }
    }

    /// Whether nothing is ever asked, or denied.
    pub fn allows_all(&self) -> bool {
        self.mode == PermissionMode::Allow && self.rules.iter().all(|rule| rule.decision == RuleDecision::Allow)
    }

    /// What becomes of `request` when nobody has answered it in time.
    pub fn at_deadline(policy: &PermissionPolicy, request: &PermissionRequest) -> PolicyVerdict {
        if policy.allow_at_deadline && request.kind != QUESTION {
            PolicyVerdict::Allow(ResolvedBy::Deadline)
        } else {
            PolicyVerdict::Deny(ResolvedBy::Deadline)
        }
    }
}

impl CompiledRule {
    fn new(at: usize, rule: &PermissionRule, cwd: &str) -> Result<Self, PolicyError> {
        let PermissionRule { tool, command, path, decision } = rule;
        let wrong = |field, glob: &str, reason: String| PolicyError::Glob {
            rule: at,
            field,
            glob: glob.chars().take(MAX_GLOB).collect(),
            reason,
        };
        for (field, glob) in [("tool", tool), ("command", command), ("path", path)] {
            match glob {
                Some(glob) if glob.trim_ascii().is_empty() => {
                    return Err(wrong(field, glob, "it would match nothing".into()));
                }
                Some(glob) if glob.len() > MAX_GLOB => {
                    return Err(wrong(field, glob, format!("it has more than {MAX_GLOB} bytes")));
                }
                _ => {}
            }
        }
        let tool_glob = |glob: &String| {
            let glob_set =
                GlobBuilder::new(glob).build().map_err(|error| wrong("tool", glob, error.kind().to_string()))?;
            Ok(glob_set.compile_matcher())
        };
        let path_glob = |glob: &String| PathGlob::new(glob, cwd).map_err(|reason| wrong("path", glob, reason));
        Ok(Self {
            tool: tool.as_ref().map(tool_glob).transpose()?,
            command: command.as_deref().map(CommandGlob::new),
            path: path.as_ref().map(path_glob).transpose()?,
            decision: *decision,
        })
    }

    /// Returns whether the rule matches `part`: in doubt a rule that allows does not, and a rule that does not allow does. Only the
    /// latter looks at the other parts: a rule that denies a command that connects to a host denies the host with it.
    fn matches(&self, part: &RequestPart<'_>, cwd: &str) -> bool {
        let allows = self.decision == RuleDecision::Allow;
        let whole = part.whole;
        let line = if allows { part.command } else { whole.command.as_deref() };
        let tool = self.tool.as_ref().is_none_or(|glob| {
            // A command is never a `read`, whatever the agent thinks that the command does.
            let runs = line.is_some() && glob.is_match(EXECUTE);
            let is_kind = match allows {
                true => line.is_none() && glob.is_match(part.kind),
                false => whole.kind.split(AND).any(|kind| glob.is_match(kind)),
            };
            glob.is_match(&whole.tool) || is_kind || runs
        });
        let command = self
            .command
            .as_ref()
            .is_none_or(|glob| line.is_some_and(|line| if allows { glob.allows(line) } else { glob.concerns(line) }));
        let is_command = line.is_some() || part.kind == EXECUTE;
        let path = self.path.as_ref().is_none_or(|glob| {
            if allows && is_command && self.command.is_none() {
                // The files that a command touches are unknown beforehand.
                return false;
            }
            let mut paths = whole.paths.iter().map(|path| path::absolute(path, cwd));
            if allows {
                !whole.paths.is_empty() && paths.all(|path| path.is_some_and(|path| glob.allows(&path)))
            } else {
                paths.any(|path| path.is_none_or(|path| glob.concerns(&path)))
            }
        });
        tool && command && path
    }
}
