//! The built program, driven as a person or a script does.

mod agents;
mod ask;
mod background;
mod bounds;
mod chat;
mod completions;
mod contract;
mod daemon;
mod demo;
mod durable;
mod harness;
mod lasting;
mod leaktest;
mod listings;
mod operations;
mod orphans;
mod peers;
mod profiles;
mod release;
mod run;
mod sessions;
mod shells;
mod supervision;
mod survivors;
mod terminal;
mod unusable;
