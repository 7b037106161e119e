//! Adapter that turns each line of its agent into many events. The bench then measures the path from the proxy to
//! the subscriber, not the agent's output. The proxy slows this agent down as it does any other: by not reading on.

use agents::{Action, Adapter, AdapterSetup};
use ipc_protocol::{Event, Prompt, WireError};

use crate::text::NumberedTexts;

/// Name of the protocol.
pub(crate) const PROTOCOL: &str = "flood";

/// Events per line of the agent.
const BURST: u64 = 500;
/// Bytes of such a line: long, so that one read never contains many.
pub(crate) const LINE: usize = 8 * 1024;

/// Adapter whose prompts are numbers of events.
#[derive(Debug)]
struct FloodAdapter {
    agent: String,
    texts: NumberedTexts,
    asked: u64,
}

/// Creates the adapter.
///
/// # Errors
/// None.
pub(crate) fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    Ok(Box::new(FloodAdapter { agent: setup.agent, texts: NumberedTexts::plain(), asked: 0 }))
}

impl Adapter for FloodAdapter {
    fn agent(&self) -> &str {
        &self.agent
    }

    fn has_turns(&self) -> bool {
        false
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        out.push(Action::Ready { native_session_id: None });
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let end = (self.texts.taken() + lines * BURST).min(self.asked);
        while self.texts.taken() < end {
            let text = self.texts.take(|text| String::from_utf8_lossy(text).into_owned());
            out.push(Action::Event(Event::Text { text }));
        }
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        out.push(Action::Event(Event::Log { stream: "stderr".into(), text }));
    }

    fn finish(&mut self, _: &mut Vec<Action>) {}

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        let text = prompt.text();
        self.asked = text.parse().map_err(|_| self.unsupported(&format!("send {text:?} events")))?;
        self.texts = NumberedTexts::plain();
        out.push(Action::Write(format!("{}\n", self.asked.div_ceil(BURST)).into_bytes()));
        Ok(())
    }
}
