//! A host with a state directory, and what is looked at in it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use proxy_child::ChildToken;
use proxy_manager::{AgentSpec, Builder, Child, EnvVars, ProxyManager};

use crate::{
    error::{Error, Result},
    flood, programs,
    stats::mean_kib,
};

/// Between two looks at the host's memory.
const LOOK: Duration = Duration::from_millis(50);

/// A manager whose state directory goes with it.
pub(super) struct Host {
    pub(super) manager: ProxyManager,
    _state: tempfile::TempDir,
}

impl Host {
    /// # Errors
    /// When there is no manager to be had.
    pub(super) async fn new(token: ChildToken) -> Result<Self> {
        let state = tempfile::tempdir().map_err(Error::system("making a state directory"))?;
        let builder = builder(token, &state.path().join("state"))?;
        Ok(Self { manager: builder.build().await?, _state: state })
    }
}

/// A manager with this state directory.
///
/// # Errors
/// When its agent is not to be had.
pub(super) fn builder(token: ChildToken, state: &Path) -> Result<Builder> {
    let path = std::env::var("PATH").unwrap_or_default();
    let argv = programs::lines_argv(flood::LINE)?;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    Ok(ProxyManager::builder(Child::Current(token))
        .base_env([("PATH", path)].into_iter().collect::<EnvVars>())
        .agent(AgentSpec::new(flood::PROTOCOL, flood::PROTOCOL, &argv))
        .state_dir(state.to_owned()))
}

/// The greatest memory of this process, from its making on.
pub(super) struct Memory {
    before: f64,
    /// KiB.
    peak: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Memory {
    /// # Errors
    /// The system's.
    pub(super) fn watch() -> Result<Self> {
        let before = own_anonymous_kib()?;
        let (peak, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let look = {
            let (peak, over) = (peak.clone(), over.clone());
            move || {
                while !over.load(Ordering::Acquire) {
                    // A look that fails is made up for by the one in `grown_mib`.
                    let _ = own_anonymous_kib().map(|kib| peak.fetch_max(kib as u64, Ordering::AcqRel));
                    thread::sleep(LOOK);
                }
            }
        };
        thread::Builder::new().name("memory".into()).spawn(look).map_err(Error::system("starting a thread"))?;
        Ok(Self { before, peak, over })
    }

    /// By how much it was ever greater than at first, in MiB.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn grown_mib(&self) -> Result<f64> {
        let now = self.peak.fetch_max(own_anonymous_kib()? as u64, Ordering::AcqRel);
        Ok((now as f64 - self.before).max(0.0) / 1024.0)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

/// Anonymous memory only: the program's text is counted among those that have it mapped, and they come and go.
fn own_anonymous_kib() -> Result<f64> {
    mean_kib(&[std::process::id()], "Pss_Anon:")
}
