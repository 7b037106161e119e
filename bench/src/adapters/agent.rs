//! Agent as seen by its adapter: gives the required answers, and then the given output.

use std::collections::BTreeMap;

use agents::{Action, Adapter, AdapterSetup, HttpEvent, HttpPatience, HttpRequest};
use ipc_protocol::AgentSessionConfig;

use super::protocols::BenchProtocol;
use crate::error::{Error, Result};

/// Adapter with a running turn.
pub(super) struct BenchAgent {
    adapter: Box<dyn Adapter>,
    /// Request of the event stream, for an agent that speaks HTTP.
    stream: Option<u64>,
    actions: Vec<Action>,
}

impl BenchAgent {
    /// Starts the adapter and sends it a prompt.
    ///
    /// # Errors
    /// When the adapter does not get ready.
    pub(super) fn start(protocol: &BenchProtocol) -> Result<Self> {
        let setup = AdapterSetup {
            config: AgentSessionConfig { cwd: Some("/srv/example".into()), ..AgentSessionConfig::new(protocol.name) },
            agent: protocol.name.to_owned(),
            protocol_config: serde_json::Value::Null,
            fresh_id: "0193a5a8-0000-7000-8000-000000000000".to_owned(),
            resume: None,
            endpoint: None,
            directories: BTreeMap::new(),
        };
        let refused = |error| Error::answer(protocol.name, format!("cannot be used: {error}"));
        let mut agent = Self { adapter: (protocol.make)(setup).map_err(refused)?, stream: None, actions: Vec::new() };
        agent.adapter.start(&mut agent.actions);
        agent.adapter.stdout(protocol.greeting.as_bytes(), &mut agent.actions);
        if !agent.answer(protocol) {
            return Err(Error::answer(protocol.name, "does not get ready"));
        }
        agent.adapter.prompt(&"why does the test fail?".into(), &mut agent.actions).map_err(refused)?;
        agent.answer(protocol);
        for line in protocol.opening {
            agent.says(line.as_bytes());
        }
        Ok(agent)
    }

    /// Passes output of the agent to the adapter. Returns the adapter's actions.
    pub(super) fn says(&mut self, bytes: &[u8]) -> &[Action] {
        self.actions.clear();
        match self.stream {
            Some(stream) => self.adapter.http(stream, HttpEvent::Body(bytes), &mut self.actions),
            None => self.adapter.stdout(bytes, &mut self.actions),
        }
        &self.actions
    }

    /// Answers all requests of the adapter. Returns true if it became ready.
    fn answer(&mut self, protocol: &BenchProtocol) -> bool {
        let mut ready = false;
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Ready { .. } => ready = true,
                    Action::Write(line) => self.answer_line(protocol, &line),
                    Action::Http(request) => self.answer_request(protocol, &request),
                    _ => {}
                }
            }
        }
        ready
    }

    fn answer_line(&mut self, protocol: &BenchProtocol, line: &[u8]) {
        let answer = serde_json::from_slice(line).ok().and_then(|line| (protocol.answer)(&line));
        if let Some(answer) = answer {
            self.adapter.stdout(format!("{answer}\n").as_bytes(), &mut self.actions);
        }
    }

    fn answer_request(&mut self, protocol: &BenchProtocol, request: &HttpRequest) {
        let Self { adapter, stream, actions } = self;
        let mut tell = |event| adapter.http(request.id, event, actions);
        tell(HttpEvent::Head(200));
        if request.patience == HttpPatience::Stream {
            tell(HttpEvent::Body(b"data: {\"id\":\"evt_1\",\"type\":\"server.connected\",\"properties\":{}}\n\n"));
            *stream = Some(request.id);
            return;
        }
        let answer = (protocol.answer)(&serde_json::Value::Null).unwrap_or_default().to_string();
        tell(HttpEvent::Body(answer.as_bytes()));
        tell(HttpEvent::End);
    }
}
