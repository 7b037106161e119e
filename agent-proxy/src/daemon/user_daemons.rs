//! Users' sessions as those users: each has a daemon of its own, which this one, of root, starts as them and passes their requests on to.
//!
//! Nothing of a user's is read or written here: all that knows a home, a conversation or a directory runs as the user whose it is.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::{self, DirBuilder, Permissions},
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, Method},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use clap::Args as _;
use nix::unistd::User;
use proxy_manager::ProcessId;
use proxy_server::{
    Identity, ProblemDetails,
    api::{StopRequest, StoppedSession},
    name_caller,
};
use registry::PidFd;

use super::detach::{self, DaemonProgram};
use crate::{
    args::NetworkArgs, client::DaemonClient, commands::stop, process_exit::ProcessExit, serve_config,
    socket_path::SocketPath,
};

/// Program that becomes another user, with that user's groups.
const SET_PRIVILEGES: &str = "setpriv";
/// Header in which who sees all users names the one that a request is about.
const USER_HEADER: HeaderName = HeaderName::from_static("agent-proxy-user");
/// Name of a user's socket, in the user's directory.
const SOCKET: &str = "daemon.sock";
/// Policy of the users' daemons, in the directory of all.
const POLICY: &str = "policy.toml";
/// Variables that a user's daemon has of this one's.
const SHARED_VARIABLES: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TZ", "RUST_LOG"];
/// Keys of `serve` that are not those of a user's daemon: where it is, and who reaches it.
const OWN_KEYS: [&str; 6] = ["detach", "log_file", "state_dir", "cgroup_parent", "allow_sessions", "otlp_endpoint"];
/// Beginnings of what only those change whom a session belongs to.
const OF_USERS: [&str; 7] =
    ["/v1/sessions", "/v1/ask", "/v1/streams", "/v1/records", "/v1/import", "/mcp", "/instance"];
/// Longest time for a user's daemon to end.
const STOP_TIME: Duration = Duration::from_secs(120);

/// The daemons of users. A clone is the same.
#[derive(Clone, Debug)]
pub(super) struct UserDaemons(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    /// Flags of each of them.
    flags: Vec<OsString>,
    /// Users whose daemon was asked for, each with a lock of its start.
    starts: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Daemons that run.
    running: Mutex<HashMap<String, ProcessId>>,
}

/// User of this machine.
#[derive(Debug)]
struct Account {
    user: User,
    /// Directory of the user's daemon.
    directory: PathBuf,
    socket: SocketPath,
}

impl UserDaemons {
    /// Prepares the directory, if users' sessions are to run as those users.
    ///
    /// # Errors
    /// `usage` without root; `failed` where the directory cannot be made.
    pub(super) fn prepare(args: &NetworkArgs) -> Result<Option<Self>, ProblemDetails> {
        let Some(directory) = &args.run_as_user else { return Ok(None) };
        if !nix::unistd::geteuid().is_root() {
            let detail =
                "--run-as-user: only root can start programs as other users: start the daemon as root, or leave it out";
            return Err(ProblemDetails::usage(detail));
        }
        let directory = super::absolute(directory.clone())?;
        let failed = |error: std::io::Error| {
            ProblemDetails::failed(format!("--run-as-user {}: it cannot be prepared: {error}", directory.display()))
        };
        DirBuilder::new().recursive(true).mode(0o755).create(&directory).map_err(failed)?;
        // Nobody else may put another's directory, log or policy there.
        chown(&directory, Some(0), Some(0)).map_err(failed)?;
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).map_err(failed)?;
        let mut flags = shared_flags()?;
        if let Some(policy) = &args.policy {
            let copy = directory.join(POLICY);
            fs::copy(policy, &copy).map_err(failed)?;
            fs::set_permissions(&copy, Permissions::from_mode(0o644)).map_err(failed)?;
            flags.push(flag("policy", copy));
        }
        Ok(Some(Self(Arc::new(Shared { directory, flags, starts: Mutex::default(), running: Mutex::default() }))))
    }

    /// Passes requests of users on to their daemons. Put it behind what says who calls.
    pub(super) fn in_front_of(self, router: Router) -> Router {
        router.layer(from_fn_with_state(self, pass_on))
    }

    /// Finds those that run since before this one.
    pub(super) async fn find_running(&self) {
        let entries = fs::read_dir(&self.0.directory).into_iter().flatten();
        for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
            if let Ok(account) = self.account(&name).await {
                // Others are started when they are asked for.
                let _ = self.reach(&account).await;
            }
        }
    }

    /// Processes below which all sessions of users are.
    pub(super) fn tops(&self) -> Vec<ProcessId> {
        locked(&self.0.running).values().copied().collect()
    }

    /// Ends the daemons of all users. Returns what became of their sessions.
    pub(super) async fn stop(&self, now: bool, as_json: bool) -> Vec<StoppedSession> {
        let names: Vec<String> = locked(&self.0.running).keys().cloned().collect();
        let mut sessions = Vec::new();
        for name in names {
            let Ok(account) = self.account(&name).await else { continue };
            let client = DaemonClient::new(account.socket);
            let Ok(process) = client.daemon_process().await else { continue };
            let request = StopRequest { now, detach: false };
            match stop::end(&client, process.as_ref(), &request, STOP_TIME, as_json).await {
                Ok((ended, _)) => sessions.extend(ended),
                Err(problem) => tracing::error!(user = name, why = problem.detail, "the daemon of a user did not end"),
            }
        }
        sessions
    }

    /// Finds the account of a name.
    async fn account(&self, name: &str) -> Result<Account, ProblemDetails> {
        let refused = |why: &str| {
            ProblemDetails::new("refused", format!("sessions run as their users here, and the user {name:?} {why}"))
        };
        // A name is the name of a directory below.
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) || name == POLICY {
            return Err(refused("is no account of this machine"));
        }
        let asked = name.to_owned();
        let found = tokio::task::spawn_blocking(move || User::from_name(&asked)).await;
        let found = found.map_err(|error| ProblemDetails::failed(error.to_string()))?;
        let found = found.map_err(|error| ProblemDetails::failed(format!("looking for the user {name:?}: {error}")))?;
        let user = found.ok_or_else(|| refused("is no account of this machine: make one, or another token"))?;
        if user.uid.is_root() {
            return Err(refused("is root: root's sessions are started on the local socket"));
        }
        let directory = self.0.directory.join(name);
        let socket = SocketPath::of_user(directory.join(SOCKET), user.uid.as_raw());
        Ok(Account { user, directory, socket })
    }

    /// Returns a client of a user's daemon, which is started if it does not run.
    async fn client(&self, name: &str) -> Result<DaemonClient, ProblemDetails> {
        let account = self.account(name).await?;
        if let Ok(client) = self.reach(&account).await {
            return Ok(client);
        }
        let start = locked(&self.0.starts).entry(name.to_owned()).or_default().clone();
        let _one_at_a_time = start.lock().await;
        if let Ok(client) = self.reach(&account).await {
            return Ok(client);
        }
        self.start(&account).await?;
        self.reach(&account).await
    }

    /// Connects to a daemon that runs.
    async fn reach(&self, account: &Account) -> Result<DaemonClient, ProblemDetails> {
        let client = DaemonClient::new(account.socket.clone());
        if let Some(daemon) = client.daemon_process().await? {
            locked(&self.0.running).insert(account.user.name.clone(), daemon.id());
        }
        Ok(client)
    }

    async fn start(&self, account: &Account) -> Result<(), ProblemDetails> {
        let Account { user, directory, socket } = account;
        let of_user = |why: String| ProblemDetails::failed(format!("the daemon of the user {:?}: {why}", user.name));
        make_private(directory, user).map_err(|error| of_user(format!("{}: {error}", directory.display())))?;
        let log = self.0.directory.join(format!("{}.log", user.name));
        let words =
            ["--reuid".into(), user.uid.to_string(), "--regid".into(), user.gid.to_string(), "--init-groups".into()];
        let wrapper = [SET_PRIVILEGES.to_owned()].into_iter().chain(words).map(OsString::from).collect();
        let own = ["agent-proxy".into(), "serve".into(), "--behind-root".into()];
        let places = [flag("socket", &socket.path), flag("state-dir", directory.join("state"))];
        let argv = own.into_iter().chain(places).chain(self.0.flags.iter().cloned()).collect();
        let program = DaemonProgram { wrapper, argv, env: environment(user), cwd: Some("/".into()), log: Some(log) };
        let started =
            detach::try_start(program, socket, true).await.map_err(|failure| of_user(failure.problem.detail))?;
        tracing::info!(user = user.name, pid = started.pid, "the daemon of a user runs");
        tokio::spawn(reap(started.process));
        Ok(())
    }
}

/// Locks what outlives a panic of its holder.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the status of a daemon once it has ended.
async fn reap(daemon: PidFd) {
    if let Ok(exit) = ProcessExit::of(&daemon)
        && exit.wait().await.is_ok()
    {
        let _ = daemon.try_reap();
    }
}

/// Makes the directory of a user's daemon, which is that user's alone.
fn make_private(directory: &Path, user: &User) -> std::io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // The directory around it is root's alone, so this is the one that was made here.
    chown(directory, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
}

fn environment(user: &User) -> Vec<(OsString, OsString)> {
    let shared = SHARED_VARIABLES.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
    let own = [
        ("HOME", user.dir.clone().into_os_string()),
        ("USER", user.name.clone().into()),
        ("LOGNAME", user.name.clone().into()),
        ("SHELL", user.shell.clone().into_os_string()),
    ];
    shared.chain(own.map(|(name, value)| (name.into(), value))).collect()
}

/// Flags of this daemon that are also those of each user's.
fn shared_flags() -> Result<Vec<OsString>, ProblemDetails> {
    let line = serve_config::complete(std::env::args_os().collect())?;
    let network = NetworkArgs::augment_args(clap::Command::new("network"));
    let is_own = |name: &str| OWN_KEYS.contains(&name) || network.get_arguments().any(|arg| arg.get_id() == name);
    let config = serve_config::EffectiveConfig::resolve(&line, None, |_| None);
    let config = config.map_err(|faults| serve_config::problem(&faults))?;
    Ok(config.flags_but(is_own))
}

fn flag(name: &str, value: impl Into<OsString>) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value.into());
    flag
}

async fn pass_on(State(daemons): State<UserDaemons>, mut request: Request, next: Next) -> Response {
    let Some(identity) = request.extensions().get::<Identity>().cloned() else { return next.run(request).await };
    let named = request.headers_mut().remove(USER_HEADER);
    let named = named.as_ref().map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned());
    let user = match (&identity.user, named) {
        (Some(own), Some(other)) if *own != other => {
            let detail = format!(
                "{:?} is for the sessions of user {own:?} alone, and {USER_HEADER} is {other:?}",
                identity.name
            );
            return ProblemDetails::new("refused", detail).into_response();
        }
        (Some(own), _) => own.clone(),
        (None, Some(named)) => named,
        (None, None) => match needs_user(&request) {
            true => {
                let detail = format!(
                    "sessions run as their users here, and the token {:?} is for those of all: name one in the header {USER_HEADER}, or \
                     make a token with --user",
                    identity.name
                );
                return ProblemDetails::new("refused", detail).into_response();
            }
            false => return next.run(request).await,
        },
    };
    let passed_on = async {
        let client = daemons.client(&user).await?;
        name_caller(&mut request, &Identity { user: Some(user), ..identity })?;
        client.pass_on(request).await
    };
    passed_on.await.unwrap_or_else(IntoResponse::into_response)
}

/// Returns true for a request that would start or change something of a user's as root.
fn needs_user(request: &Request) -> bool {
    let path = request.uri().path();
    !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
        && OF_USERS.iter().any(|begin| path.starts_with(begin))
}
