//! Programs in terminals: the built program in a window of its own, as a person uses it.

mod attach;
mod faults;
#[expect(dead_code, reason = "shared with the tests of the commands")]
#[path = "../cli/harness.rs"]
mod harness;
mod record;
mod run;
mod top;
mod window;
