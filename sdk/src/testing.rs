//! A manager and the fake agent for an outside crate's `cargo test`.
//!
//! A manager needs a program that calls [`run_if_child`](crate::run_if_child) first in `main`; the `main` of a test program is
//! libtest's. [`test_child!`](crate::test_child) makes the test program its own child program all the same: what it declares runs
//! before that `main`, and does nothing in a process that no manager started.
//!
//! ```no_run
//! agent_proxy_sdk::test_child!();
//!
//! #[tokio::test]
//! async fn the_agent_answers() {
//!     let manager = agent_proxy_sdk::testing::manager().await;
//!     let session = manager.start_session(agent_proxy_sdk::testing::fake()).await.unwrap();
//!     // Prompts of the fake agent are scripts.
//!     assert_eq!(session.ask("say hello").await.unwrap().reply, "hello\n");
//!     manager.shutdown().await;
//! }
//! ```
//!
//! A test with a `main` of its own (`harness = false`) needs no macro: it calls [`run_if_child`](crate::run_if_child), then
//! [`run_if_fake_agent`], and gives its builder [`fake_agent`].
//!
//! The fake agent speaks ACP and does what the prompt says, one command a line: `say TEXT`, `think TEXT`, `sleep 300ms`, `wait` until
//! cancelled, `run COMMAND` as a tool call, `ask TITLE` for a permission, `spawn COMMAND`, `setsid COMMAND` and `daemon COMMAND` for
//! children that stay behind, `crash`, `exit CODE`, and more.

use std::sync::OnceLock;

use crate::{
    AgentSessionConfig, ChildProgram, ChildToken, ManagerBuilder, ProxyManager, adapter::Adapters, catalog::AgentSpec,
};

/// Id of the fake agent in the catalog of [`builder`].
pub const FAKE: &str = "fake";

/// `argv[1]` of this program as the fake agent.
const FAKE_ARG: &str = "--agent-proxy-fake-agent";
/// Path of this program. A link to the file itself, not its name: a test may change the directory, or the file be replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Token of this program, once [`test_child!`](crate::test_child) has run in it.
static TOKEN: OnceLock<ChildToken> = OnceLock::new();

/// Makes a test program its own child program, before its `main`. Write it once in each test program: in a file of `tests/`, or
/// in `src/lib.rs` under `#[cfg(test)]`.
///
/// `test_child!()` knows the built-in protocols; `test_child!(adapters)` takes an expression for
/// [`Adapters`](crate::adapter::Adapters) of your own.
#[macro_export]
macro_rules! test_child {
    () => {
        $crate::test_child!(<$crate::adapter::Adapters as ::core::default::Default>::default());
    };
    ($adapters:expr) => {
        $crate::__before_main!(|| $crate::testing::__become_child(|| $adapters));
    };
}

/// Runs this process as what a manager started it for. Returns in every other process.
#[doc(hidden)]
pub fn __become_child(adapters: impl FnOnce() -> Adapters) {
    run_if_fake_agent();
    let _ = TOKEN.set(crate::run_if_child_with(&adapters()));
}

/// Runs this process as the fake agent, if a session of [`fake_agent`] started it as that. Returns in every other process. For a program
/// with a `main` of its own, after [`run_if_child`](crate::run_if_child).
pub fn run_if_fake_agent() {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some(FAKE_ARG) {
        let reexec = vec![THIS_PROGRAM.to_owned(), FAKE_ARG.to_owned()];
        std::process::exit(::fake_agent::run(::fake_agent::Config { reexec }, args));
    }
}

/// Makes the catalog row of the fake agent, which this program is when it calls [`run_if_fake_agent`], or has a
/// [`test_child!`](crate::test_child).
pub fn fake_agent() -> AgentSpec {
    let program = std::fs::read_link(THIS_PROGRAM).expect("a process has a program").to_string_lossy().into_owned();
    AgentSpec {
        protocol_config: serde_json::json!({ "steerByPrompt": true }),
        ..AgentSpec::new(FAKE, "acp", &[&program, FAKE_ARG])
    }
}

/// Makes the builder of a manager whose child program is this test program: it knows the fake agent ([`FAKE`]), and its agents have
/// a `PATH` of `/usr/bin:/bin` and nothing else of the environment.
///
/// # Panics
/// If the test program has no [`test_child!`](crate::test_child).
pub fn builder() -> ManagerBuilder {
    let token =
        TOKEN.get().expect("write `agent_proxy_sdk::test_child!();` at the top of this test program's first file");
    ProxyManager::builder(ChildProgram::Current(*token))
        .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect())
        .agent(fake_agent())
}

/// Builds the manager of [`builder`].
///
/// # Panics
/// If it cannot be built, with the reason.
pub async fn manager() -> ProxyManager {
    match builder().build().await {
        Ok(manager) => manager,
        Err(error) => panic!("no manager for the tests: {error:?}"),
    }
}

/// Makes the configuration of a session of the fake agent in `/`.
pub fn fake() -> AgentSessionConfig {
    AgentSessionConfig::new(FAKE).with_cwd("/")
}
