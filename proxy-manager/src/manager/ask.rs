//! Questions that start a session of their own.

use ipc_protocol::{AgentSessionConfig, EndReason, KillOptions, PermissionAnswer, Prompt, SessionId};

use super::{ProxyManager, SessionHandle, start::EndIfDropped};
use crate::{
    answer::Answer,
    ask::{Quiet, StreamHandler, StreamOptions, TurnStream},
    error::{Error, Result},
    session::PromptMode,
};

impl TurnStream {
    /// Sends the prompt.
    ///
    /// # Errors
    /// As [`SessionHandle::prompt`], when the prompt was not accepted.
    pub async fn prompt(session: SessionHandle, prompt: Prompt, mode: PromptMode) -> Result<Self> {
        Self::send(session.session().clone(), prompt, mode).await
    }

    /// Sends the prompt to a session, and resumes that session first if necessary.
    ///
    /// # Errors
    /// An error of the manager, when the prompt was not accepted.
    pub async fn resuming(manager: &ProxyManager, id: &SessionId, prompt: Prompt, mode: PromptMode) -> Result<Self> {
        let before = manager.session(id)?;
        let seen = before.info().last_offset;
        let events = before.subscribe_from(seen);
        let turn = manager.send_prompt(id, prompt, mode).await?;
        // The session is another one if it was resumed.
        Ok(Self::of(manager.session(id)?.session().clone(), events, seen, turn))
    }
}

impl ProxyManager {
    /// Starts a session, sends it the prompt, waits for the answer, and ends the session; the answer's receipt proves
    /// that nothing is left. Dropping this future ends the session too. A session with a key (`Lifecycle::key`) is not
    /// ended: the same key asks it again.
    ///
    /// # Errors
    /// See [`ProxyManager::start_session`] and [`SessionHandle::ask`]; [`Error::Survivors`] if something of the session
    /// is left.
    pub async fn ask(&self, config: AgentSessionConfig, prompt: impl Into<Prompt>) -> Result<Answer> {
        self.ask_with(config, prompt, &mut Quiet, StreamOptions::default()).await
    }

    /// Asks like [`ProxyManager::ask`], and notifies `handler` while the answer grows.
    ///
    /// # Errors
    /// As [`ProxyManager::ask`].
    pub async fn ask_with<H: StreamHandler>(
        &self,
        config: AgentSessionConfig,
        prompt: impl Into<Prompt>,
        handler: &mut H,
        mut options: StreamOptions,
    ) -> Result<Answer> {
        // Without an answer the turn would wait for ever.
        options.unanswered.get_or_insert(PermissionAnswer::Deny);
        // A session with a key may be older than this question, and serves later ones too.
        let keep = options.keep || config.lifecycle.key.is_some();
        let session = self.start_session(config).await?;
        if keep {
            return session.stream_with(prompt, handler, options).await;
        }
        let abandoned = EndIfDropped(Some((session.session(), EndReason::Killed)));
        let answered = session.stream_with(prompt, handler, options).await;
        let killed = session.session().kill(KillOptions::default(), EndReason::Killed).await;
        abandoned.disarm();
        if let Err(Error::Survivors(receipt)) = killed {
            return Err(Error::Survivors(receipt));
        }
        let mut answer = answered?;
        answer.receipt = Some(Box::new(killed?));
        Ok(answer)
    }
}
