//! Paths of a session's sandbox: what the agent writes, and what is hidden from it.

use std::path::{Component, Path, PathBuf};

use agents::AgentSpec;
use ipc_protocol::{AgentSessionConfig, Containment, EGRESS_PORT, EnvVars, NetworkAccess, SandboxMode, SandboxSpec};

use super::{AgentDefaults, LaunchAttempt, invalid};
use crate::{error::Result, workspaces::WorkspacePlan};

/// Places in a user's home that hold keys, logins or sessions.
const USER_KEYS: [&str; 62] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".netrc",
    ".git-credentials",
    ".npmrc",
    ".yarnrc.yml",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".boto",
    ".s3cfg",
    ".oci",
    ".vault-token",
    ".terraformrc",
    ".terraform.d",
    ".password-store",
    ".pki",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".composer/auth.json",
    ".config/composer/auth.json",
    ".config/agent-proxy",
    ".local/state/agent-proxy",
    ".local/share/agent-proxy",
    ".config/gcloud",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/git/credentials",
    ".config/op",
    ".config/rclone",
    ".config/doctl",
    ".config/heroku",
    ".config/containers/auth.json",
    ".config/github-copilot",
    ".config/Bitwarden CLI",
    ".config/BraveSoftware",
    ".config/chromium",
    ".config/google-chrome",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".config/Slack",
    ".config/Code",
    ".config/Cursor",
    ".mozilla",
    ".thunderbird",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".var/app",
    "snap",
    ".bash_history",
    ".zsh_history",
    ".python_history",
];
/// Directories of a home in which each program has one of its own.
const SHARED_DIRECTORIES: [&str; 4] = [".config", ".cache", ".local/share", ".local/state"];

/// Most rules of a network.
const MAX_RULES: usize = 48;

/// Variables by which programs find the proxy of a network of the session's own.
pub(super) fn network_variables(config: &AgentSessionConfig) -> Vec<(String, String)> {
    if !config.sandbox.is_on() || !config.sandbox.network.as_ref().is_some_and(NetworkAccess::is_own) {
        return Vec::new();
    }
    let proxy = format!("http://127.0.0.1:{EGRESS_PORT}");
    let own = "localhost,127.0.0.1,::1".to_owned();
    let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, proxy.clone()));
    // Node.js heeds the others with this one only.
    let others = [("NO_PROXY", own.clone()), ("no_proxy", own), ("NODE_USE_ENV_PROXY", "1".to_owned())];
    proxies.into_iter().chain(others).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Collects the paths of a session's sandbox. Makes the directories that the agent has in the user's home.
///
/// # Errors
/// [`Error::InvalidConfig`](crate::Error::InvalidConfig) for what contradicts a sandbox.
pub(super) fn plan(
    config: &AgentSessionConfig,
    defaults: &AgentDefaults,
    spec: &AgentSpec,
    attempt: &LaunchAttempt,
    (home, own): (Option<&Path>, &[&Path]),
    workspace: Option<&WorkspacePlan>,
) -> Result<Option<Box<SandboxSpec>>> {
    let wanted = &config.sandbox;
    let network = wanted.network.clone().unwrap_or_default();
    if !wanted.is_on() && network.is_own() {
        let reason = "without a sandbox a session reaches the network by sockets of others: give it one (`workspace` or `read-only`)";
        return Err(invalid("network", reason.to_owned()));
    }
    if network.rules().len() > MAX_RULES {
        return Err(invalid(
            "network",
            format!("there are more than {MAX_RULES} rules: give fewer, as in `*.example.com`"),
        ));
    }
    if !wanted.is_on() {
        if wanted.read.is_empty() && wanted.write.is_empty() {
            return Ok(None);
        }
        let reason = "paths are of no use without a sandbox: give one (`workspace` or `read-only`)";
        return Err(invalid("sandbox", reason.to_owned()));
    }
    if let Some(containment @ (Containment::Baseline | Containment::Cgroup)) = config.containment {
        let reason = format!("a sandbox needs the containment strict, and {containment} was asked for: leave it out");
        return Err(invalid("sandbox", reason));
    }
    if attempt.command.argv.is_empty() {
        let reason = "the agent's server runs already, outside of any sandbox: leave the sandbox or the endpoint out";
        return Err(invalid("sandbox", reason.to_owned()));
    }
    for path in wanted.read.iter().chain(&wanted.write) {
        if !Path::new(path).is_absolute() || !Path::new(path).exists() {
            return Err(invalid("sandbox", format!("{path:?} is no absolute path of something that is there")));
        }
    }
    let mode = wanted.mode.unwrap_or_default();
    let user_home = defaults.base_env.0.get("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let mut write: Vec<PathBuf> = own.iter().map(|path| (*path).to_owned()).collect();
    write.extend(wanted.write.iter().map(PathBuf::from));
    let mut read: Vec<PathBuf> = wanted.read.iter().map(PathBuf::from).collect();
    // All of a workspace may be written, and the user's tree be read.
    let cwd = workspace.map(WorkspacePlan::tree).or_else(|| config.cwd.as_ref().map(PathBuf::from));
    read.extend(workspace.map(|workspace| workspace.source().to_owned()));
    if mode == SandboxMode::Workspace {
        write.extend(cwd)
    } else {
        read.extend(cwd)
    }
    read.extend(
        attempt.command.argv.first().map(PathBuf::from).filter(|program| program.is_absolute() && program.exists()),
    );
    let mut hidden = defaults.hidden.clone();
    if let Some(user_home) = &user_home {
        hidden.extend(USER_KEYS.iter().map(|key| user_home.join(key)));
        let places = if home.is_some() { Vec::new() } else { agent_places(spec, &attempt.command.env, user_home) };
        for row in defaults.catalog.rows() {
            let theirs = agent_places(row, &defaults.base_env, user_home);
            hidden.extend(theirs.into_iter().filter(|place| !places.contains(place)));
        }
        write.extend(places.into_iter().filter(|place| is_made(place)));
    }
    let text = |paths: Vec<PathBuf>| paths.iter().filter_map(|path| Some(path.to_str()?.to_owned())).collect();
    Ok(Some(Box::new(SandboxSpec {
        mode,
        write: text(write),
        read: text(read),
        hidden: text(hidden),
        home: user_home.and_then(|home| Some(home.to_str()?.to_owned())),
        network,
        ..SandboxSpec::default()
    })))
}

/// Variables that name the directory for temporary files.
const TEMPORARY_VARIABLES: [&str; 3] = ["TMPDIR", "TMP", "TEMP"];
/// Directories for temporary files that a sandbox made by mounts has for itself.
const TEMPORARY_DIRECTORIES: [&str; 2] = ["/tmp", "/var/tmp"];

/// Has the agent find its temporary files in `/tmp` where its environment names a directory that it could not write, the user's own. What
/// the session's caller has set stays.
pub(super) fn set_temporary_directory(attempt: &mut LaunchAttempt, written: &[String]) {
    let LaunchAttempt { config, command, .. } = attempt;
    let is_usable = |path: &str| {
        TEMPORARY_DIRECTORIES.contains(&path) || written.iter().any(|written| Path::new(path).starts_with(written))
    };
    for name in TEMPORARY_VARIABLES.iter().filter(|name| !config.env.0.contains_key(**name)) {
        if let Some(value) = command.env.0.get_mut(*name).filter(|value| !is_usable(value)) {
            TEMPORARY_DIRECTORIES[0].clone_into(value);
        }
    }
}

/// Places that an agent has for itself in the home of its user.
fn agent_places(spec: &AgentSpec, env: &EnvVars, home: &Path) -> Vec<PathBuf> {
    let installed = spec.discovery.installation_path.linux.iter().filter_map(|path| path.strip_prefix("~/"));
    let named: Vec<PathBuf> =
        installed.chain(spec.home_files.login.iter().map(|file| file.path.as_str())).map(own_place).collect();
    let mut places: Vec<PathBuf> = Vec::new();
    for place in named {
        let moved = spec.home_files.moved_by.iter().find_map(|(variable, directory)| {
            let below = place.strip_prefix(directory).ok()?;
            let value = env.0.get(variable).filter(|value| value.starts_with('/'))?;
            Some(Path::new(value).join(below))
        });
        places.push(moved.unwrap_or_else(|| home.join(&place)));
        let name = SHARED_DIRECTORIES.iter().find_map(|shared| place.strip_prefix(shared).ok());
        // A program that has one has others.
        places.extend(name.iter().flat_map(|name| SHARED_DIRECTORIES.map(|shared| home.join(shared).join(name))));
    }
    places.sort();
    places.dedup();
    places
}

/// The part of a path that is one program's own: `.codex` of `.codex/auth.json`.
fn own_place(path: &str) -> PathBuf {
    let path = Path::new(path);
    let shared = SHARED_DIRECTORIES.iter().find(|shared| path.starts_with(shared));
    let depth = shared.map_or(1, |shared| Path::new(shared).components().count() + 1);
    path.components().filter(|part| matches!(part, Component::Normal(_))).take(depth).collect()
}

/// Returns whether a place is there, after an attempt to make a directory that is missing.
fn is_made(place: &Path) -> bool {
    place.exists() || place.extension().is_none() && std::fs::create_dir_all(place).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_what_one_program_has_for_itself() {
        for (path, place) in [
            (".codex/auth.json", ".codex"),
            (".claude.json", ".claude.json"),
            (".config/opencode/opencode.json", ".config/opencode"),
            (".local/share/opencode/auth.json", ".local/share/opencode"),
        ] {
            assert_eq!(own_place(path), Path::new(place));
        }
    }

    #[test]
    fn an_agent_that_has_a_shared_directory_has_all_of_them() {
        let catalog = agents::Catalog::default();
        let places = |id: &str, env: EnvVars| agent_places(catalog.get(id).expect("a row"), &env, Path::new("/h"));
        let opencode = places("opencode", EnvVars::default());
        for place in
            ["/h/.cache/opencode", "/h/.config/opencode", "/h/.local/share/opencode", "/h/.local/state/opencode"]
        {
            assert!(opencode.contains(&PathBuf::from(place)), "{opencode:?}");
        }
        let moved = places("codex", [("CODEX_HOME", "/elsewhere")].into_iter().collect());
        assert_eq!(moved, [PathBuf::from("/elsewhere/")]);
    }
}
