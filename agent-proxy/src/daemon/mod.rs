//! Daemon: a manager behind HTTP + JSON on a local socket.

mod bounds;
pub(crate) mod detach;
mod fleet;
mod hangup;
mod hidden_files;
mod http_address;
mod issuer_address;
mod log_file;
mod network;
mod peers;
mod recovered_sessions;
pub(crate) mod socket;
mod tls;
mod traces;
mod user_daemons;
mod webhooks;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use proxy_manager::{ChildProgram, DrainProgress, ProxyManager, Receipt};
use proxy_server::{
    AuditLog, ConfigurationReloader, DoctorProbe, Identity, InstanceOptions, InstancePool, LoadedConfiguration,
    LoginLink, LoginStore, NetworkAccess, OidcVerifier, Policy, ProblemDetails, Role, ServerMetrics, ServerOptions,
    StopMode, StopOrder, StopProgress, TrustedProxy, api::DaemonDescription,
};
use sd_notify::NotifyState;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use self::{
    bounds::ConnectionBounds,
    fleet::{FleetNode, FleetShipping, NodeDescription},
    hangup::ReloadTargets,
    issuer_address::IssuerAddress,
    log_file::LogFile,
    network::NetworkListener,
    peers::PeerGuard,
    user_daemons::UserDaemons,
};
use crate::{
    args::{LogFormat, NetworkArgs, ServeArgs},
    command_failure::CommandFailure,
    doctor, environment, render,
    socket_path::SocketPath,
    term::{self, TermStyle},
    tokens,
};

const SIGXCPU: i32 = nix::sys::signal::Signal::SIGXCPU as i32;
const SIGXFSZ: i32 = nix::sys::signal::Signal::SIGXFSZ as i32;

/// Time for connections to finish after the last session has ended.
const LINGER: Duration = Duration::from_secs(1);

/// Runs the daemon until SIGTERM (running turns may finish), SIGINT or a client's stop, then ends all sessions and
/// prints the results. Starts it in the background where that is wanted, and returns then.
///
/// # Errors
/// When the socket is not available, the manager does not start, or a process survived the end.
pub(crate) async fn serve(
    child: ChildProgram,
    args: ServeArgs,
    configuration: LoadedConfiguration,
    socket: &crate::socket_path::SocketPath,
    as_json: bool,
) -> Result<(), CommandFailure> {
    if args.detach {
        return detach::serve(&args, socket, as_json).await;
    }
    // Whoever reads the log as JSON reads these lines too.
    let as_json = as_json || args.log_format == LogFormat::Json;
    let log = args.log_file.as_deref().map(LogFile::new).transpose()?;
    log.iter().try_for_each(LogFile::redirect)?;
    let (listener, name) = socket::open(socket)?;
    let configuration_directory = configuration.directory().map(|directory| directory.path().to_owned());
    // The directory of the tokens is there before anything is hidden from a session.
    let access = match args.network.listen.is_empty() {
        true => None,
        false => Some(network_access(&args.network, &configuration_directory, as_json)?),
    };
    let policy = args.network.read_policy()?;
    let webhook_directory = configuration.directory().ok().cloned();
    let webhooks = webhook_directory.as_ref().map(webhooks::read).transpose()?.unwrap_or_default();
    let users = UserDaemons::prepare(&args.network)?;
    let audit_file = audit_file(&args, &configuration_directory);
    let hidden =
        hidden_files::find(&args, configuration_directory.as_deref().ok(), audit_file.as_deref(), socket).await?;
    let logs_to_file = log.is_some();
    // Install the handlers before the daemon is announced: a signal must find its handler.
    let mut terminate = handler(SignalKind::terminate())?;
    let mut interrupt = handler(SignalKind::interrupt())?;
    let hangup = handler(SignalKind::hangup())?;
    // Of limits that a process of the same user has lowered (prlimit): a write that fails is an error, and no death.
    let _of_limits = [handler(SignalKind::from_raw(SIGXCPU))?, handler(SignalKind::from_raw(SIGXFSZ))?];
    let doctor_child = child.clone();
    let mut builder = configuration
        .apply_to(ProxyManager::builder(child).base_env(environment::base()).engine_env(environment::engine()));
    builder = builder
        .containment(args.containment.containment.unwrap_or_default())
        .hidden_files(hidden)
        .remove_dead_containers();
    let capacity = args.fleet.capacity.map(|capacity| usize::try_from(capacity).unwrap_or(usize::MAX));
    builder = args.supervision.or_max_sessions(capacity).apply_to(builder.max_depth(args.max_depth));
    builder = args.durability.apply_to(builder)?;
    builder = args.warm.apply_to(builder, &configuration, policy.as_ref())?;
    if let Some(directory) = args.cgroup_parent {
        let directory = absolute(directory)?;
        check_cgroup_parent(&directory)?;
        builder = builder.cgroup_parent(directory);
    }
    let state_dir = args.state_dir.map(absolute).transpose()?;
    if let Some(directory) = &state_dir {
        builder = builder.state_dir(directory.clone());
    }
    let limit = registry::descriptors().map_or(u64::MAX, |descriptors| descriptors.limit);
    builder = builder.descriptor_reserve(bounds::descriptor_reserve(limit));
    let longest = args.supervision.drain;
    let (builder, shipping) = FleetShipping::prepare(&args.fleet, builder, state_dir.is_some());
    let manager = builder.build().await?;
    let started_at = SystemTime::now();
    // The state directory exists now.
    let audit = audit_file.as_deref().map(open_audit_log).transpose()?;

    if let Some(users) = &users {
        users.find_running().await;
    }
    let (guarded, of_users) = (manager.clone(), users.clone());
    let tops = move || {
        let of_users = of_users.iter().flat_map(UserDaemons::tops);
        guarded.fork_servers().into_iter().chain(of_users).collect()
    };
    let guard = PeerGuard::new(tops, !args.allow_sessions);
    let tls = args.network.tls()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let networks = bind_networks(&args.network, tls.is_some(), &guard).await?;
    let listener = listener.guarded(guard);

    let (stop, stopped) = watch::channel(());
    let (stopping, mut stop_requests) = StopProgress::new();
    let agents = configuration.agents().into_iter().filter(|agent| agent.usable).map(|agent| agent.id).collect();
    let configuration = ConfigurationReloader::new(configuration);
    let log_file = log.as_ref().map(|log| log.path().to_owned());
    let addresses: Vec<SocketAddr> = networks.iter().filter_map(|network| network.address().ok()).collect();
    let daemon = DaemonDescription {
        started_at,
        socket: socket.path.clone(),
        addresses: addresses.iter().map(|address| format!("{scheme}://{address}")).collect(),
        state_dir,
        log_file,
        node: args.fleet.node.clone().filter(|_| !args.fleet.fleet.is_empty()),
    };
    let description = NodeDescription {
        agents,
        addresses: daemon.addresses.clone(),
        state_dir: daemon.state_dir.as_deref(),
        max_per_user: args.supervision.max_per_user,
    };
    let node = FleetNode::join(&args.fleet, description, &manager, shipping).await?;
    let metrics = ServerMetrics::start(&manager);
    let webhooks = webhooks::start(&manager, webhooks, daemon.state_dir.as_deref(), metrics.clone()).await?;
    let targets = ReloadTargets {
        log,
        configuration: configuration.clone(),
        webhooks: webhooks.clone(),
        directory: webhook_directory,
    };
    tokio::spawn(hangup::follow(hangup, manager.clone(), targets));
    let traces = args.otlp_endpoint.as_deref().map(|endpoint| traces::start(&manager, endpoint)).transpose()?;
    let options = ServerOptions::default().with_configuration(configuration).with_stop(stopping.clone());
    let doctor = doctor_probe(doctor_child, socket, configuration_directory.as_ref().ok());
    let options = options.with_metrics(metrics.clone()).with_page().with_daemon(daemon);
    let options = options.with_doctor(doctor).with_instances(instances(&manager)?);
    let logins = LoginStore::default();
    let options = policy.into_iter().fold(options.with_logins(logins.clone()), ServerOptions::with_policy);
    let options = audit.iter().cloned().fold(options, ServerOptions::with_audit);
    let options = options.with_webhooks(webhooks);
    let options = node.iter().fold(options, |options, node| node.add_to(options));
    let mut router = proxy_server::router(manager.clone(), options);
    if let Some(node) = &node {
        node.serve(router.clone()).await?;
    }
    if args.network.behind_root {
        router = proxy_server::trust_root(router);
    }
    let bounds = ConnectionBounds::new(limit, &args.network.trust_from);
    let mut servers = JoinSet::new();
    if let Some(access) = access {
        let access = access.with_metrics(metrics).with_logins(logins.clone());
        let access = audit.into_iter().fold(access, NetworkAccess::with_audit);
        let served = users.iter().cloned().fold(router.clone(), |router, users| users.in_front_of(router));
        let guarded = proxy_server::require_token(served, access);
        for network in networks {
            servers.spawn(bounds.clone().serve_network(network, tls.clone(), guarded.clone(), stopped.clone()));
        }
    }
    servers.spawn(bounds.serve_local(listener, router, stopped));
    logins.set_addresses(addresses.iter().map(|address| browser_address(scheme, *address)).collect());
    // A log keeps no link.
    let link = match logs_to_file || addresses.is_empty() {
        true => None,
        false => Some(logins.create_link(Identity::new("page", Role::Admin))?),
    };
    announce(socket, (scheme, &addresses), link, &manager, as_json);
    notify(NotifyState::Ready);

    let order = |mode| StopOrder { mode, detach: false };
    let StopOrder { mode, detach } = tokio::select! {
        _ = terminate.recv() => order(StopMode::AfterTurns),
        _ = interrupt.recv() => order(StopMode::Now),
        order = stop_requests.recv() => order,
    };
    notify(NotifyState::Stopping);
    node.iter().for_each(FleetNode::drain);
    let detached = if detach { manager.detachable_sessions() } else { Vec::new() };
    let end_now = async || if detach { manager.shutdown_detaching().await } else { manager.shutdown().await };
    let receipts = match mode {
        StopMode::AfterTurns => {
            tracing::info!("ending every session when its turn is over");
            let progress = |progress| {
                stopping.drains(progress, longest);
                report_drain(progress, longest, as_json);
            };
            let drain = async {
                if detach {
                    manager.drain_detaching(longest, progress).await
                } else {
                    manager.drain(longest, progress).await
                }
            };
            tokio::select! {
                receipts = drain => receipts,
                _ = terminate.recv() => end_now().await,
                _ = interrupt.recv() => end_now().await,
                () = stop_requests.now() => end_now().await,
            }
        }
        StopMode::Now => {
            tracing::info!("ending every session");
            end_now().await
        }
    };
    // A restart leaves those of users alone.
    let of_users = match users.filter(|_| !detach) {
        Some(users) => users.stop(mode == StopMode::Now, as_json).await,
        None => Vec::new(),
    };
    if let Some(traces) = traces {
        traces.finish().await;
    }
    stopping.stopped(&manager, &receipts, detached);
    if let Some(node) = node {
        node.leave().await;
    }
    // The streams of all sessions have ended with them; other connections get a moment to finish.
    stop.send_replace(());
    let _ = tokio::time::timeout(LINGER, servers.join_all()).await;
    drop(name);
    let receipts: Vec<Receipt> = receipts.into_iter().chain(of_users.into_iter().map(|ended| ended.receipt)).collect();
    report(&receipts, as_json)
}

/// Checks of this system for clients, as those of `doctor`.
fn doctor_probe(child: ChildProgram, socket: &SocketPath, directory: Option<&PathBuf>) -> DoctorProbe {
    let (socket, directory) = (socket.clone(), directory.cloned());
    DoctorProbe::new(move || {
        let (child, socket, directory) = (child.clone(), socket.clone(), directory.clone());
        async move { doctor::examine(child, &socket, directory.as_deref()).await }
    })
}

/// Instances of OpenCode's server, bounded as the environment says.
fn instances(manager: &ProxyManager) -> Result<InstancePool, ProblemDetails> {
    let number = |name: &str| match std::env::var(name) {
        Ok(text) => text.parse::<u64>().map(Some).map_err(|_| {
            ProblemDetails::usage(format!("{name}={text:?} in the environment is no number: give one of 1 or more"))
        }),
        Err(_) => Ok(None),
    };
    let mut options = InstanceOptions::new("opencode");
    if let Some(seconds) = number("CODE_IDLE_TIMEOUT")? {
        options = options.with_idle_timeout(Duration::from_secs(seconds.max(1)));
    }
    if let Some(most) = number("CODE_MAX_INSTANCES")? {
        options = options.with_max_instances(usize::try_from(most).unwrap_or(usize::MAX));
    }
    Ok(InstancePool::start(manager, options))
}

/// Reports the turns that are still running.
fn report_drain(progress: DrainProgress, longest: Duration, as_json: bool) {
    let DrainProgress { turns, .. } = progress;
    if turns > 0 && !as_json {
        let turns = if turns == 1 { "1 turn runs".to_owned() } else { format!("{turns} turns run") };
        let longest = humantime::format_duration(longest);
        term::error_line(format_args!(
            "draining: {turns}, waiting {longest} at most; a second signal ends all at once"
        ));
    }
}

/// Binds the addresses of the network before anything starts: one that is taken ends the daemon at once.
async fn bind_networks(
    args: &NetworkArgs,
    tls: bool,
    guard: &PeerGuard,
) -> Result<Vec<NetworkListener>, ProblemDetails> {
    let mut networks = Vec::new();
    for address in &args.listen {
        networks.push(NetworkListener::bind(*address, tls, args.insecure, guard.clone()).await?);
    }
    Ok(networks)
}

/// Returns who is admitted over the network. At the first start there is a first token.
fn network_access(
    args: &NetworkArgs,
    directory: &Result<PathBuf, ProblemDetails>,
    as_json: bool,
) -> Result<NetworkAccess, ProblemDetails> {
    let tokens = tokens::file(directory.as_ref().map_err(Clone::clone)?);
    if let Some(first) = tokens::create_first(&tokens)?.filter(|_| !as_json) {
        term::error_line(format_args!("the first token, of the role admin, is in {}", first.display()));
    }
    let tokens = tokens.pinned().map_err(tokens::problem)?;
    let mut access = NetworkAccess::new(tokens).with_rate(args.max_request_rate);
    access = args.host.iter().fold(access, |access, host| access.with_host(host));
    access = args.origin.iter().fold(access, |access, origin| access.with_origin(origin));
    if let Some(header) = &args.trust_header {
        let trusted = TrustedProxy::new(header, args.trust_from.clone(), args.trust_role);
        access = access.with_trusted_proxy(trusted.map_err(ProblemDetails::usage)?);
    }
    if let (Some(issuer), Some(audience), Some(keys)) = (&args.oidc_issuer, &args.oidc_audience, &args.oidc_keys) {
        let oidc = match IssuerAddress::parse(keys)? {
            Some(address) => {
                let oidc = OidcVerifier::fetching(issuer, audience, &address.text(), address.fetch());
                // An issuer that is down now keeps nobody from the sessions.
                let early = oidc.clone();
                tokio::task::spawn_blocking(move || {
                    if let Err(error) = early.prepare() {
                        tracing::warn!(%error, "no token of the issuer is known before its keys are");
                    }
                });
                oidc
            }
            None => {
                let wrong = |error: std::io::Error| {
                    ProblemDetails::usage(format!(
                        "{} is no JWKS file: {error}: name one, or the address of the issuer's keys (https://…)",
                        keys.display()
                    ))
                };
                OidcVerifier::new(issuer, audience, keys).map_err(wrong)?
            }
        };
        access = access.with_oidc(oidc.with_claims(&args.oidc_user_claim, &args.oidc_role_claim));
    }
    Ok(if args.tls_cert.is_some() { access.with_tls() } else { access })
}

impl NetworkArgs {
    /// Reads certificate and key, if they are named.
    fn tls(&self) -> Result<Option<TlsAcceptor>, ProblemDetails> {
        self.tls_cert.as_deref().zip(self.tls_key.as_deref()).map(|(cert, key)| tls::acceptor(cert, key)).transpose()
    }

    /// Reads the policy, if there is one.
    fn read_policy(&self) -> Result<Option<Policy>, ProblemDetails> {
        let Some(path) = &self.policy else { return Ok(None) };
        let wrong =
            |error: String| ProblemDetails::new("invalid-config", format!("the policy in {}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let PolicyFile { policy } = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        policy.check().map_err(wrong)?;
        Ok(Some(policy))
    }
}

/// File of a policy.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    policy: Policy,
}

/// Returns the audit log's file; `None` for a daemon that keeps none.
fn audit_file(args: &ServeArgs, configuration: &Result<PathBuf, ProblemDetails>) -> Option<PathBuf> {
    let default = || args.state_dir.clone().or_else(|| configuration.clone().ok()).map(|path| path.join("audit.jsonl"));
    args.network.audit_file.clone().or_else(|| default().filter(|_| !args.network.listen.is_empty()))
}

/// Returns how a browser on this machine names an address.
fn browser_address(scheme: &str, address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

fn open_audit_log(path: &Path) -> Result<AuditLog, ProblemDetails> {
    AuditLog::open(path)
        .map_err(|error| ProblemDetails::failed(format!("the audit log {} cannot be opened: {error}", path.display())))
}

fn handler(kind: SignalKind) -> Result<tokio::signal::unix::Signal, ProblemDetails> {
    signal(kind).map_err(|error| ProblemDetails::failed(format!("handling signals failed: {error}")))
}

fn absolute(directory: PathBuf) -> Result<PathBuf, ProblemDetails> {
    std::path::absolute(&directory)
        .map_err(|error| ProblemDetails::usage(format!("{} is no path: {error}", directory.display())))
}

/// Checks that groups can be made in a directory that is named: without, sessions would have a layer less.
fn check_cgroup_parent(directory: &Path) -> Result<(), ProblemDetails> {
    let own = registry::identify(std::process::id());
    let own = own.map_err(|error| ProblemDetails::failed(format!("looking at this process failed: {error}")))?;
    // It is removed again.
    registry::ManagerCgroup::create(Some(directory), own)
        .map(drop)
        .map_err(|missing| ProblemDetails::new("containment-unavailable", format!("--cgroup-parent: {missing}")))
}

/// Announces the socket, the sessions recovered after the death of all their supervisors, and the reattached ones.
fn announce(
    socket: &crate::socket_path::SocketPath,
    (scheme, addresses): (&str, &[SocketAddr]),
    link: Option<LoginLink>,
    manager: &ProxyManager,
    as_json: bool,
) {
    let links = link.map(|link| link.urls).unwrap_or_default();
    let (recovered, reattached) = (manager.recovered(), manager.reattached());
    let said = if as_json {
        let recovered: Vec<_> = recovered.iter().map(recovered_sessions::json).collect();
        term::json(
            &serde_json::json!({ "socket": socket.path, "addresses": addresses, "logins": links, "pid": std::process::id(), "recovered": recovered, "reattached": reattached }),
        )
    } else {
        for found in recovered {
            term::error_line(recovered_sessions::line(found, TermStyle::stderr()));
        }
        for session in reattached {
            term::error_line(format_args!("reattached session {session}"));
        }
        for address in addresses {
            term::error_line(format_args!("listening on {scheme}://{address}"));
        }
        for link in links {
            term::error_line(format_args!("log in, once: {link}"));
        }
        term::line(format_args!("listening on {}", socket.path.display()))
    };
    // Nobody reads our output, or a disk is full: the daemon serves clients all the same.
    if let Err(CommandFailure::Problem(problem)) = said {
        tracing::warn!(problem.detail, "failed to say where the daemon listens");
    }
}

/// Tells a service manager, if there is one (`NOTIFY_SOCKET`), how far the daemon is.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "failed to notify the service manager");
    }
}

/// Prints one line for each session, and fails if a process survived.
fn report(receipts: &[Receipt], as_json: bool) -> Result<(), CommandFailure> {
    let said = if as_json { term::json(&receipts) } else { term::out(render::receipt::summaries(receipts)) };
    if let Some(survivors) = receipts.iter().find(|receipt| !receipt.is_empty()) {
        return Err(proxy_manager::Error::Survivors(Box::new(survivors.clone())).into());
    }
    match said {
        Err(CommandFailure::Closed) => Ok(()),
        said => said,
    }
}
