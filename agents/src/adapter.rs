//! What an adapter is.

use ipc_protocol::{AgentSessionConfig, Event, PermissionAnswer, Signal, WireError};

/// What an adapter wants done, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write this to the agent's standard input.
    Write(Vec<u8>),
    /// Send this signal to the agent's process.
    Signal(Signal),
    /// The agent is ready for its first prompt. Once, before any other event of the protocol.
    Ready {
        /// The agent's own id of the session, where its protocol has one.
        native_session_id: Option<String>,
    },
    /// Tell the host.
    Event(Event),
    /// The running turn is over; `stream:complete` or `stream:error` came before.
    TurnEnded,
    /// The agent cannot be used any further: the session ends with this error.
    Fail(WireError),
}

/// What an adapter is made from.
#[derive(Clone, Debug)]
pub struct AdapterSetup {
    /// The session, `cwd` filled in.
    pub config: AgentSessionConfig,
    /// Catalog id of the agent, for errors.
    pub agent: String,
    /// Whether a prompt sent while a turn runs steers it.
    pub steer_by_prompt: bool,
}

/// One protocol's state machine, for one session.
///
/// Every method appends what it wants done to `out`. None blocks, panics on hostile input, or keeps more than a bounded
/// amount of it.
pub trait Adapter: Send {
    /// Whether the agent has turns. One without is never busy and never sends [`Action::TurnEnded`].
    fn has_turns(&self) -> bool {
        true
    }

    /// The agent was started.
    fn start(&mut self, out: &mut Vec<Action>);

    /// The agent wrote this to its standard output. Boundaries mean nothing.
    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>);

    /// The agent wrote this to its standard error. Boundaries mean nothing.
    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>);

    /// Both outputs are at their end, or the agent is gone: give out what is half received, end what is open.
    fn finish(&mut self, out: &mut Vec<Action>);

    /// Begin a turn. Only while none runs.
    ///
    /// # Errors
    /// Where the agent cannot take it; the turn does not begin then.
    fn prompt(&mut self, text: &str, out: &mut Vec<Action>) -> Result<(), WireError>;

    /// Say this in the running turn.
    ///
    /// # Errors
    /// [`WireError::Unsupported`] where the agent cannot.
    fn steer(&mut self, text: &str, out: &mut Vec<Action>) -> Result<(), WireError>;

    /// Cancel the running turn; without one, nothing. The end of the turn is still the agent's to say.
    ///
    /// # Errors
    /// [`WireError::Unsupported`] where the agent cannot.
    fn abort(&mut self, out: &mut Vec<Action>) -> Result<(), WireError>;

    /// Answer an open permission request.
    ///
    /// # Errors
    /// [`WireError::UnknownPermission`], [`WireError::UnknownOption`].
    fn permission(&mut self, id: &str, answer: &PermissionAnswer, out: &mut Vec<Action>) -> Result<(), WireError>;
}

/// Makes an adapter.
///
/// # Errors
/// [`WireError::Unsupported`] names what the configuration asks for and the protocol cannot.
pub type Make = fn(AdapterSetup) -> Result<Box<dyn Adapter>, WireError>;

/// The protocols that a proxy speaks, by name.
#[derive(Clone, Debug)]
pub struct Adapters(Vec<(&'static str, Make)>);

impl Default for Adapters {
    /// The built-in ones.
    fn default() -> Self {
        Self(vec![("acp", crate::acp::make), ("command", crate::command::make)])
    }
}

impl Adapters {
    /// Adds a protocol, or replaces the one of that name.
    #[must_use]
    pub fn with(mut self, protocol: &'static str, make: Make) -> Self {
        self.0.retain(|(name, _)| *name != protocol);
        self.0.push((protocol, make));
        self
    }

    /// The maker of `protocol`'s adapters.
    pub fn get(&self, protocol: &str) -> Option<Make> {
        self.0.iter().find(|(name, _)| *name == protocol).map(|(_, make)| *make)
    }
}
