//! Host with a state directory, and the measurement of its memory.

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
use proxy_manager::{AgentSpec, ChildProgram, EnvVars, ManagerBuilder, ProxyManager};

use crate::{
    error::{Error, Result},
    flood, programs,
    stats::mean_kib,
};

/// Interval between two samples of the host's memory.
const LOOK: Duration = Duration::from_millis(50);

/// Manager with a temporary state directory.
pub(super) struct DurableHost {
    pub(super) manager: ProxyManager,
    _state: tempfile::TempDir,
}

impl DurableHost {
    /// # Errors
    /// When no manager can be built.
    pub(super) async fn new(token: ChildToken) -> Result<Self> {
        let state = tempfile::tempdir().map_err(Error::system("making a state directory"))?;
        let builder = builder(token, &state.path().join("state"))?;
        Ok(Self { manager: builder.build().await?, _state: state })
    }
}

/// Configures a manager with this state directory.
///
/// # Errors
/// When the agent's program cannot be found.
pub(super) fn builder(token: ChildToken, state: &Path) -> Result<ManagerBuilder> {
    let path = std::env::var("PATH").unwrap_or_default();
    let argv = programs::lines_argv(flood::LINE)?;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    Ok(ProxyManager::builder(ChildProgram::Current(token))
        .base_env([("PATH", path)].into_iter().collect::<EnvVars>())
        .agent(AgentSpec::new(flood::PROTOCOL, flood::PROTOCOL, &argv))
        .state_dir(state.to_owned()))
}

/// Peak memory of this process since the value was made.
pub(super) struct PeakMemory {
    before: f64,
    /// Peak in KiB.
    peak: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl PeakMemory {
    /// # Errors
    /// The system's.
    pub(super) fn watch() -> Result<Self> {
        let before = own_anonymous_kib()?;
        let (peak, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let look = {
            let (peak, over) = (peak.clone(), over.clone());
            move || {
                while !over.load(Ordering::Acquire) {
                    // A sample that fails does not matter: `grown_mib` takes another.
                    let _ = own_anonymous_kib().map(|kib| peak.fetch_max(kib as u64, Ordering::AcqRel));
                    thread::sleep(LOOK);
                }
            }
        };
        thread::Builder::new().name("memory".into()).spawn(look).map_err(Error::system("starting a thread"))?;
        Ok(Self { before, peak, over })
    }

    /// Returns the greatest growth of memory since the start, in MiB.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn grown_mib(&self) -> Result<f64> {
        let now = self.peak.fetch_max(own_anonymous_kib()? as u64, Ordering::AcqRel);
        Ok((now as f64 - self.before).max(0.0) / 1024.0)
    }
}

impl Drop for PeakMemory {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

/// Measures anonymous memory only: processes that map the program's text share its cost, and they come and go.
fn own_anonymous_kib() -> Result<f64> {
    mean_kib(&[std::process::id()], "Pss_Anon:")
}
