//! Questions that start a session of their own.

use ipc_protocol::{AgentSessionConfig, EndReason, KillOptions, PermissionAnswer, Prompt};

use super::{ProxyManager, SessionHandle, start::EndIfDropped};
use crate::{
    answer::Answer,
    ask::{SilentHandler, StreamHandler, StreamOptions, TurnStream},
    error::{Error, Result},
    runtime,
    session::Turn,
};

impl TurnStream {
    /// Follows the turn of the prompt that `send` sends to the session, and perhaps resumes the session for.
    ///
    /// # Errors
    /// Those of `send`, when the prompt was not accepted.
    ///
    /// # Cancel safety
    /// As the prompt that is sent.
    pub async fn follow(session: SessionHandle, send: impl Future<Output = Result<Turn>>) -> Result<Self> {
        runtime::require()?;
        Self::of(session.session().clone(), send).await
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
    ///
    /// # Cancel safety
    /// Dropping the future ends the session, unless it has a key.
    pub async fn ask(&self, config: AgentSessionConfig, prompt: impl Into<Prompt>) -> Result<Answer> {
        self.ask_with(config, prompt, &mut SilentHandler, StreamOptions::default()).await
    }

    /// Asks like [`ProxyManager::ask`], and notifies `handler` while the answer grows.
    ///
    /// # Errors
    /// As [`ProxyManager::ask`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the session, unless it has a key.
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
        let killed = session.kill(KillOptions::default()).await;
        abandoned.disarm();
        if let Err(Error::Survivors(receipt)) = killed {
            return Err(Error::Survivors(receipt));
        }
        let mut answer = answered?;
        answer.receipt = Some(Box::new(killed?));
        Ok(answer)
    }
}
