//! Work on the disk before the agent starts, and the clean-up after the start.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use agents::conversations::{ConversationBackup, ResumedConversation};
use ipc_protocol::SessionId;

use super::{HomePlace, LaunchAttempt, SessionLaunch};
use crate::{
    blocking::blocking,
    error::{Error, Result},
    homes::{HomeTenancy, SessionHomes, ShimDir},
    records::{ConversationRecord, ConversationRecords},
};

/// Clean-up of a start, whether it succeeded or failed.
#[derive(Debug, Default)]
pub(crate) struct StartAftermath {
    tenancy: Option<HomeTenancy>,
    /// Present while the session lives.
    shim_dir: Mutex<Option<ShimDir>>,
    backup: Option<ConversationBackup>,
    records: Arc<ConversationRecords>,
    /// Files in its home that hold a key.
    keys: Vec<PathBuf>,
    /// True if the session may outlive this manager.
    may_outlive_manager: bool,
}

/// End of a session that was launched, as its clean-up needs it.
#[derive(Debug)]
pub(crate) struct LaunchOutcome {
    pub(crate) session: SessionId,
    /// True if the session continues without this host.
    pub(crate) is_detached: bool,
    /// True if its agent never was ready.
    pub(crate) is_stillborn: bool,
    /// Conversation, if it has one.
    pub(crate) record: Option<ConversationRecord>,
}

impl SessionLaunch {
    /// Returns true if [`SessionLaunch::check_conversation_file`] or [`SessionLaunch::prepare_disk`] has anything to do.
    pub(crate) fn needs_disk(&self) -> bool {
        let resumed = self.resumed.as_ref().is_some_and(ResumedConversation::needs_disk);
        self.home_place != HomePlace::Shared || self.shim_dir.is_some() || resumed
    }

    /// Checks the file of the conversation. If it is broken, begins a new conversation where the configuration allows
    /// that. Blocks.
    ///
    /// # Errors
    /// [`Error::NativeSessionMissing`].
    pub(crate) fn check_conversation_file(mut self) -> Result<Self> {
        let Some(Err(damaged)) = self.resumed.as_ref().map(ResumedConversation::check_lines) else { return Ok(self) };
        let error = Error::from(damaged);
        let Some(anew) = self.fallback.take() else { return Err(error) };
        self.attempt = LaunchAttempt { restart_reason: Some(error.chain()), ..*anew };
        self.conversation.reset_to_new();
        Ok(self)
    }

    /// Creates the home and its files, and backs up what the agent might destroy. Blocks.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::DuplicateSession`]: nothing is
    /// left on the disk then.
    pub(crate) fn prepare_disk(
        &self,
        homes: &Arc<SessionHomes>,
        records: Arc<ConversationRecords>,
    ) -> Result<StartAftermath> {
        let id = self.id();
        let tenancy = match &self.home_place {
            HomePlace::Shared => None,
            HomePlace::Own => Some(homes.make(id)?),
            HomePlace::Inherited(home) => Some(homes.share(home, id)?),
        };
        if let Some(tenancy) = &tenancy {
            tenancy.write(&self.attempt.files, &self.attempt.keys)?;
            tenancy.copy(&self.home_copy, self.home_place == HomePlace::Own, &self.attempt.files)?;
        }
        let folder = self.shim_dir.as_ref().map(|path| ShimDir::make(path, &self.attempt.programs)).transpose()?;
        let backup = match &self.resumed {
            Some(resumed) => resumed.back_up(&homes.directory()?, id)?,
            None => None,
        };
        let keys = self.attempt.keys.clone();
        let outlives = self.detach.is_some();
        Ok(StartAftermath {
            tenancy,
            shim_dir: Mutex::new(folder),
            backup,
            records,
            keys,
            may_outlive_manager: outlives,
        })
    }
}

impl StartAftermath {
    /// Creates an aftermath with nothing to clean up.
    pub(crate) fn new(records: Arc<ConversationRecords>) -> Self {
        Self { records, ..Self::default() }
    }

    /// Rebuilds the aftermath of a session that an earlier manager started: its own home if any, the keys in it, its
    /// folder and its backup. Blocks.
    pub(crate) fn adopted(
        records: Arc<ConversationRecords>,
        homes: &Arc<SessionHomes>,
        session: &SessionId,
        home: Option<&Path>,
        keys: Vec<PathBuf>,
    ) -> Self {
        let tenancy = home.and_then(|home| match homes.share(home, session) {
            Ok(tenancy) => Some(tenancy),
            Err(error) => {
                tracing::warn!(%session, error = %error.chain(), "failed to find a session's home");
                None
            }
        });
        if let Some(tenancy) = &tenancy {
            tenancy.retain();
            tenancy.add_keys(&keys);
        }
        let folder =
            ShimDir::path(homes, session).ok().filter(|folder| folder.exists()).map(ShimDir::of_earlier_manager);
        let backup = homes.directory().ok().and_then(|place| ConversationBackup::left(&place, session));
        let this = Self { tenancy, shim_dir: Mutex::new(folder), backup, records, keys, may_outlive_manager: true };
        this.persist();
        this
    }

    fn lock_shim_dir(&self) -> MutexGuard<'_, Option<ShimDir>> {
        self.shim_dir.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a proxy is requested. If its session may outlive this manager, everything made for it stays from
    /// now on, until its outcome is known.
    pub(crate) fn persist(&self) {
        if !self.may_outlive_manager {
            return;
        }
        self.tenancy.iter().for_each(HomeTenancy::persist);
        self.lock_shim_dir().iter_mut().for_each(ShimDir::persist);
        self.backup.iter().for_each(ConversationBackup::stay);
    }

    /// Records the conversation of a session whose agent is ready.
    pub(crate) async fn record_conversation(&self, session: &SessionId, record: Option<ConversationRecord>) {
        let record = record.map(|record| ConversationRecord { keys: self.keys.clone(), ..record });
        self.records.record_session(session, record).await;
    }

    /// Keeps the home and drops the backup, since the agent is ready.
    pub(crate) async fn started(self: &Arc<Self>) {
        self.settle_backup().await;
        // Last: a start that is dropped before leaves no home.
        if let Some(tenancy) = &self.tenancy {
            tenancy.retain();
        }
    }

    async fn settle_backup(self: &Arc<Self>) {
        if self.backup.is_some() {
            self.clear_up(|this| this.backup.iter().for_each(ConversationBackup::discard)).await;
        }
    }

    /// Cleans up after the session's end.
    pub(crate) async fn ended(self: &Arc<Self>, outcome: LaunchOutcome) {
        if outcome.is_detached {
            return;
        }
        let folder = self.lock_shim_dir().take();
        if let Some(folder) = folder {
            self.clear_up(|_| folder.remove()).await;
        }
        if outcome.is_stillborn {
            self.failed(&outcome).await;
        } else {
            self.settle_backup().await;
            if self.tenancy.is_some() {
                self.clear_up(|this| this.tenancy.iter().for_each(HomeTenancy::release_keys)).await;
            }
            // The agent may have switched to another conversation.
            self.records.record_session(&outcome.session, outcome.record).await;
        }
    }

    /// Removes everything made for a session whose task did not begin, while its id is still reserved. (Elsewhere, what is
    /// not cleaned up goes where this is dropped: in the thread that made it if nobody waits for the start any more, else
    /// only with the runtime.)
    pub(crate) async fn dropped(self: Arc<Self>) {
        if let Err(error) = blocking("clearing up after a start", move || drop(self)).await {
            tracing::warn!(error = %error.chain(), "failed to clean up after a start");
        }
    }

    /// Removes everything made for a session that ended without starting. A session that was detached from this host is
    /// left alone.
    pub(crate) async fn failed(self: &Arc<Self>, outcome: &LaunchOutcome) {
        if outcome.is_detached || (self.tenancy.is_none() && self.backup.is_none()) {
            return;
        }
        self.clear_up(|this| {
            this.restore_backup();
            this.tenancy.iter().for_each(HomeTenancy::discard);
        })
        .await;
    }

    async fn clear_up(self: &Arc<Self>, work: impl FnOnce(&Self) + Send + 'static) {
        let this = self.clone();
        if let Err(error) = blocking("clearing up after a start", move || work(&this)).await {
            tracing::warn!(error = %error.chain(), "failed to clean up after a start");
        }
    }

    /// Restores what the dead agent destroyed when it failed to load its conversation. Blocks.
    pub(crate) fn restore_backup(&self) {
        self.backup.iter().for_each(ConversationBackup::restore);
    }

    /// Writes the files of a second attempt. Blocks.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn write(&self, attempt: &LaunchAttempt) -> Result<()> {
        match &self.tenancy {
            Some(tenancy) => tenancy.write(&attempt.files, &attempt.keys),
            None => Ok(()),
        }
    }
}
