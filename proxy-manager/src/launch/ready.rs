//! What is made on disk before the agent starts, and put in order when it has started or has not.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use ipc_protocol::SessionId;

use super::{Attempt, Backup, Launch, Place};
use crate::{
    Result,
    blocking::blocking,
    homes::{Folder, Homes, Tenancy},
    records::Records,
    session::Session,
};

/// What a start leaves to be done, whichever way it went.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    tenancy: Option<Tenancy>,
    /// While the session lives.
    folder: Mutex<Option<Folder>>,
    backup: Option<Backup>,
    records: Arc<Records>,
    /// Files in its home that hold a key.
    keys: Vec<PathBuf>,
    /// Whether the session may outlive this manager.
    outlives: bool,
    /// Since it is ready, if it does.
    staying: Mutex<Option<Staying>>,
}

/// What outlives this manager with its session, and goes with that.
#[derive(Debug)]
struct Staying {
    homes: Arc<Homes>,
    home: Option<PathBuf>,
    keys: Vec<PathBuf>,
    folder: Option<PathBuf>,
}

impl Staying {
    /// The session is over. Blocks.
    fn remove(&self) {
        if let Some(home) = &self.home {
            self.homes.forget_keys(home, &self.keys);
        }
        self.folder.iter().for_each(|folder| Folder::remove(folder));
    }
}

impl Launch {
    /// Whether [`Launch::make_ready`] has anything to do.
    pub(crate) fn needs_disk(&self) -> bool {
        self.place != Place::Shared || self.backup.is_some() || self.folder.is_some()
    }

    /// Makes the home and what is in it, and saves what the agent might destroy. Blocks.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System), [`Error::DuplicateSession`](crate::Error::DuplicateSession): nothing is left
    /// then.
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
        let backup = self.backup.as_ref().map(|plan| plan.save(&homes.directory()?, id)).transpose()?.flatten();
        let keys = self.attempt.keys.clone();
        let (outlives, staying) = (self.detach.is_some(), Mutex::default());
        // What it needs is known when it is ready.
        if outlives {
            let (homes, keys) = (homes.clone(), keys.clone());
            *staying.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Staying { homes, home: None, keys, folder: None });
        }
        Ok(Aftermath { tenancy, folder: Mutex::new(folder), backup, records, keys, outlives, staying })
    }
}

impl Aftermath {
    /// With nothing made.
    pub(crate) fn new(records: Arc<Records>) -> Self {
        Self { records, ..Self::default() }
    }

    /// Of a session that an earlier manager started: its home, if it has one of its own, and what keys that had written there.
    pub(crate) fn adopted(
        records: Arc<Records>,
        homes: Arc<Homes>,
        session: &SessionId,
        home: Option<PathBuf>,
    ) -> Self {
        let keys = records.read(session).map(|record| record.keys).unwrap_or_default();
        let folder = Folder::path(&homes, session).ok().filter(|folder| folder.exists());
        let staying = Mutex::new(Some(Staying { homes, home, keys: keys.clone(), folder }));
        Self { records, keys, outlives: true, staying, ..Self::default() }
    }

    /// The agent is ready: its home is the session's, nothing has to be brought back, and its conversation is known.
    pub(crate) async fn started(self: &Arc<Self>, session: &Session) {
        if let Some(tenancy) = &self.tenancy {
            tenancy.keep();
        }
        if let Some(staying) = &mut *self.staying.lock().unwrap_or_else(PoisonError::into_inner) {
            staying.home = self.tenancy.as_ref().map(Tenancy::stay);
            let folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner).take();
            staying.folder = folder.map(Folder::stay);
        }
        if self.backup.is_some() {
            self.clear_up(|this| this.backup.iter().for_each(Backup::drop_it)).await;
        }
        self.records.note(session, &self.keys).await;
    }

    /// The session is over.
    pub(crate) async fn ended(self: &Arc<Self>, session: &Session) {
        if self.outlives {
            let staying = self.staying.lock().unwrap_or_else(PoisonError::into_inner).take();
            if session.is_let_go() {
                return;
            }
            if let Some(staying) = staying {
                self.clear_up(move |_| staying.remove()).await;
            }
        }
        let folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner).take();
        if folder.is_some() {
            self.clear_up(|_| drop(folder)).await;
        }
        if session.is_stillborn() {
            self.failed().await;
        } else {
            if self.tenancy.is_some() {
                self.clear_up(|this| this.tenancy.iter().for_each(Tenancy::leave)).await;
            }
            // Its agent may have gone over to another conversation.
            self.records.note(session, &[]).await;
        }
    }

    /// The session did not start, and is over: as if it never had been.
    pub(crate) async fn failed(self: &Arc<Self>) {
        if self.tenancy.is_none() && self.backup.is_none() {
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
            tracing::warn!(%error, "a start leaves something behind");
        }
    }

    /// The agent could not load its conversation, and is dead: what it destroyed is brought back. Blocks.
    pub(crate) fn load_failed(&self) {
        self.backup.iter().for_each(Backup::restore);
    }

    /// Writes what a second try needs. Blocks.
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
