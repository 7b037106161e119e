//! Resolves the conversation that a session resumes.

use std::path::PathBuf;

use ipc_protocol::{AgentSessionConfig, Home, NativeResume, OnMissing, ResumeFrom, ResumeRequest, SessionId};

use super::invalid;
use crate::error::{Error, Result};

/// Maximum length of an injected history, in bytes.
pub(crate) const MAX_HISTORY: usize = 4 * 1024 * 1024;

/// Facts about a session whose conversation is to be resumed.
#[derive(Clone, Debug)]
pub(crate) struct PastSession {
    pub(crate) agent: String,
    pub(crate) native_session_id: Option<String>,
    /// The session's own home, if any.
    pub(crate) home: Option<PathBuf>,
    pub(crate) cwd: String,
    /// Model configuration of the session.
    pub(crate) model_config: Option<String>,
    pub(crate) has_ended: bool,
    /// True if a user continues the conversation with the agent itself.
    pub(crate) is_handed_over: bool,
    /// True if its own home does not exist any more.
    pub(crate) is_home_gone: bool,
}

/// Location of a session's home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HomePlace {
    /// Home of the base environment.
    Shared,
    /// A home of its own, yet to be created.
    Own,
    /// Home of the session whose conversation is resumed.
    Inherited(PathBuf),
}

/// Result of looking for a conversation.
#[derive(Debug)]
pub(crate) struct ResolvedConversation {
    /// Instruction for the agent, or the error why there is none.
    pub(crate) native: Result<NativeResume>,
    /// Location of the session's home, if the conversation determines it.
    pub(crate) place: Option<HomePlace>,
    /// Working directory, if the conversation determines it.
    pub(crate) cwd: Option<String>,
    /// Model configuration whose files are in the home, if the conversation determines it.
    pub(crate) model_config: Option<String>,
}

impl ResolvedConversation {
    /// Finds the conversation that `config` asks for. `past` looks up the manager's sessions.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`]; [`Error::NativeSessionBusy`] for the conversation of a live session;
    /// [`Error::HandedOver`].
    pub(crate) fn find(
        config: &AgentSessionConfig,
        resume: &ResumeRequest,
        past: &(dyn Fn(&SessionId) -> Option<PastSession> + Sync),
    ) -> Result<Self> {
        if let OnMissing::Inject { history } = &resume.on_missing
            && history.len() > MAX_HISTORY
        {
            let reason = format!("a history of {} bytes is too long: {MAX_HISTORY} at the most", history.len());
            return Err(invalid("resume.onMissing", reason));
        }
        let fork = resume.fork;
        let id = match &resume.from {
            ResumeFrom::Native { id } if id.is_empty() => {
                return Err(invalid("resume.from", "a conversation has an id".to_owned()));
            }
            ResumeFrom::Native { id } => Some(id.clone()),
            ResumeFrom::MostRecent => None,
            ResumeFrom::Session { id } => return Self::of_session(config, id, fork, past(id)),
        };
        Ok(Self { native: Ok(NativeResume { id, fork }), place: None, cwd: None, model_config: None })
    }

    fn of_session(config: &AgentSessionConfig, id: &SessionId, fork: bool, past: Option<PastSession>) -> Result<Self> {
        let agent = config.agent.clone();
        let missing = |reason: String| Error::NativeSessionMissing { agent: agent.clone(), id: id.to_string(), reason };
        let Some(past) = past else {
            let native = Err(missing("no such session is remembered".to_owned()));
            return Ok(Self { native, place: None, cwd: None, model_config: None });
        };
        if past.agent != config.agent {
            let theirs = past.agent;
            return Err(invalid("resume.from", format!("session {id} was of agent {theirs:?}, this is of {agent:?}")));
        }
        // A copy can be had of a living one, unless the two would get in each other's way in one home.
        if !past.has_ended && fork && past.home.is_some() {
            return Err(Error::HomeBusy { session: id.clone() });
        }
        if !past.has_ended && !fork {
            let native = past.native_session_id.unwrap_or_else(|| id.to_string());
            return Err(Error::NativeSessionBusy { agent, id: native, session: id.clone(), manager: None });
        }
        // Only the session itself may take its conversation back.
        if past.is_handed_over && !fork && *id != config.session_id {
            return Err(Error::HandedOver { session: id.clone() });
        }
        // In a shared home the configuration left no files.
        let model_config = past.model_config.filter(|_| past.home.is_some());
        if let Some(home) = past.home.as_ref().filter(|_| past.is_home_gone) {
            let native = Err(missing(format!("its home {} is gone", home.display())));
            return Ok(Self { native, place: Some(HomePlace::Own), cwd: Some(past.cwd), model_config });
        }
        let place = match (past.home, config.home) {
            (Some(_), Some(Home::Shared)) => {
                let reason = format!("the conversation of session {id} is in a home of its own: leave this out");
                return Err(invalid("home", reason));
            }
            (None, Some(Home::Own)) => {
                let reason = format!("the conversation of session {id} is in the shared home: leave this out");
                return Err(invalid("home", reason));
            }
            (Some(home), _) => HomePlace::Inherited(home),
            (None, _) => HomePlace::Shared,
        };
        let native = past.native_session_id.map(|id| NativeResume { id: Some(id), fork });
        let native = native.ok_or_else(|| missing("its agent never told an id of the conversation".to_owned()));
        Ok(Self { native, place: Some(place), cwd: Some(past.cwd), model_config })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(id: &SessionId) -> Option<PastSession> {
        let past = PastSession {
            agent: "claude".into(),
            native_session_id: Some("n-1".into()),
            home: None,
            cwd: "/work".into(),
            model_config: Some("small".into()),
            has_ended: true,
            is_handed_over: false,
            is_home_gone: false,
        };
        match id.as_str() {
            "shared" => Some(past),
            "own" => Some(PastSession { home: Some("/homes/own".into()), ..past }),
            "homeless" => Some(PastSession { home: Some("/homes/own".into()), is_home_gone: true, ..past }),
            "alive" => Some(PastSession { has_ended: false, ..past }),
            "alive-own" => Some(PastSession { has_ended: false, home: Some("/homes/own".into()), ..past }),
            "nameless" => Some(PastSession { native_session_id: None, ..past }),
            "handed-over" => Some(PastSession { is_handed_over: true, ..past }),
            "pi" => Some(PastSession { agent: "pi".into(), ..past }),
            _ => None,
        }
    }

    fn find(session: &str, fork: bool, home: Option<Home>) -> Result<ResolvedConversation> {
        let from = ResumeFrom::Session { id: session.parse().expect("a valid id") };
        let config = AgentSessionConfig { home, ..AgentSessionConfig::new("claude") };
        ResolvedConversation::find(&config, &ResumeRequest { from, fork, on_missing: OnMissing::Fail }, &past)
    }

    fn field(found: Result<ResolvedConversation>) -> &'static str {
        match found {
            Err(Error::InvalidConfig { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_session_gives_its_conversation_its_home_and_where_it_worked() {
        let native = |fork| NativeResume { id: Some("n-1".into()), fork };
        let found = find("shared", false, None).expect("found");
        assert_eq!((found.native.expect("known"), found.place), (native(false), Some(HomePlace::Shared)));
        assert_eq!((found.cwd.as_deref(), found.model_config), (Some("/work"), None));
        let found = find("own", true, Some(Home::Own)).expect("found");
        assert_eq!(
            (found.native.expect("known"), found.place),
            (native(true), Some(HomePlace::Inherited("/homes/own".into())))
        );
        assert_eq!(found.model_config.as_deref(), Some("small"));
        assert_eq!(field(find("own", false, Some(Home::Shared))), "home");
        assert_eq!(field(find("shared", false, Some(Home::Own))), "home");
        assert_eq!(field(find("pi", false, None)), "resume.from");
    }

    #[test]
    fn what_is_not_there_is_missing_and_what_lives_is_busy() {
        for missing in ["nobody", "nameless", "homeless"] {
            let found = find(missing, false, None).expect("found out");
            assert!(matches!(found.native, Err(Error::NativeSessionMissing { .. })), "{missing}");
            // A new conversation of one that had a home of its own is in one again.
            assert_eq!(found.place == Some(HomePlace::Own), missing == "homeless");
        }
        for busy in ["alive", "alive-own"] {
            assert!(matches!(find(busy, false, None), Err(Error::NativeSessionBusy { .. })), "{busy}");
        }
        assert!(find("alive", true, None).is_ok(), "a copy is exempt");
        let in_one_home = find("alive-own", true, None).expect_err("in one home");
        assert!(matches!(in_one_home, Error::HomeBusy { .. }), "{in_one_home:?}");
        let text = in_one_home.to_string();
        assert!(text.contains("suspend") && !text.contains("or fork it"), "advice that can be taken: {text}");
    }

    #[test]
    fn what_is_handed_over_is_copied_or_taken_back() {
        let refused = find("handed-over", false, None);
        assert!(matches!(refused, Err(Error::HandedOver { .. })), "{refused:?}");
        assert!(find("handed-over", true, None).is_ok(), "a copy is exempt");
        let id: SessionId = "handed-over".parse().expect("a valid id");
        let config = AgentSessionConfig { session_id: id.clone(), ..AgentSessionConfig::new("claude") };
        let resume = ResumeRequest { from: ResumeFrom::Session { id }, fork: false, on_missing: OnMissing::StartAnew };
        assert!(ResolvedConversation::find(&config, &resume, &past).is_ok(), "it is taken back");
    }

    #[test]
    fn others_are_named_by_the_agents_id() {
        let config = AgentSessionConfig::new("claude");
        let find = |from, on_missing| {
            ResolvedConversation::find(&config, &ResumeRequest { from, fork: false, on_missing }, &past)
        };
        let id = |from| find(from, OnMissing::Fail).expect("found").native.expect("known").id;
        assert_eq!(id(ResumeFrom::Native { id: "n-2".into() }).as_deref(), Some("n-2"));
        assert_eq!(id(ResumeFrom::MostRecent), None);
        assert_eq!(field(find(ResumeFrom::Native { id: String::new() }, OnMissing::Fail)), "resume.from");
        let long = OnMissing::Inject { history: "x".repeat(MAX_HISTORY + 1) };
        assert_eq!(field(find(ResumeFrom::MostRecent, long)), "resume.onMissing");
    }
}
