//! Prices of models, for costs that an agent does not tell.

use std::fs;

use ipc_protocol::{CostSource, Event, Usage};
use nix::sys::signal::Signal;

use crate::harness::{PROGRAM, Place};

/// 2 dollars for a million tokens read, 0.5 for those of a cache, 10 for those written.
const PRICES: &str = "[models.fake-1]\ninput = 2\ncached_input = 0.5\noutput = 10\n";

fn usage(place: &Place, flags: &[&str], prompt: &str) -> Usage {
    let args = [&["run", "--agent", "acp", "--json"], flags, &[prompt, "--", PROGRAM, "fake-agent"]].concat();
    let complete = |event: Event| match event {
        Event::Complete { usage, .. } => usage,
        _ => None,
    };
    let mut envelopes = place.run(&args).exits(0).envelopes().into_iter();
    *envelopes.find_map(|envelope| complete(envelope.event)).expect("usage at the end of the turn")
}

#[test]
fn a_cost_is_the_agents_own_else_by_prices_else_unknown() {
    let place = Place::new();
    let tokens = "tokens 1000000 100000 800000 0";
    assert_eq!(usage(&place, &[], tokens).cost_usd, None, "no prices are built in");
    fs::create_dir_all(place.config()).expect("a directory");
    fs::write(place.config().join("prices.toml"), PRICES).expect("written");
    let told = usage(&place, &[], tokens);
    // 200,000 at 2, 800,000 at 0.5, 100,000 at 10.
    assert_eq!((told.cost_usd, told.cost_source), (Some(1.8), Some(CostSource::Prices)));
    let own = usage(&place, &[], &format!("cost 50\n{tokens}"));
    assert_eq!((own.cost_usd, own.cost_source), (Some(0.5), Some(CostSource::Agent)));
    let other = place.directory.join("other.toml");
    fs::write(&other, PRICES.replace("fake-1", "fake-2")).expect("written");
    let other = other.to_str().expect("UTF-8");
    assert_eq!(usage(&place, &["--prices", other], tokens).cost_usd, None, "that file has no such model");
    assert_eq!(usage(&place, &["--prices", other], &format!("switch-model fake-2\n{tokens}")).cost_usd, Some(1.8));
}

#[test]
fn a_price_that_is_wrong_is_named_with_its_line_and_key() {
    let place = Place::new();
    let file = place.directory.join("prices.toml");
    let path = file.to_str().expect("UTF-8");
    for (text, fault) in [
        ("[models.fake-1]\ninput = 2\noutput = -1\n", "prices.toml, line 3, models.fake-1.output: "),
        ("[models.fake-1]\ninput = 2\n", "prices.toml, line 1, models.fake-1: missing field `output`"),
    ] {
        fs::write(&file, text).expect("written");
        for command in [&["run", "--agent", "command", "x", "--", "true"][..], &["serve"]] {
            let args = [&["--json"], &command[..1], &["--prices", path], &command[1..]].concat();
            let problem = place.run(&args).exits(2).problem();
            let detail = problem["detail"].as_str().expect("a detail");
            assert!(problem["type"] == "invalid-config" && detail.contains(fault), "{problem}");
        }
    }
    let ran = place.run(&["serve", "--prices", "/nowhere/prices.toml"]);
    assert!(ran.stderr.contains("reading /nowhere/prices.toml failed"), "{}", ran.stderr);
}

#[test]
fn the_daemon_reads_a_changed_file_for_sessions_that_run_too() {
    let place = Place::new();
    let file = place.directory.join("prices.toml");
    fs::write(&file, PRICES).expect("written");
    let daemon = place.serve_with(&["--prices", file.to_str().expect("UTF-8")]);
    let start = |id: &str| {
        daemon.run(&["start", "--id", id, "--agent", "acp", "--", PROGRAM, "fake-agent"]).exits(0);
    };
    let cost = |prompt: &str| {
        daemon.run(&["prompt", "a", prompt]).exits(0);
        let sessions = daemon.run(&["--json", "sessions"]).exits(0).json();
        let all = sessions.as_array().expect("sessions");
        let session = all.iter().find(|session| session["sessionId"] == "a").expect("the session");
        (session["metrics"]["usage"]["costUsd"].clone(), session["metrics"]["usage"]["costSource"].clone())
    };
    start("a");
    assert_eq!(cost("tokens 1000000 100000 0 0"), (3.0.into(), "prices".into()));
    fs::write(&file, PRICES.replace("= 2", "= 20")).expect("written");
    // A start looks at the files.
    start("b");
    assert_eq!(cost("tokens 1000000 100000 0 0"), (24.0.into(), "prices".into()));
    daemon.end(Signal::SIGTERM).exits(0);
}
