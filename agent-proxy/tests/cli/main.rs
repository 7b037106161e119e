//! The built program, driven as a person or a script does.

mod access;
mod agents;
mod ask;
mod background;
mod bounds;
mod chat;
mod completions;
mod contract;
mod crashes;
mod daemon;
mod demo;
mod durable;
#[path = "../../../fleet/tests/engine/mod.rs"]
#[expect(dead_code, reason = "tests of the crate `fleet` use more of it")]
mod engine;
mod fleet;
mod harness;
mod hooks;
mod issuer;
mod lasting;
mod leaktest;
mod listings;
mod mcp;
mod network;
mod operations;
mod orphans;
mod peers;
mod prices;
mod profiles;
mod reach;
mod release;
mod run;
mod service;
mod sessions;
mod shells;
mod streams;
mod supervision;
mod survivors;
mod terminal;
mod unusable;
mod users;
mod warm;
mod webhooks;
mod workspaces;
