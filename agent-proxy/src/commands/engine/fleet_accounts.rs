//! Command `fleet accounts`.

use proxy_server::ProblemDetails;

#[cfg(feature = "fleet")]
use crate::term;
use crate::{args::AccountsArgs, command_failure::CommandFailure};

/// Says that this build has no fleets.
#[cfg(not(feature = "fleet"))]
pub(in crate::commands) fn run(_: &AccountsArgs) -> Result<(), CommandFailure> {
    let detail = "fleet accounts: this build has no fleets: build it with `cargo install agent-proxy --features fleet`";
    Err(ProblemDetails::new("unsupported", detail).into())
}

/// Makes the keys that are missing, and prints the configuration with all.
#[cfg(feature = "fleet")]
pub(in crate::commands) fn run(args: &AccountsArgs) -> Result<(), CommandFailure> {
    use std::{fs, io};

    use fleet::{NodeKey, NodeName, account_configuration};

    let AccountsArgs { directory, nodes } = args;
    let failed = |path: &std::path::Path, error: &dyn std::fmt::Display| {
        ProblemDetails::failed(format!("the key {}: {error}", path.display()))
    };
    fs::create_dir_all(directory).map_err(|error| failed(directory, &error))?;
    let mut keys = Vec::new();
    for name in nodes {
        let node: NodeName = name.parse().map_err(|error| ProblemDetails::usage(format!("{error}")))?;
        let path = directory.join(format!("{node}.nk"));
        let key = match fs::read_to_string(&path) {
            Ok(seed) => NodeKey::from_seed(node, &seed).map_err(|error| failed(&path, &error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = NodeKey::generate(node).map_err(|error| failed(&path, &error))?;
                proxy_server::write_private(&path, key.seed().as_bytes()).map_err(|error| failed(&path, &error))?;
                key
            }
            Err(error) => return Err(failed(&path, &error).into()),
        };
        keys.push(key);
    }
    term::out(account_configuration(&keys))
}
