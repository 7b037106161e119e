//! Prompts that the editor has sent, and what became of each.

use std::collections::HashMap;

use ipc_protocol::SessionId;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Member of a prompt's metadata by which the events of its turn are known as the editor's.
const TOKEN: &str = "editorPrompt";

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TurnOutcome {
    /// By itself, for this reason.
    Ended(&'static str),
    /// By an error.
    Failed(String),
}

/// What became of a prompt so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PromptStage {
    /// On its way.
    Sent,
    /// Waits for its turn, or begins it.
    Queued {
        /// Offset of the event that it is.
        offset: u64,
    },
    /// Its turn runs.
    Running,
    /// Its turn has ended, or will never begin.
    Ended(TurnOutcome),
}

/// The editor's prompts of a session that are not answered yet, by their tokens.
#[derive(Debug, Default)]
pub(super) struct PromptTable {
    prompts: HashMap<String, PromptStage>,
    /// Why the session has no more turns.
    closed: Option<String>,
}

impl PromptTable {
    pub(super) fn has(&self, token: &str) -> bool {
        self.prompts.contains_key(token)
    }

    /// Notes what became of a prompt. One that nobody waits for is not noted.
    pub(super) fn set(&mut self, token: &str, stage: PromptStage) {
        self.prompts.entry(token.to_owned()).and_modify(|known| *known = stage);
    }

    /// Notes the failure of a prompt that waits, by the name of its action. Returns false if it is none of these.
    pub(super) fn fail_queued(&mut self, action: &str, error: &str) -> bool {
        let is_meant = |stage: &&mut PromptStage| matches!(stage, PromptStage::Queued { offset } if action.ends_with(&format!(" {offset:020}")));
        let queued = self.prompts.values_mut().find(is_meant);
        queued.map(|stage| *stage = PromptStage::Ended(TurnOutcome::Failed(error.to_owned()))).is_some()
    }

    /// Returns the offsets of the prompts that wait.
    pub(super) fn queued(&self) -> Vec<u64> {
        let offset =
            |stage: &PromptStage| if let PromptStage::Queued { offset } = stage { Some(*offset) } else { None };
        self.prompts.values().filter_map(offset).collect()
    }

    /// Says whether the session's events are still to tell what became of a prompt that was sent.
    pub(super) fn has_sent(&self) -> bool {
        self.prompts.values().any(|stage| *stage == PromptStage::Sent)
    }

    /// Notes that all prompts have failed.
    pub(super) fn fail_all(&mut self, why: &str) {
        for stage in self.prompts.values_mut().filter(|stage| !matches!(stage, PromptStage::Ended(_))) {
            *stage = PromptStage::Ended(TurnOutcome::Failed(why.to_owned()));
        }
    }

    /// Notes that the session has no more turns.
    pub(super) fn close(&mut self, why: String) {
        self.fail_all(&why);
        self.closed = Some(why);
    }

    /// Notes that the session is followed, and may have turns.
    pub(super) fn open(&mut self) {
        self.closed = None;
    }
}

/// Returns the token of the prompt that an event is of.
pub(super) fn token_of(event: &Value) -> Option<&str> {
    event["metadata"][TOKEN].as_str()
}

/// Prompt of the editor's that waits for its end.
pub(super) struct SentPrompt {
    token: String,
    prompts: watch::Sender<PromptTable>,
    stages: watch::Receiver<PromptTable>,
}

impl SentPrompt {
    /// Notes a prompt that is about to be sent.
    pub(super) fn new(prompts: &watch::Sender<PromptTable>) -> Self {
        let token = SessionId::mint().to_string();
        prompts.send_modify(|prompts| {
            let stage =
                prompts.closed.clone().map_or(PromptStage::Sent, |why| PromptStage::Ended(TurnOutcome::Failed(why)));
            prompts.prompts.insert(token.clone(), stage);
        });
        Self { token, prompts: prompts.clone(), stages: prompts.subscribe() }
    }

    /// Metadata to send it with.
    pub(super) fn metadata(&self) -> Value {
        json!({ TOKEN: self.token })
    }

    /// Returns what became of it so far.
    pub(super) fn stage(&mut self) -> PromptStage {
        self.stages.borrow_and_update().prompts.get(&self.token).cloned().unwrap_or(PromptStage::Sent)
    }

    /// Waits until something becomes of one of the prompts.
    pub(super) async fn changed(&mut self) {
        // This has a sender itself.
        let _ = self.stages.changed().await;
    }
}

impl Drop for SentPrompt {
    fn drop(&mut self) {
        self.prompts.send_modify(|prompts| _ = prompts.prompts.remove(&self.token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_stages_until_nobody_waits() {
        let prompts = watch::Sender::new(PromptTable::default());
        let (mut first, mut second) = (SentPrompt::new(&prompts), SentPrompt::new(&prompts));
        assert_eq!(first.stage(), PromptStage::Sent);
        let event = |prompt: &SentPrompt| json!({ "metadata": prompt.metadata() });
        let token = token_of(&event(&first)).expect("a token").to_owned();
        prompts.send_modify(|prompts| prompts.set(&token, PromptStage::Queued { offset: 7 }));
        assert_eq!((first.stage(), second.stage()), (PromptStage::Queued { offset: 7 }, PromptStage::Sent));
        let failed = |error: &str| PromptStage::Ended(TurnOutcome::Failed(error.to_owned()));
        let fails = |action: &str| prompts.send_if_modified(|prompts| prompts.fail_queued(action, "dropped"));
        assert!(!fails("agent:action:prompt:called at 00000000000000000017"));
        assert!(fails("agent:action:prompt:called at 00000000000000000007"));
        prompts.send_modify(|prompts| prompts.close("over".to_owned()));
        assert_eq!((first.stage(), second.stage()), (failed("dropped"), failed("over")));
        assert_eq!(SentPrompt::new(&prompts).stage(), failed("over"), "no more turns");
        prompts.send_modify(PromptTable::open);
        assert_eq!(SentPrompt::new(&prompts).stage(), PromptStage::Sent);
        drop((first, second));
        prompts.send_modify(|prompts| prompts.set(&token, PromptStage::Running));
        assert!(!prompts.borrow().has(&token));
    }
}
