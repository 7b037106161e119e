//! Opening of a session: from the answer to `initialize` until the agent is ready.

use agent_client_protocol_schema::v1;
use ipc_protocol::{NativeResume, message::AgentFact};

use super::{
    errors,
    gemini::{self, Look, Seen, Wanted},
    handshake::{self, MOST_RECENT, Opening, Refused},
    listing::List,
    offer::{self, Setting},
    quirks,
    session::Session,
    state::{Activity, Purpose, State},
    turn::Cost,
    wire::Answer,
};
use crate::{Action, ListedFile};

impl Session {
    /// Handles the answer to `initialize`. `is_opening` says that a new conversation was already asked for.
    pub(super) fn initialized(
        &mut self,
        is_opening: bool,
        answer: Answer<'_>,
        out: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        self.offer = handshake::initialized(self.accepted("initialize", answer)?, &self.config, &self.provisioned)?;
        out.extend(self.offer.program.take().map(Action::Program));
        if is_opening {
            self.state = State::Opening { opening: Opening::New };
            return Ok(());
        }
        let can_list = self.offer.capabilities.session_capabilities.list.is_some();
        match self.resume.take() {
            None => self.open(Opening::New, out),
            Some(NativeResume { id, fork: false }) if self.offer.quirks.keeps_files && self.home.is_some() => {
                self.state = State::Looking;
                self.look(Wanted::Load(id), out);
            }
            Some(NativeResume { id: Some(id), fork }) => self.open(Opening::of(id, fork, &self.offer)?, out),
            Some(NativeResume { id: None, fork }) if can_list => self.find(List::default(), None, fork, out),
            Some(NativeResume { id: None, .. }) => {
                let operation = "go on with the most recent conversation: it does not list them";
                return Err(Refused::Unsupported(operation.to_owned()));
            }
        }
        Ok(())
    }

    /// Starts a search for the conversations of an agent that keeps them in files.
    pub(super) fn look(&mut self, wanted: Wanted, out: &mut Vec<Action>) {
        let id = self.peer.pending.fresh_id();
        let home = self.home.clone().unwrap_or_default();
        self.looks.push(Look::begin(id, wanted, &home, out));
    }

    /// Handles the result of a file list.
    pub(super) fn found_files(&mut self, id: u64, files: &[ListedFile], out: &mut Vec<Action>) {
        let Some(at) = self.looks.iter().position(|look| look.id == id) else { return };
        let look = self.looks.remove(at);
        match look.take(files, self.cwd(), out) {
            Seen::More(look) => self.looks.push(look),
            Seen::All(Wanted::Tell(operation), found) => {
                out.push(Action::Reply { request: operation, reply: Ok(gemini::reply(&found, self.cwd())) });
            }
            Seen::All(Wanted::Load(id), found) if matches!(self.state, State::Looking) => {
                let Some(id) = id.or_else(|| gemini::most_recent(&found)) else {
                    return self
                        .refuse(Refused::Missing { id: MOST_RECENT.to_owned(), reason: self.none_of_cwd() }, out);
                };
                gemini::make_loadable(&id, &found, out);
                match Opening::of(id, false, &self.offer) {
                    Ok(opening) => self.open(opening, out),
                    Err(refused) => self.refuse(refused, out),
                }
            }
            Seen::Broken(id, path) if matches!(self.state, State::Looking) => {
                self.refuse(Refused::Missing { id, reason: format!("its file {path} is broken") }, out);
            }
            Seen::All(Wanted::Load(_), _) | Seen::Broken(..) => {}
            Seen::All(Wanted::Tidy(id), found) => gemini::tidy(&id, &found, &self.fresh_id, out),
        }
    }

    fn none_of_cwd(&self) -> String {
        format!("it has none of {}", self.cwd())
    }

    /// Fails the session, since the agent cannot be used.
    pub(super) fn refuse(&mut self, refused: Refused, out: &mut Vec<Action>) {
        self.state = State::Over;
        out.push(Action::Fail(refused.of(&self.agent)));
    }

    /// Requests the agent's conversations.
    fn find(&mut self, list: List, cursor: Option<String>, fork: bool, out: &mut Vec<Action>) {
        let params = List::request(self.cwd(), cursor);
        self.peer.request("session/list", Some(params), Purpose::Find, out);
        self.state = State::Finding { list, fork };
    }

    pub(super) fn found(
        &mut self,
        list: List,
        fork: bool,
        answer: Answer<'_>,
        out: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        let mut list = list;
        if let Some(cursor) = list.page(self.accepted("session/list", answer)?).map_err(Refused::Protocol)? {
            self.find(list, Some(cursor), fork, out);
            return Ok(());
        }
        let id = list
            .most_recent(self.cwd())
            .ok_or_else(|| Refused::Missing { id: MOST_RECENT.to_owned(), reason: self.none_of_cwd() })?;
        self.open(Opening::of(id, fork, &self.offer)?, out);
        Ok(())
    }

    fn open(&mut self, opening: Opening, out: &mut Vec<Action>) {
        self.ask_for(&opening, out);
        self.state = State::Opening { opening };
    }

    /// Sends the request that opens a conversation.
    pub(super) fn ask_for(&mut self, opening: &Opening, out: &mut Vec<Action>) {
        let (params, is_told) = opening.params(&self.config, self.system_prompt.as_deref(), &self.offer);
        if is_told {
            self.system_prompt = None;
        }
        self.history = opening.replays();
        self.cost = Cost::of(*opening == Opening::New);
        self.peer.request(opening.method(), Some(params), Purpose::Open, out);
    }

    pub(super) fn opened(
        &mut self,
        opening: Opening,
        answer: Answer<'_>,
        out: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        let result = match (opening.conversation(), answer) {
            (Some(id), Err(error)) if error.code != v1::ErrorCode::AuthRequired => {
                return Err(Refused::Missing { id: id.to_owned(), reason: errors::describe(&error) });
            }
            (_, answer) => self.accepted(opening.method(), answer)?,
        };
        let session = handshake::opened(result, &opening)?;
        self.offer.note_answer(result);
        self.configure(session, out)
    }

    /// Sends the next pending setting; without one the agent is ready.
    fn configure(&mut self, session: String, out: &mut Vec<Action>) -> Result<(), Refused> {
        if self.config.mode.is_none() && self.settings.is_empty() && self.offer.asks_a_model() {
            // Once: one that stays in it has said so.
            self.offer.quirks.begins_in_auto = false;
            self.settings.push_back(Setting::Mode(quirks::ASKING_MODE.to_owned()));
        }
        while let Some(setting) = self.settings.pop_front() {
            // An agent that offers levels knows which exist.
            let is_set =
                matches!(setting, Setting::Thinking(_)) && self.provisioned.iter().any(|field| field == "thinking");
            if is_set && !self.offer.has_levels() {
                continue;
            }
            if let Some(asked) = self.offer.request(&setting).map_err(Refused::Unsupported)? {
                self.set(&session, &asked, Purpose::Configure, out);
                self.state = State::Configuring { session, setting, asked };
                return Ok(());
            }
        }
        if self.history && self.offer.quirks.tells_late {
            self.state = State::Settling { session };
        } else {
            self.ready(session, out);
        }
        Ok(())
    }

    /// Sends a request that sets a value.
    pub(super) fn set(
        &mut self,
        session: &str,
        (method, params): &offer::Request,
        purpose: Purpose,
        out: &mut Vec<Action>,
    ) {
        let mut params = params.clone();
        params.insert("sessionId".into(), session.into());
        self.peer.request(method, Some(params), purpose, out);
    }

    pub(super) fn configured(
        &mut self,
        session: String,
        setting: &Setting,
        asked: &offer::Request,
        answer: Answer<'_>,
        out: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        let result = answer
            .map_err(|error| Refused::Unsupported(format!("{}: {}", setting.describe(), errors::describe(&error))))?;
        self.offer.note_set(asked);
        self.offer.note_answer(result);
        self.configure(session, out)
    }

    pub(super) fn ready(&mut self, session: String, out: &mut Vec<Action>) {
        if self.history && self.offer.quirks.keeps_files && self.home.is_some() {
            self.look(Wanted::Tidy(session.clone()), out);
        }
        out.push(Action::Ready { native_session_id: Some(session.clone()) });
        if !self.offer.goes_on() {
            let detail = "the agent cannot go on with it in another process: it can neither load nor resume one";
            out.push(Action::Fact(AgentFact::NotResumable { detail: detail.to_owned() }));
        }
        self.state = State::Ready { session, activity: Activity::Idle };
    }
}

impl Session {
    /// The answer to the request `what`, if it is no error.
    fn accepted<'a>(&self, what: &str, answer: Answer<'a>) -> Result<&'a str, Refused> {
        answer.map_err(|error| {
            let text = errors::describe(&error);
            if error.code == v1::ErrorCode::AuthRequired {
                return Refused::NotLoggedIn(self.not_logged_in(&text));
            }
            Refused::Protocol(format!("it answered {what} with error {}: {text}", i32::from(error.code)))
        })
    }

    /// What to do where nobody is logged in, of which the agent says this.
    pub(super) fn not_logged_in(&self, text: &str) -> String {
        let how = self.login.as_deref().unwrap_or("log it in, or give it a key in its environment (--env)");
        format!("it is not logged in ({text}): {how}")
    }
}
