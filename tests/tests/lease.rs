//! The dead man's switch of the fork server: sessions end once the lease on them is over, whatever has become of their host.

use std::time::Duration;

use agent_proxy_tests::{
    detach::{Host, State},
    sessions,
    system::{self, until},
};
use proxy_manager::{AgentSessionConfig, HostDeath, Signal};
use serde_json::Value;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);
/// Long enough for the host to be stopped before it is over; a session that ends before is no fault of the switch.
const SHORT: Duration = Duration::from_secs(1);

fn host(state: &State) -> Host {
    let [host, child, fake] =
        [env!("CARGO_BIN_EXE_detach-host"), env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")];
    Host::start(host, child, fake, &state.path())
}

/// A session with a process that leaves its tree and ignores SIGTERM; the seconds that it sleeps name it.
fn stubborn(on_host_death: HostDeath) -> (AgentSessionConfig, String) {
    let seconds = system::unique_seconds();
    let script = format!("trap '' TERM; (setsid sleep {seconds} &) ; exec cat");
    (AgentSessionConfig { on_host_death, ..sessions::shell(&script) }, seconds)
}

fn sleeps(seconds: &str) {
    until("it sleeps", || (system::sleeping(seconds).len() == 1).then_some(()));
}

fn is_stopped(host: &Host) -> bool {
    system::state(host.pid()) == Some('T')
}

/// Receipt of a session's end, as its host tells of it.
fn receipt(host: &Host, id: &str) -> Value {
    host.line("the session's end", |line| {
        let is_it = line["eventStreamId"] == id && line["type"] == "session:ended";
        is_it.then(|| line["payload"]["receipt"].clone())
    })
}

#[test]
fn a_host_that_stands_still_beyond_its_lease_has_no_process_left_at_work() {
    let state = State::new();
    let mut host = host(&state);
    let detached = HostDeath::Detach { fetch_within_ms: 60_000, spool_bytes: 1 << 20 };
    let sessions = [stubborn(HostDeath::default()), stubborn(detached)];
    let ids: Vec<String> = sessions.iter().map(|(config, _)| config.session_id.to_string()).collect();
    let proxies: Vec<u32> = sessions.iter().map(|(config, _)| host.session(config)).collect();
    sessions.iter().for_each(|(_, seconds)| sleeps(seconds));
    host.lease(LONG);
    host.lease(SHORT);
    host.signal(Signal::Stop);
    until("it stands still", || is_stopped(&host).then_some(()));
    until("nothing is left at work", || {
        let sleeping = sessions.iter().any(|(_, seconds)| !system::sleeping(seconds).is_empty());
        let alive = proxies.iter().any(|proxy| system::is_alive(*proxy));
        (!sleeping && !alive).then_some(())
    });
    assert!(is_stopped(&host), "it was the fork server");
    host.signal(Signal::Cont);
    // It is told what happened, with proof.
    for id in &ids {
        let receipt = receipt(&host, id);
        assert_eq!(receipt["survivors"], serde_json::json!([]), "{receipt}");
        assert_eq!(receipt["cause"], "lease", "{receipt}");
        assert_ne!(receipt["proof"], "none", "{receipt}");
        assert!(receipt["processes"].as_array().is_some_and(|processes| !processes.is_empty()), "{receipt}");
    }
    // Nothing is started until the lease is extended.
    let (config, seconds) = stubborn(HostDeath::default());
    host.begin(&config);
    let refused = host.line("a refusal", |line| line["refused"].as_str().map(str::to_owned));
    assert!(refused.contains("lease"), "{refused}");
    host.lease(LONG);
    let (config, others) = stubborn(HostDeath::default());
    host.session(&config);
    sleeps(&others);
    assert!(system::sleeping(&seconds).is_empty());
    host.kill();
    until("what it left ends", || system::sleeping(&others).is_empty().then_some(()));
}

#[test]
fn a_session_that_outlives_its_host_does_not_outlive_the_lease() {
    let state = State::new();
    let mut host = host(&state);
    let (config, seconds) = stubborn(HostDeath::Detach { fetch_within_ms: 3_600_000, spool_bytes: 1 << 20 });
    let (id, proxy) = (config.session_id.to_string(), host.session(&config));
    sleeps(&seconds);
    host.lease(SHORT);
    let fork_server = host.fork_server;
    host.kill();
    until("it ends", || system::sleeping(&seconds).is_empty().then_some(()));
    until("all are gone", || (!system::is_alive(proxy) && !system::is_alive(fork_server)).then_some(()));
    assert!(system::with_marker(&id).is_empty());
}
