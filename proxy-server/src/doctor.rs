//! Checks of this system. The program that serves knows how they are done.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{sync::Mutex, time::timeout};

use crate::{ProblemDetails, requests::RouteResult};

/// Longest time of all checks.
const LONGEST: Duration = Duration::from_secs(180);

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum CheckVerdict {
    /// The feature is available.
    Ok,
    /// The feature is missing, and nothing depends on it.
    Note,
    /// The feature is missing, and should be there.
    Missing,
}

/// Check of one feature.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DoctorCheck {
    /// Name of the feature.
    pub name: String,
    /// Result of the check.
    pub verdict: CheckVerdict,
    /// True if no session can run without the feature.
    pub needed: bool,
    /// Finding of the check.
    pub found: String,
    /// Advice, if there is any.
    pub advice: Option<String>,
}

impl DoctorCheck {
    /// Creates the check of a feature that is available.
    pub fn ok(name: &str, found: impl Into<String>) -> Self {
        Self { name: name.to_owned(), verdict: CheckVerdict::Ok, needed: false, found: found.into(), advice: None }
    }

    /// Creates the check of a feature that is missing, with advice.
    pub fn missing(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: CheckVerdict::Missing, advice: Some(advice.into()), ..Self::ok(name, found) }
    }

    /// Creates the check of a feature that is missing, and that nothing depends on.
    pub fn note(name: &str, found: impl Into<String>, advice: Option<String>) -> Self {
        Self { verdict: CheckVerdict::Note, advice, ..Self::ok(name, found) }
    }

    /// Returns the check as that of a feature without which no session can run.
    #[must_use]
    pub fn needed(self) -> Self {
        Self { needed: true, ..self }
    }
}

type Examination = Pin<Box<dyn Future<Output = Vec<DoctorCheck>> + Send>>;

/// Checks that `GET /v1/doctor` runs, one run at a time.
#[derive(Clone)]
pub struct DoctorProbe {
    examine: Arc<dyn Fn() -> Examination + Send + Sync>,
    one_at_a_time: Arc<Mutex<()>>,
}

impl DoctorProbe {
    /// Takes a function that runs all checks.
    pub fn new<E: Future<Output = Vec<DoctorCheck>> + Send + 'static>(
        examine: impl Fn() -> E + Send + Sync + 'static,
    ) -> Self {
        Self { examine: Arc::new(move || Box::pin(examine())), one_at_a_time: Arc::default() }
    }

    /// Runs the checks. They go on if the caller leaves: their sessions are ended.
    pub(crate) async fn examine(&self) -> RouteResult<Vec<DoctorCheck>> {
        let Self { examine, one_at_a_time } = self.clone();
        let run = tokio::spawn(async move {
            let _turn = one_at_a_time.lock().await;
            timeout(LONGEST, examine()).await
        });
        match run.await {
            Ok(Ok(checks)) => Ok(checks),
            Ok(Err(_)) => Err(ProblemDetails::new("deadline", format!("the checks take longer than {LONGEST:?}"))),
            Err(error) => Err(ProblemDetails::failed(format!("the checks broke off: {error}"))),
        }
    }
}

impl fmt::Debug for DoctorProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoctorProbe").finish_non_exhaustive()
    }
}
