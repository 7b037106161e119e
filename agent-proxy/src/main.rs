//! Thin binary around the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A fork server is this program started again: it must get here before there is a thread or a runtime.
    let token = agent_proxy::run_if_child();
    agent_proxy::main(token)
}
