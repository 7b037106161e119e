//! Files that make their reader an operator, or a node of the fleet. A daemon that listens on the network, or is a node with a key, keeps
//! them out of its sessions' reach.

use std::path::{Path, PathBuf};

use ipc_protocol::HiddenFiles;
use proxy_server::ProblemDetails;

use crate::{args::ServeArgs, serve_config::is_address, socket_path::SocketPath, term};

/// Lists the files that sessions of this daemon must not see; none for a daemon that nobody reaches over the network, and that shows the
/// servers of its fleet no key.
///
/// # Errors
/// `containment-unavailable` where they cannot be hidden, unless `--insecure` says that this is wanted.
pub(super) async fn find(
    args: &ServeArgs,
    configuration: Option<&Path>,
    audit: Option<&Path>,
    socket: &SocketPath,
) -> Result<Vec<PathBuf>, ProblemDetails> {
    let mut files = fleet_keys(args);
    let has_key = !files.is_empty();
    let is_reached = !args.network.listen.is_empty() || args.network.behind_root;
    if is_reached {
        files.extend(network_files(args, configuration, audit, socket));
    }
    if files.is_empty() {
        return Ok(files);
    }
    let files: Result<Vec<PathBuf>, ProblemDetails> = files.into_iter().map(super::absolute).collect();
    let files = files?;
    let text = |file: &PathBuf| file.to_str().map(str::to_owned);
    let hidden = HiddenFiles { hidden: files.iter().filter_map(text).collect(), ..HiddenFiles::default() };
    let tried = tokio::task::spawn_blocking(move || registry::hiding_layer(&hidden)).await;
    let why = match tried {
        Ok(Ok(_)) => return Ok(files),
        Ok(Err(missing)) => missing.to_string(),
        Err(error) => error.to_string(),
    };
    let what = if has_key { "this node's key of the fleet, the tokens and the log" } else { "the tokens and the log" };
    if args.network.insecure {
        let become_what = if has_key { "operators, and nodes of the fleet" } else { "operators" };
        term::error_line(format_args!(
            "warning: agents can read {what} of this daemon, and become its {become_what}: {why}"
        ));
        return Ok(Vec::new());
    }
    let detail = match is_reached {
        true => format!(
            "{what} cannot be kept from agents, so the daemon does not listen on the network: {why}; or say --insecure"
        ),
        false => format!(
            "this node's key of the fleet cannot be kept from agents, who would be nodes of the fleet with it, so the daemon does not start: {why}"
        ),
    };
    Err(ProblemDetails::new("containment-unavailable", detail))
}

/// Lists the secrets that make their reader this node, for the servers of its fleet.
fn fleet_keys(args: &ServeArgs) -> Vec<PathBuf> {
    let keys = [&args.fleet.fleet_nkey, &args.fleet.fleet_credentials, &args.fleet.fleet_key];
    keys.into_iter().flatten().cloned().collect()
}

/// Lists what makes its reader an operator of a daemon that is reached over the network.
fn network_files(
    args: &ServeArgs,
    configuration: Option<&Path>,
    audit: Option<&Path>,
    socket: &SocketPath,
) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = configuration.map(Path::to_owned).into_iter().collect();
    if socket.default_place {
        files.push(socket.directory().to_owned());
    } else {
        // A directory that the user named may hold anything.
        files.extend(["", ".lock"].map(|ending| with_ending(&socket.path, ending)));
    }
    let network = &args.network;
    let keys = network.oidc_keys.as_ref().filter(|keys| !keys.to_str().is_some_and(is_address));
    let named =
        [args.state_dir.as_ref(), args.log_file.as_ref(), network.tls_key.as_ref(), keys, network.policy.as_ref()];
    files.extend(named.into_iter().flatten().cloned().chain(audit.map(Path::to_owned)));
    files
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}
