//! Work on the disk before the agent starts, and the clean-up after the start.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use agents::conversations::{ConversationBackup, ResumedConversation};
use ipc_protocol::SessionId;

use super::{Attempt, Launch, Place};
use crate::{
    blocking::blocking,
    error::{Error, Result},
    homes::{Folder, Homes, Tenancy},
    records::{Record, Records},
};

/// Clean-up of a start, whether it succeeded or failed.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    tenancy: Option<Tenancy>,
    /// Present while the session lives.
    folder: Mutex<Option<Folder>>,
    backup: Option<ConversationBackup>,
    records: Arc<Records>,
    /// Files in its home that hold a key.
    keys: Vec<PathBuf>,
    /// True if the session may outlive this manager.
    outlives: bool,
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
    pub(crate) record: Option<Record>,
}

impl Launch {
    /// Returns true if [`Launch::with_whole_conversation`] or [`Launch::make_ready`] has anything to do.
    pub(crate) fn needs_disk(&self) -> bool {
        let resumed = self.resumed.as_ref().is_some_and(ResumedConversation::needs_disk);
        self.place != Place::Shared || self.folder.is_some() || resumed
    }

    /// Checks the file of the conversation. If it is broken, begins a new conversation where the configuration allows
    /// that. Blocks.
    ///
    /// # Errors
    /// [`Error::NativeSessionMissing`](crate::Error::NativeSessionMissing).
    pub(crate) fn with_whole_conversation(mut self) -> Result<Self> {
        let Some(Err(damaged)) = self.resumed.as_ref().map(ResumedConversation::check_lines) else { return Ok(self) };
        let error = Error::from(damaged);
        let Some(anew) = self.fallback.take() else { return Err(error) };
        self.attempt = Attempt { anew: Some(error.chain()), ..*anew };
        self.conversation.begins_anew();
        Ok(self)
    }

    /// Creates the home and its files, and backs up what the agent might destroy. Blocks.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System), [`Error::DuplicateSession`](crate::Error::DuplicateSession): nothing is
    /// left on the disk then.
    pub(crate) fn make_ready(&self, homes: &Arc<Homes>, records: Arc<Records>) -> Result<Aftermath> {
        let id = self.id();
        let tenancy = match &self.place {
            Place::Shared => None,
            Place::Own => Some(homes.make(id)?),
            Place::Of(home) => Some(homes.share(home, id)?),
        };
        if let Some(tenancy) = &tenancy {
            tenancy.write(&self.attempt.files, &self.attempt.keys)?;
        }
        let folder = self.folder.as_ref().map(|path| Folder::make(path, &self.attempt.programs)).transpose()?;
        let backup = match &self.resumed {
            Some(resumed) => resumed.back_up(&homes.directory()?, id)?,
            None => None,
        };
        let keys = self.attempt.keys.clone();
        let outlives = self.detach.is_some();
        Ok(Aftermath { tenancy, folder: Mutex::new(folder), backup, records, keys, outlives })
    }
}

impl Aftermath {
    /// Creates an aftermath with nothing to clean up.
    pub(crate) fn new(records: Arc<Records>) -> Self {
        Self { records, ..Self::default() }
    }

    /// Rebuilds the aftermath of a session that an earlier manager started: its own home if any, the keys in it, its
    /// folder and its backup. Blocks.
    pub(crate) fn adopted(
        records: Arc<Records>,
        homes: &Arc<Homes>,
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
            tenancy.keep();
            tenancy.has_keys(&keys);
        }
        let folder = Folder::path(homes, session).ok().filter(|folder| folder.exists()).map(Folder::left);
        let backup = homes.directory().ok().and_then(|place| ConversationBackup::left(&place, session));
        let this = Self { tenancy, folder: Mutex::new(folder), backup, records, keys, outlives: true };
        this.given();
        this
    }

    fn folder(&self) -> MutexGuard<'_, Option<Folder>> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a proxy is requested. If its session may outlive this manager, everything made for it stays from
    /// now on, until its outcome is known.
    pub(crate) fn given(&self) {
        if !self.outlives {
            return;
        }
        self.tenancy.iter().for_each(Tenancy::stay);
        self.folder().iter_mut().for_each(Folder::stay);
        self.backup.iter().for_each(ConversationBackup::stay);
    }

    /// Records the conversation of a session whose agent is ready.
    pub(crate) async fn note(&self, session: &SessionId, record: Option<Record>) {
        let record = record.map(|record| Record { keys: self.keys.clone(), ..record });
        self.records.note(session, record).await;
    }

    /// Keeps the home and drops the backup, since the agent is ready.
    pub(crate) async fn started(self: &Arc<Self>) {
        if let Some(tenancy) = &self.tenancy {
            tenancy.keep();
        }
        self.settle_backup().await;
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
        let folder = self.folder().take();
        if let Some(folder) = folder {
            self.clear_up(|_| folder.remove()).await;
        }
        if outcome.is_stillborn {
            self.failed(&outcome).await;
        } else {
            self.settle_backup().await;
            if self.tenancy.is_some() {
                self.clear_up(|this| this.tenancy.iter().for_each(Tenancy::leave)).await;
            }
            // The agent may have switched to another conversation.
            self.records.note(&outcome.session, outcome.record).await;
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
            this.load_failed();
            this.tenancy.iter().for_each(Tenancy::discard);
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
    pub(crate) fn load_failed(&self) {
        self.backup.iter().for_each(ConversationBackup::restore);
    }

    /// Writes the files of a second attempt. Blocks.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System).
    pub(crate) fn write(&self, attempt: &Attempt) -> Result<()> {
        match &self.tenancy {
            Some(tenancy) => tenancy.write(&attempt.files, &attempt.keys),
            None => Ok(()),
        }
    }
}
