//! The thinnest child binary: a fork server when a manager starts it, else nothing. It has one adapter more.

use agents::{Action, Adapter, AdapterSetup, Adapters, ListedFile};
use ipc_protocol::{Event, Prompt, WireError};

fn main() {
    proxy_child::run_if_child_with(&Adapters::default().with("lister", make));
}

/// Lists the files of its directory again and again, and reports their number.
#[derive(Debug)]
struct Lister {
    directory: String,
}

fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>, WireError> {
    Ok(Box::new(Lister { directory: setup.config.cwd.unwrap_or_default() }))
}

impl Lister {
    fn list(&self, out: &mut Vec<Action>) {
        out.push(Action::List { id: 1, directory: self.directory.clone(), suffix: ".jsonl" });
    }
}

impl Adapter for Lister {
    fn agent(&self) -> &str {
        "lister"
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        out.push(Action::Ready { native_session_id: None });
        self.list(out);
    }

    fn stdout(&mut self, _: &[u8], _: &mut Vec<Action>) {}

    fn stderr(&mut self, _: &[u8], _: &mut Vec<Action>) {}

    fn finish(&mut self, _: &mut Vec<Action>) {}

    fn listed(&mut self, _: u64, files: Vec<ListedFile>, out: &mut Vec<Action>) {
        out.push(Action::Event(Event::Text { text: format!("{} files", files.len()) }));
        self.list(out);
    }

    fn prompt(&mut self, _: &Prompt, _: &mut Vec<Action>) -> Result<(), WireError> {
        Err(self.unsupported("take a prompt"))
    }
}
