//! Containment of sessions: the layers asked for against the layers that the machine offers.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use ipc_protocol::{
    Containment, FileLayer, HiddenFiles, ProcessId, SessionId,
    message::{MissingFeature, ProbedFeature},
};
use registry::{CgroupControllers, ManagerCgroup, SweptCgroup, UnavailableFeature};
use tokio::sync::OnceCell;

use crate::{
    blocking::LOOKING,
    error::{Error, Result},
    fork_server::ForkServer,
    state::{RecoveredSession, RecoveryOutcome},
};

/// Containment that this machine offers to sessions, as tried by the manager; each missing layer has its reason.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// Containment of a session that asks for none.
    pub default: Containment,
    /// The directory of this manager's session groups.
    pub cgroup: Result<PathBuf, UnavailableFeature>,
    /// The controllers that session groups have; none where there are no groups.
    pub controllers: CgroupControllers,
    /// Reason why controllers are missing, where there are groups.
    pub lacking: Option<String>,
    /// PID and mount namespaces.
    pub strict: Result<(), UnavailableFeature>,
    /// The proc connector, which shows every process of a session; without it the proxies scan `/proc` periodically.
    pub connector: Result<(), UnavailableFeature>,
    /// A landlock scope, which keeps a session from signalling or ptracing processes outside.
    pub landlock: Result<(), UnavailableFeature>,
}

/// Resolves the containment that a session asks for.
#[derive(Debug)]
pub(crate) struct ContainmentResolver {
    default: Containment,
    /// `None` after a shutdown.
    groups: Mutex<Option<Arc<ManagerCgroup>>>,
    cgroup: Result<PathBuf, UnavailableFeature>,
    controllers: CgroupControllers,
    lacking: Option<String>,
    /// Files out of every session's reach.
    hidden: HiddenFiles,
    /// Results of attempts, made when first asked for in a process of the fork server's, so that the host gets no child.
    strict: OnceCell<Result<(), UnavailableFeature>>,
    connector: OnceCell<Result<(), UnavailableFeature>>,
}

/// Containment of one session, fully resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResolvedContainment {
    pub(crate) cgroup: Option<String>,
    pub(crate) strict: bool,
    pub(crate) hidden: HiddenFiles,
    /// Layer of a sandbox, for a session that has one.
    pub(crate) layer: FileLayer,
}

impl ContainmentResolver {
    /// Tries the cgroups. Blocks for some milliseconds.
    ///
    /// # Errors
    /// [`Error::ContainmentUnavailable`] if the default is a cgroup and cannot be had.
    pub(crate) fn probe(default: Containment, parent: Option<&Path>, host: ProcessId) -> Result<Self> {
        let groups = ManagerCgroup::create(parent, host).and_then(|groups| match groups.path().to_str() {
            Some(_) => Ok(groups),
            None => Err(UnavailableFeature {
                what: "a cgroup".into(),
                why: format!("its directory {:?} is not UTF-8", groups.path()),
                advice: "name another parent".into(),
            }),
        });
        match &groups {
            Ok(groups) => tracing::debug!(path = %groups.path().display(), "sessions can have a cgroup"),
            Err(error) => tracing::debug!(%error, "sessions have no cgroup"),
        }
        let controllers = groups.as_ref().map_or_else(|_| CgroupControllers::default(), ManagerCgroup::controllers);
        let lacking = groups.as_ref().ok().and_then(ManagerCgroup::lacking).map(str::to_owned);
        let cgroup = groups.as_ref().map(|groups| groups.path().to_owned()).map_err(Clone::clone);
        let containing = Self {
            default,
            groups: Mutex::new(groups.ok().map(Arc::new)),
            cgroup,
            controllers,
            lacking,
            hidden: HiddenFiles::default(),
            strict: OnceCell::new(),
            connector: OnceCell::new(),
        };
        if default == Containment::Cgroup {
            containing.require_cgroup(default)?;
        }
        Ok(containing)
    }

    /// Hides files from every session. Blocks for some milliseconds.
    pub(crate) fn with_hidden(self, hidden: Vec<String>) -> Self {
        let mut files = HiddenFiles { hidden, ..HiddenFiles::default() };
        if !files.is_empty() {
            // Where there is none no session starts, and says why.
            files.layer = registry::hiding_layer(&files).unwrap_or_default();
        }
        Self { hidden: files, ..self }
    }

    /// Tries the layers of the default that need the fork server.
    ///
    /// # Errors
    /// [`Error::ContainmentUnavailable`] if it cannot be had; those of [`ForkServer::probe`].
    pub(crate) async fn require_default(&self, server: &ForkServer) -> Result<()> {
        match self.default {
            Containment::Strict => self.require_strict(server).await,
            Containment::Auto | Containment::Baseline | Containment::Cgroup => Ok(()),
        }
    }

    /// The groups, for a caller that keeps their lock.
    pub(crate) fn groups(&self) -> Option<Arc<ManagerCgroup>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Releases the groups; the last owner to release them removes their directory.
    pub(crate) fn close(&self) {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(groups);
    }

    fn require_cgroup(&self, containment: Containment) -> Result<()> {
        self.cgroup.as_ref().map(|_| ()).map_err(|missing| unavailable(containment, missing))
    }

    async fn require_strict(&self, server: &ForkServer) -> Result<()> {
        let tried = self.try_strict(server).await?;
        tried.as_ref().map_err(|missing| unavailable(Containment::Strict, missing)).copied()
    }

    /// Tries strict containment once, which takes some milliseconds.
    ///
    /// # Errors
    /// Those of [`ForkServer::probe`].
    pub(crate) async fn try_strict(&self, server: &ForkServer) -> Result<&Result<(), UnavailableFeature>> {
        self.strict.get_or_try_init(|| try_feature(server, ProbedFeature::Strict)).await
    }

    /// Resolves the containment of `session`, which asks for `wanted` or takes the default.
    ///
    /// # Errors
    /// [`Error::ContainmentUnavailable`]; [`Error::ShutDown`]; those of [`ForkServer::probe`].
    pub(crate) async fn resolve(
        &self,
        wanted: Option<Containment>,
        session: &SessionId,
        server: &ForkServer,
    ) -> Result<ResolvedContainment> {
        let wanted = wanted.unwrap_or(self.default);
        let cgroup = match wanted {
            Containment::Baseline => None,
            Containment::Cgroup => {
                self.require_cgroup(wanted)?;
                self.group_of(session)?
            }
            Containment::Auto | Containment::Strict => self.group_of(session)?,
        };
        let strict = wanted == Containment::Strict;
        if strict {
            self.require_strict(server).await?;
        }
        Ok(ResolvedContainment { cgroup, strict, hidden: self.hidden.clone(), layer: FileLayer::Mounts })
    }

    /// Resolves the containment of `session`, which has a sandbox: strict, whose namespaces the sandbox is made of, else what it asks for
    /// with a sandbox by Landlock. `has_network` is true for a network of its own, for which Landlock is no substitute.
    ///
    /// # Errors
    /// As [`ContainmentResolver::resolve`].
    pub(crate) async fn resolve_sandbox(
        &self,
        wanted: Option<Containment>,
        has_network: bool,
        session: &SessionId,
        server: &ForkServer,
    ) -> Result<ResolvedContainment> {
        let strict = self.try_strict(server).await?.clone();
        let Err(no_namespace) = strict else {
            return self.resolve(Some(Containment::Strict), session, server).await;
        };
        // An explicit strict is one of the processes, too.
        if has_network || wanted == Some(Containment::Strict) {
            return Err(unavailable(Containment::Strict, &no_namespace));
        }
        let tried = LOOKING.run("trying landlock", registry::landlock_sandbox_is_available).await?;
        if let Err(no_landlock) = tried {
            let UnavailableFeature { what, why, advice } = no_namespace;
            let why = format!("{why}; and {} ({}) is not there either", no_landlock.what, no_landlock.why);
            let advice = format!("{advice}; or {}", no_landlock.advice);
            return Err(unavailable(Containment::Strict, &UnavailableFeature { what, why, advice }));
        }
        let weaker = wanted.unwrap_or(Containment::Auto);
        Ok(ResolvedContainment { layer: FileLayer::Landlock, ..self.resolve(Some(weaker), session, server).await? })
    }

    fn group_of(&self, session: &SessionId) -> Result<Option<String>> {
        if self.cgroup.is_err() {
            return Ok(None);
        }
        let groups = self.groups().ok_or(Error::ShutDown)?;
        Ok(groups.session(session).to_str().map(str::to_owned))
    }

    /// Ends the processes in the groups of dead managers.
    pub(crate) fn sweep(&self) -> Vec<RecoveredSession> {
        let Some(groups) = self.groups() else { return Vec::new() };
        // An empty directory that a manager failed to remove is not worth reporting.
        let swept = groups.sweep_stale().into_iter().filter(|swept| !swept.ended.is_empty() || swept.failure.is_some());
        let recovered = swept.map(|SweptCgroup { path, ended, left, failure }| RecoveredSession {
            session_id: None,
            found: path,
            outcome: RecoveryOutcome::Swept { ended, left, failure },
            supervisors: Vec::new(),
            damaged_lines: 0,
        });
        recovered.collect()
    }

    /// All capabilities of the machine. Takes some milliseconds the first time.
    ///
    /// # Errors
    /// Those of [`ForkServer::probe`].
    pub(crate) async fn capabilities(&self, server: &ForkServer) -> Result<Capabilities> {
        let strict = self.try_strict(server).await?.clone();
        let connector = self.connector.get_or_try_init(|| try_feature(server, ProbedFeature::Connector)).await?.clone();
        Ok(Capabilities {
            default: self.default,
            cgroup: self.cgroup.clone(),
            controllers: self.controllers,
            lacking: self.lacking.clone(),
            strict,
            connector,
            landlock: registry::landlock_scope_is_available(),
        })
    }
}

async fn try_feature(server: &ForkServer, feature: ProbedFeature) -> Result<Result<(), UnavailableFeature>> {
    let missing = |MissingFeature { what, why, advice }| UnavailableFeature { what, why, advice };
    Ok(server.probe(feature).await?.map_err(missing))
}

fn unavailable(containment: Containment, missing: &UnavailableFeature) -> Error {
    Error::ContainmentUnavailable { containment, reason: missing.to_string() }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::packet;

    use super::*;

    fn missing(what: &str) -> UnavailableFeature {
        UnavailableFeature { what: what.into(), why: "not here".into(), advice: "go elsewhere".into() }
    }

    /// As on a machine without cgroups, with or without namespaces.
    fn containing(default: Containment, strict: Result<(), UnavailableFeature>) -> ContainmentResolver {
        ContainmentResolver {
            default,
            groups: Mutex::default(),
            cgroup: Err(missing("a cgroup")),
            controllers: CgroupControllers::default(),
            lacking: None,
            hidden: HiddenFiles::default(),
            strict: OnceCell::new_with(Some(strict)),
            connector: OnceCell::new_with(Some(Ok(()))),
        }
    }

    #[tokio::test]
    async fn nothing_is_stepped_down_in_silence() {
        let session = SessionId::mint();
        // It has been asked.
        let (ours, _theirs) = packet::packet_pair().expect("a pair");
        let nobody = ProcessId { pid: 0, start_time: 0 };
        let (server, _hello) = ForkServer::connect(None, nobody, ours, std::future::pending()).expect("connected");
        let bare = containing(Containment::Auto, Err(missing("a PID namespace")));
        for weak in [None, Some(Containment::Auto), Some(Containment::Baseline)] {
            assert_eq!(
                bare.resolve(weak, &session, &server).await.expect("the baseline"),
                ResolvedContainment::default()
            );
        }
        for (strong, what) in [(Containment::Cgroup, "a cgroup"), (Containment::Strict, "a PID namespace")] {
            match bare.resolve(Some(strong), &session, &server).await {
                Err(Error::ContainmentUnavailable { containment, reason }) => {
                    assert_eq!(containment, strong);
                    assert!(reason.contains(what) && reason.contains("go elsewhere"), "{reason}");
                }
                other => panic!("{other:?}"),
            }
        }
        let spaced = containing(Containment::Strict, Ok(()));
        let strict = ResolvedContainment { strict: true, ..ResolvedContainment::default() };
        assert_eq!(spaced.resolve(None, &session, &server).await.expect("strict"), strict);
        assert_eq!(
            spaced.resolve(Some(Containment::Auto), &session, &server).await.expect("never strict"),
            ResolvedContainment::default()
        );
    }
}
