//! Opening of a session: from the answer to `initialize` until the agent is ready.

use agent_client_protocol_schema::v1;
use ipc_protocol::{NativeResume, message::AgentFact};

use super::{
    errors,
    gemini::{self, ConversationLookup, LookupPurpose, LookupStep},
    handshake::{self, ConversationOpening, HandshakeRefusal, MOST_RECENT},
    listing::ConversationPages,
    offer::{self, AcpSetting, CurrentSettings},
    quirks,
    session::AcpSession,
    state::{AcpActivity, AcpPurpose, AcpState},
    turn::ConversationCost,
    wire::AcpResponse,
};
use crate::{Action, ListedFile};

impl AcpSession {
    /// Handles the answer to `initialize`. `is_opening` says that a new conversation was already asked for.
    pub(super) fn initialized(
        &mut self,
        is_opening: bool,
        answer: AcpResponse<'_>,
        out: &mut Vec<Action>,
    ) -> Result<(), HandshakeRefusal> {
        self.offer = handshake::initialized(self.accepted("initialize", answer)?, &self.config, &self.provisioned)?;
        out.extend(self.offer.program.take().map(Action::Program));
        if is_opening {
            self.state = AcpState::Opening { opening: ConversationOpening::New };
            return Ok(());
        }
        let can_list = self.offer.capabilities.session_capabilities.list.is_some();
        match self.resume.take() {
            None => self.open(ConversationOpening::New, out),
            Some(NativeResume { id, fork: false }) if self.offer.quirks.keeps_files && self.home.is_some() => {
                self.state = AcpState::Looking;
                self.start_lookup(LookupPurpose::Load(id), out);
            }
            Some(NativeResume { id: Some(id), fork }) => {
                self.open(ConversationOpening::of(id, fork, &self.offer)?, out)
            }
            Some(NativeResume { id: None, fork }) if can_list => {
                self.find(ConversationPages::default(), None, fork, out)
            }
            Some(NativeResume { id: None, .. }) => {
                let operation = "go on with the most recent conversation: it does not list them";
                return Err(HandshakeRefusal::Unsupported(operation.to_owned()));
            }
        }
        Ok(())
    }

    /// Starts a search for the conversations of an agent that keeps them in files.
    pub(super) fn start_lookup(&mut self, wanted: LookupPurpose, out: &mut Vec<Action>) {
        let id = self.peer.pending.fresh_id();
        let home = self.home.clone().unwrap_or_default();
        self.lookups.push(ConversationLookup::begin(id, wanted, &home, out));
    }

    /// Handles the result of a file list.
    pub(super) fn found_files(&mut self, id: u64, files: &[ListedFile], out: &mut Vec<Action>) {
        let Some(at) = self.lookups.iter().position(|look| look.id == id) else { return };
        let look = self.lookups.remove(at);
        match look.take(files, self.cwd(), out) {
            LookupStep::More(look) => self.lookups.push(look),
            LookupStep::All(LookupPurpose::List(operation), found) => {
                out.push(Action::Reply { request: operation, reply: Ok(gemini::reply(&found, self.cwd())) });
            }
            LookupStep::All(LookupPurpose::Load(id), found) if matches!(self.state, AcpState::Looking) => {
                let Some(id) = id.or_else(|| gemini::most_recent(&found)) else {
                    return self.refuse(
                        HandshakeRefusal::Missing { id: MOST_RECENT.to_owned(), reason: self.none_of_cwd() },
                        out,
                    );
                };
                gemini::make_loadable(&id, &found, out);
                match ConversationOpening::of(id, false, &self.offer) {
                    Ok(opening) => self.open(opening, out),
                    Err(refused) => self.refuse(refused, out),
                }
            }
            LookupStep::Broken(id, path) if matches!(self.state, AcpState::Looking) => {
                self.refuse(HandshakeRefusal::Missing { id, reason: format!("its file {path} is broken") }, out);
            }
            LookupStep::All(LookupPurpose::Load(_), _) | LookupStep::Broken(..) => {}
            LookupStep::All(LookupPurpose::Tidy(id), found) => gemini::tidy(&id, &found, &self.fresh_id, out),
        }
    }

    fn none_of_cwd(&self) -> String {
        format!("it has none of {}", self.cwd())
    }

    /// Fails the session, since the agent cannot be used.
    pub(super) fn refuse(&mut self, refused: HandshakeRefusal, out: &mut Vec<Action>) {
        self.state = AcpState::Over;
        out.push(Action::Fail(refused.of(&self.agent)));
    }

    /// Requests the agent's conversations.
    fn find(&mut self, list: ConversationPages, cursor: Option<String>, fork: bool, out: &mut Vec<Action>) {
        let params = ConversationPages::request(self.cwd(), cursor);
        self.peer.request("session/list", Some(params), AcpPurpose::Find, out);
        self.state = AcpState::Finding { list, fork };
    }

    pub(super) fn found(
        &mut self,
        list: ConversationPages,
        fork: bool,
        answer: AcpResponse<'_>,
        out: &mut Vec<Action>,
    ) -> Result<(), HandshakeRefusal> {
        let mut list = list;
        if let Some(cursor) = list.page(self.accepted("session/list", answer)?).map_err(HandshakeRefusal::Protocol)? {
            self.find(list, Some(cursor), fork, out);
            return Ok(());
        }
        let id = list
            .most_recent(self.cwd())
            .ok_or_else(|| HandshakeRefusal::Missing { id: MOST_RECENT.to_owned(), reason: self.none_of_cwd() })?;
        self.open(ConversationOpening::of(id, fork, &self.offer)?, out);
        Ok(())
    }

    fn open(&mut self, opening: ConversationOpening, out: &mut Vec<Action>) {
        self.request_conversation(&opening, out);
        self.state = AcpState::Opening { opening };
    }

    /// Sends the request that opens a conversation.
    pub(super) fn request_conversation(&mut self, opening: &ConversationOpening, out: &mut Vec<Action>) {
        let (params, is_told) = opening.params(&self.config, self.system_prompt.as_deref(), &self.offer);
        if is_told {
            self.system_prompt = None;
        }
        self.is_in_replay = opening.replays();
        self.cost = ConversationCost::of(*opening == ConversationOpening::New);
        self.peer.request(opening.method(), Some(params), AcpPurpose::Open, out);
    }

    pub(super) fn opened(
        &mut self,
        opening: ConversationOpening,
        answer: AcpResponse<'_>,
        out: &mut Vec<Action>,
    ) -> Result<(), HandshakeRefusal> {
        let result = match (opening.conversation(), answer) {
            (Some(id), Err(error)) if error.code != v1::ErrorCode::AuthRequired => {
                return Err(HandshakeRefusal::Missing { id: id.to_owned(), reason: errors::describe(&error) });
            }
            (_, answer) => self.accepted(opening.method(), answer)?,
        };
        let session = handshake::opened(result, &opening)?;
        self.offer.record_answer(result);
        self.configure(session, out)
    }

    /// Sends the next pending setting; without one the agent is ready.
    fn configure(&mut self, session: String, out: &mut Vec<Action>) -> Result<(), HandshakeRefusal> {
        if self.config.mode.is_none() && self.settings.is_empty() && self.offer.asks_a_model() {
            // Once: one that stays in it has said so.
            self.offer.quirks.begins_in_auto = false;
            self.settings.push_back(AcpSetting::Mode(quirks::ASKING_MODE.to_owned()));
        }
        while let Some(setting) = self.settings.pop_front() {
            // An agent that offers levels knows which exist.
            let is_set =
                matches!(setting, AcpSetting::Thinking(_)) && self.provisioned.iter().any(|field| field == "thinking");
            if is_set && !self.offer.has_levels() {
                continue;
            }
            if let Some(asked) = self.offer.request(&setting).map_err(HandshakeRefusal::Unsupported)? {
                self.set(&session, &asked, AcpPurpose::Configure, out);
                self.state = AcpState::Configuring { session, setting, asked };
                return Ok(());
            }
        }
        if self.is_in_replay && self.offer.quirks.replays_late {
            self.state = AcpState::Settling { session };
        } else {
            self.ready(session, out);
        }
        Ok(())
    }

    /// Sends a request that sets a value.
    pub(super) fn set(
        &mut self,
        session: &str,
        (method, params): &offer::SetRequest,
        purpose: AcpPurpose,
        out: &mut Vec<Action>,
    ) {
        let mut params = params.clone();
        params.insert("sessionId".into(), session.into());
        self.peer.request(method, Some(params), purpose, out);
    }

    pub(super) fn configured(
        &mut self,
        session: String,
        setting: &AcpSetting,
        asked: &offer::SetRequest,
        answer: AcpResponse<'_>,
        out: &mut Vec<Action>,
    ) -> Result<(), HandshakeRefusal> {
        let result = answer.map_err(|error| {
            HandshakeRefusal::Unsupported(format!("{}: {}", setting.describe(), errors::describe(&error)))
        })?;
        self.offer.record_set(asked);
        self.offer.record_answer(result);
        self.configure(session, out)
    }

    pub(super) fn ready(&mut self, session: String, out: &mut Vec<Action>) {
        if self.is_in_replay && self.offer.quirks.keeps_files && self.home.is_some() {
            self.start_lookup(LookupPurpose::Tidy(session.clone()), out);
        }
        out.push(Action::Ready { native_session_id: Some(session.clone()) });
        if !self.offer.can_resume() {
            let detail = "the agent cannot go on with it in another process: it can neither load nor resume one";
            out.push(Action::Fact(AgentFact::NotResumable { detail: detail.to_owned() }));
        }
        let CurrentSettings { model, mode, thinking } = self.offer.first_settings();
        if model.is_some() || mode.is_some() || thinking.is_some() {
            out.push(Action::Fact(AgentFact::Settings { model, mode, thinking }));
        }
        self.offer.emit_changes(out);
        self.state = AcpState::Ready { session, activity: AcpActivity::Idle };
    }
}

impl AcpSession {
    /// The answer to the request `what`, if it is no error.
    fn accepted<'a>(&self, what: &str, answer: AcpResponse<'a>) -> Result<&'a str, HandshakeRefusal> {
        answer.map_err(|error| {
            let text = errors::describe(&error);
            if error.code == v1::ErrorCode::AuthRequired {
                return HandshakeRefusal::NotLoggedIn(self.not_logged_in(&text));
            }
            HandshakeRefusal::Protocol(format!("it answered {what} with error {}: {text}", i32::from(error.code)))
        })
    }

    /// What to do where nobody is logged in, of which the agent says this.
    pub(super) fn not_logged_in(&self, text: &str) -> String {
        let how = self.login.as_deref().unwrap_or("log it in, or give it a key in its environment (--env)");
        format!("it is not logged in ({text}): {how}")
    }
}
