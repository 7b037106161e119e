//! Random values of everything that crosses the wire.

mod config;
mod events;
mod terminals;

use std::time::{Duration, SystemTime};

use ipc_protocol::{
    message::{
        AgentCommand, AgentFact, AttachedSession, DetachSpec, DetachedSession, FromForkServer, FromProxy, Hello,
        PermissionSupport, ProxyCommand, ProxyHandover, ToForkServer, ToProxy,
    },
    *,
};
use proptest::{
    collection::{btree_map, vec},
    option::of,
    prelude::*,
    sample::select,
};

pub(crate) use config::operation;
use config::{config, native_resume, prompt, terminal};
pub(crate) use events::{event, permission_answer, resolved_by};
pub(crate) use terminals::{from_terminal, to_terminal};

fn one_of<T: Clone + std::fmt::Debug + 'static>(values: &[T]) -> impl Strategy<Value = T> + use<T> {
    select(values.to_vec())
}

fn text() -> BoxedStrategy<String> {
    prop_oneof![4 => "\\PC{0,12}", 1 => "(?s).{0,40}"].boxed()
}

fn env() -> impl Strategy<Value = EnvVars> {
    btree_map(text(), text(), 0..4).prop_map(EnvVars)
}

fn json() -> impl Strategy<Value = Json> {
    let document = prop_oneof![
        Just(serde_json::Value::Bool(true)),
        text().prop_map(serde_json::Value::from),
        vec(any::<u32>(), 0..4).prop_map(serde_json::Value::from),
        (text(), text()).prop_map(|(key, value)| serde_json::json!({ key: { "nested": [value, null, 1.5] } })),
    ];
    document.prop_map(|value| Json::from(&value))
}

fn process_id() -> impl Strategy<Value = ProcessId> {
    (any::<u32>(), any::<u64>()).prop_map(|(pid, start_time)| ProcessId { pid, start_time })
}

fn session_id() -> impl Strategy<Value = SessionId> {
    "[A-Za-z0-9._-]{1,64}".prop_filter_map("not a directory", |id| id.parse().ok())
}

fn exit_status() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![any::<i32>().prop_map(ExitStatus::Code), any::<i32>().prop_map(ExitStatus::Signal)]
}

fn kill_options() -> impl Strategy<Value = KillOptions> {
    any::<u32>().prop_map(|millis| KillOptions::grace(Duration::from_millis(millis.into())))
}

fn process_info() -> impl Strategy<Value = ProcessInfo> {
    let status = [ProcessStatus::Running, ProcessStatus::Completed, ProcessStatus::Killed, ProcessStatus::Error];
    let ids = (process_id(), any::<[u32; 3]>(), session_id());
    let words = (of(text()), vec(text(), 0..4), of(text()));
    let state = (
        any::<u32>(),
        one_of(&status),
        (of(exit_status()), of(text())),
        of(any::<u16>().prop_map(|percent| f32::from(percent) / 64.0)),
        of(any::<u64>()),
        any::<bool>(),
    );
    (ids, words, state).prop_map(
        |(
            (id, [ppid, pgid, sid], session_id),
            (command, args, cwd),
            (at, status, (exit, error), cpu_percent, rss_bytes, tracked),
        )| {
            ProcessInfo {
                id,
                ppid,
                pgid,
                sid,
                session_id,
                command,
                args,
                cwd,
                started_at: SystemTime::UNIX_EPOCH + Duration::from_millis(at.into()),
                status,
                exit,
                error,
                cpu_percent,
                rss_bytes,
                tracked,
            }
        },
    )
}

fn receipt_entry() -> impl Strategy<Value = ReceiptEntry> {
    let outcome = prop_oneof![
        exit_status().prop_map(ProcessOutcome::Ended),
        Just(ProcessOutcome::Gone),
        Just(ProcessOutcome::Survived)
    ];
    let reaped_by = of(one_of(&[ReapedBy::Proxy, ReapedBy::ForkServer, ReapedBy::Parent, ReapedBy::System]));
    (process_id(), any::<[u32; 3]>(), of(text()), outcome, reaped_by).prop_map(
        |(id, [ppid, pgid, sid], command, outcome, reaped_by)| ReceiptEntry {
            id,
            ppid,
            pgid,
            sid,
            command,
            outcome,
            reaped_by,
        },
    )
}

fn receipt() -> impl Strategy<Value = Box<Receipt>> {
    let causes = [
        KillCause::KillSession,
        KillCause::KillAll,
        KillCause::KillProcess,
        KillCause::AgentExit,
        KillCause::Failed,
        KillCause::Shutdown,
        KillCause::HostDied,
        KillCause::Lease,
        KillCause::ProxyDied,
        KillCause::ForkServerDied,
        KillCause::AbortTurn,
        KillCause::Limit,
        KillCause::Recovery,
    ];
    let proof = prop_oneof![
        Just(Proof::NoChildren),
        any::<u32>().prop_map(Proof::QuietRounds),
        Just(Proof::ProcessGone),
        Just(Proof::None),
    ];
    let lists = (vec(receipt_entry(), 0..4), vec(receipt_entry(), 0..2), vec(process_id(), 0..3));
    let figures = any::<(u32, u64, u64, Option<bool>, Option<bool>)>();
    let removal = (text(), any::<bool>(), of(text()));
    let removal = removal.prop_map(|(name, is_removed, failure)| ContainerRemoval { name, is_removed, failure });
    (session_id(), one_of(&causes), lists, figures, proof, layers(), of(removal)).prop_map(
        |(session_id, cause, (processes, unattributed, survivors), figures, proof, layers, container)| {
            let (rounds, duration_us, omitted, cgroup_empty, unmarked) = figures;
            Box::new(Receipt {
                processes,
                unattributed,
                survivors,
                rounds,
                duration_us,
                proof,
                layers,
                omitted,
                cgroup_empty,
                unmarked,
                container,
                ..Receipt::begin(session_id, cause)
            })
        },
    )
}

fn layers() -> impl Strategy<Value = Vec<ContainmentLayer>> {
    vec(one_of(&[ContainmentLayer::Baseline, ContainmentLayer::Cgroup, ContainmentLayer::Strict]), 0..3)
}

fn limit_kind() -> impl Strategy<Value = LimitKind> {
    select(LimitKind::ALL.to_vec()).prop_map(|(kind, _)| kind)
}

fn limit_form() -> impl Strategy<Value = LimitForm> {
    one_of(&[LimitForm::Cgroup, LimitForm::Rlimit, LimitForm::Clock, LimitForm::Watchdog])
}

fn limit_action() -> impl Strategy<Value = LimitAction> {
    select(LimitAction::ALL.to_vec()).prop_map(|(action, _)| action)
}

fn limits() -> impl Strategy<Value = Limits> {
    let six = any::<[Option<u64>; 7]>();
    (six, any::<bool>(), limit_action()).prop_map(|(values, core_dumps, on_limit)| {
        let [memory_bytes, processes, cpu_time_ms, cpu_percent, open_files, file_size_bytes, wall_clock_ms] = values;
        Limits {
            memory_bytes,
            processes,
            cpu_time_ms,
            cpu_percent,
            open_files,
            file_size_bytes,
            wall_clock_ms,
            core_dumps,
            on_limit,
        }
    })
}

fn measures() -> impl Strategy<Value = Box<ContainmentStatus>> {
    let limit = (limit_kind(), any::<u64>(), limit_form());
    let limit = limit.prop_map(|(limit, value, form)| LimitInForce { limit, value, form });
    let observer = one_of(&[ObserverKind::Connector, ObserverKind::Polling]);
    (
        layers(),
        observer,
        vec(limit, 0..4),
        any::<(bool, bool, bool)>(),
        of(text()),
        of(sandbox_status()),
        of(container_status()),
    )
        .prop_map(
            |(
                layers,
                observer,
                limits,
                (undumpable, landlock, own_cgroups_only),
                agent_sandbox,
                sandbox,
                container,
            )| {
                Box::new(ContainmentStatus {
                    layers,
                    observer,
                    limits,
                    undumpable,
                    landlock,
                    own_cgroups_only,
                    agent_sandbox,
                    sandbox,
                    container,
                })
            },
        )
}

fn enclosure() -> impl Strategy<Value = ContainmentSpec> {
    let files = (vec(text(), 0..3), vec(text(), 0..3), file_layer()).prop_map(|(hidden, shown, layer)| HiddenFiles {
        hidden,
        shown,
        layer,
    });
    let container = (text(), env(), text(), container_status())
        .prop_map(|(program, env, name, status)| Box::new(ContainerSpec { program, env, name, status }));
    let overlay = (text(), text(), text(), text())
        .prop_map(|(tree, lower, upper, work)| Box::new(OverlaySpec { tree, lower, upper, work }));
    let parts = (of(sandbox_spec()), files.prop_map(Box::new), of(container), of(overlay));
    (text(), of(text()), any::<bool>(), parts).prop_map(
        |(marker, cgroup, strict, (sandbox, files, container, overlay))| ContainmentSpec {
            marker,
            cgroup,
            strict,
            sandbox,
            files,
            container,
            overlay,
        },
    )
}

pub(crate) fn engine() -> impl Strategy<Value = ContainerEngine> {
    one_of(&ContainerEngine::ALL.map(|(engine, _)| engine))
}

pub(crate) fn session_mount() -> impl Strategy<Value = SessionMount> {
    (text(), text(), any::<bool>()).prop_map(|(source, target, read_only)| SessionMount { source, target, read_only })
}

fn container_status() -> impl Strategy<Value = ContainerStatus> {
    (engine(), text(), text(), vec(session_mount(), 0..3), any::<bool>()).prop_map(
        |(engine, image, name, mounts, network_off)| ContainerStatus { engine, image, name, mounts, network_off },
    )
}

fn file_layer() -> impl Strategy<Value = FileLayer> {
    one_of(&FileLayer::ALL.map(|(layer, _)| layer))
}

fn sandbox_mode() -> impl Strategy<Value = SandboxMode> {
    one_of(&SandboxMode::ALL.map(|(mode, _)| mode))
}

fn network() -> impl Strategy<Value = NetworkAccess> {
    let rule = select(vec!["a.example", "*.b.example", "192.0.2.1:8080"]);
    let rules = vec(rule.prop_map(|rule| rule.parse().expect("a rule")), 0..3);
    prop_oneof![Just(NetworkAccess::Host), Just(NetworkAccess::Off), rules.prop_map(NetworkAccess::Allow)]
}

fn sandbox_spec() -> impl Strategy<Value = Box<SandboxSpec>> {
    let paths = || vec(text(), 0..3);
    let places = (of(text()), of(text()));
    (sandbox_mode(), paths(), paths(), paths(), places, network(), file_layer()).prop_map(
        |(mode, write, read, hidden, (home, temporary), network, layer)| {
            Box::new(SandboxSpec { mode, write, read, hidden, home, network, layer, temporary })
        },
    )
}

fn sandbox_status() -> impl Strategy<Value = SandboxStatus> {
    let paths = || vec(text(), 0..3);
    (sandbox_mode(), text(), paths(), paths(), network())
        .prop_map(|(mode, layer, write, hidden, network)| SandboxStatus { mode, layer, write, hidden, network })
}

pub(crate) fn handover() -> impl Strategy<Value = ProxyHandover> {
    let session = (session_id(), any::<bool>(), of(detach().prop_map(Box::new)))
        .prop_map(|(session, observed, detach)| ProxyHandover::Session { session, observed, detach });
    let adopt = any::<(u64, bool)>().prop_map(|(after_seq, described)| ProxyHandover::Adopt { after_seq, described });
    prop_oneof![session, adopt, Just(ProxyHandover::HostGone), Just(ProxyHandover::View)]
}

fn detach() -> impl Strategy<Value = DetachSpec> {
    (text(), any::<(u64, u64)>()).prop_map(|(directory, (fetch_within_ms, spool_bytes))| DetachSpec {
        directory,
        fetch_within_ms,
        spool_bytes,
    })
}

pub(crate) fn end_reason() -> BoxedStrategy<EndReason> {
    prop_oneof![
        Just(EndReason::Killed),
        of(exit_status()).prop_map(EndReason::AgentExited),
        text().prop_map(EndReason::Failed),
        of(exit_status()).prop_map(EndReason::ProxyDied),
        Just(EndReason::ForkServerDied),
        Just(EndReason::HostDied),
        limit_kind().prop_map(EndReason::LimitExceeded),
        config::timeout_kind().prop_map(EndReason::TimedOut),
        Just(EndReason::Shutdown),
        config::budget_kind().prop_map(EndReason::BudgetExceeded),
        any::<u32>().prop_map(EndReason::Unresponsive),
        Just(EndReason::Suspended),
    ]
    .boxed()
}

pub(crate) fn wire_error() -> BoxedStrategy<WireError> {
    let two = || (text(), text());
    prop_oneof![
        two().prop_map(|(program, searched)| WireError::ProgramNotFound { program, searched }),
        two().prop_map(|(cwd, reason)| WireError::CwdMissing { cwd, reason }),
        (text(), two()).prop_map(|(program, (step, reason))| WireError::Spawn { program, step, reason }),
        text().prop_map(|operation| WireError::FdsExhausted { operation }),
        Just(WireError::Busy),
        two().prop_map(|(agent, operation)| WireError::Unsupported { agent, operation }),
        any::<u32>().prop_map(|pid| WireError::UnknownProcess { pid }),
        text().prop_map(|id| WireError::UnknownPermission { id }),
        (two(), vec(text(), 0..4)).prop_map(|((id, option), options)| WireError::UnknownOption { id, option, options }),
        (text(), any::<u64>()).prop_map(|(operation, after_ms)| WireError::Deadline { operation, after_ms }),
        text().prop_map(|reason| WireError::AgentDied { reason }),
        two().prop_map(|(agent, reason)| WireError::AgentProtocol { agent, reason }),
        two().prop_map(|(agent, reason)| WireError::AgentRefused { agent, reason }),
        (text(), two()).prop_map(|(agent, (id, reason))| WireError::NativeSessionMissing { agent, id, reason }),
        text().prop_map(|reason| WireError::Protocol { reason }),
        any::<(u32, u32)>().prop_map(|(ours, theirs)| WireError::VersionMismatch { ours, theirs }),
        receipt().prop_map(WireError::Survivors),
        two().prop_map(|(operation, reason)| WireError::System { operation, reason }),
    ]
    .boxed()
}

fn hello() -> impl Strategy<Value = Hello> {
    (any::<u32>(), process_id()).prop_map(|(version, process)| Hello { version, process })
}

fn agent_command() -> impl Strategy<Value = Box<AgentCommand>> {
    let endpoint =
        (of(text()), text(), of(text())).prop_map(|(url, user, password)| AgentEndpoint { url, user, password });
    let names = (text(), text(), vec(text(), 0..4), env(), of(text()), json(), text());
    let private = vec(text(), 0..3);
    let asking = (vec(text(), 0..3), any::<bool>(), vec(text(), 0..3), of(text()), of(text())).prop_map(
        |(asks, has_user_settings, tried, program, sandbox)| PermissionSupport {
            asks,
            has_user_settings,
            tried,
            program,
            sandbox,
        },
    );
    let upstream = (any::<(bool, u16)>(), text(), text(), text(), text()).prop_map(
        |((is_encrypted, port), host, path, placeholder, key)| ModelUpstream {
            is_encrypted,
            host,
            port,
            path,
            placeholder,
            key,
        },
    );
    let places = (private, asking, of(any::<u32>()), vec(text(), 0..3), of(text()), of(upstream));
    (names, of(native_resume()), of(endpoint), places).prop_map(
        |(names, resume, endpoint, (private, asking, max_turns, companion, socket, upstream))| {
            let (agent, protocol, argv, env, cwd, protocol_config, fresh_id) = names;
            Box::new(AgentCommand {
                agent,
                protocol,
                argv,
                env,
                cwd,
                protocol_config,
                fresh_id,
                resume,
                endpoint,
                max_turns,
                private,
                asking,
                companion,
                socket,
                upstream,
            })
        },
    )
}

pub(crate) fn to_proxy() -> BoxedStrategy<ToProxy> {
    let id = any::<u64>;
    prop_oneof![
        1 => hello().prop_map(ToProxy::Hello),
        9 => (id(), proxy_command()).prop_map(|(request, command)| ToProxy::Request { request, command }),
        1 => id().prop_map(|seq| ToProxy::Ack { seq }),
        1 => id().prop_map(|request| ToProxy::GiveUp { request }),
    ]
    .boxed()
}

pub(crate) fn proxy_command() -> BoxedStrategy<ProxyCommand> {
    let policies = [AbortPolicy::LeaveProcesses, AbortPolicy::KillTurnProcesses];
    prop_oneof![
        (config(), agent_command(), enclosure()).prop_map(|(config, command, enclosure)| {
            ProxyCommand::Start { config, command, enclosure: Box::new(enclosure) }
        }),
        (any::<u64>(), prompt()).prop_map(|(turn, prompt)| ProxyCommand::Prompt { turn, prompt }),
        prompt().prop_map(|prompt| ProxyCommand::Steer { prompt }),
        operation().prop_map(|operation| ProxyCommand::Operate { operation }),
        (one_of(&policies), kill_options()).prop_map(|(policy, options)| ProxyCommand::Abort { policy, options }),
        (text(), permission_answer(), of(text())).prop_map(|(id, answer, by)| ProxyCommand::Permission {
            id,
            answer,
            by
        }),
        Just(ProxyCommand::ListProcesses),
        (kill_scope(), kill_options(), end_reason()).prop_map(|(scope, options, reason)| ProxyCommand::Kill {
            scope,
            options,
            reason
        }),
        Just(ProxyCommand::Ping),
    ]
    .boxed()
}

fn kill_scope() -> impl Strategy<Value = KillScope> {
    prop_oneof![
        Just(KillScope::Session),
        Just(KillScope::AllButAgent),
        (any::<u32>(), any::<bool>()).prop_map(|(pid, tree)| KillScope::Process { pid, tree }),
    ]
}

fn agent_fact() -> impl Strategy<Value = AgentFact> {
    prop_oneof![
        text().prop_map(|detail| AgentFact::NotResumable { detail }),
        text().prop_map(|address| AgentFact::ServerListens { address }),
        (of(text()), of(text()), of(text())).prop_map(|(model, mode, thinking)| AgentFact::Settings {
            model,
            mode,
            thinking
        }),
    ]
}

pub(crate) fn from_proxy() -> BoxedStrategy<FromProxy> {
    let id = any::<u64>;
    prop_oneof![
        hello().prop_map(FromProxy::Hello),
        (id(), process_id(), of(text()), any::<bool>(), measures()).prop_map(
            |(request, process, native_session_id, turns, measures)| {
                FromProxy::Started { request, process, native_session_id, turns, measures }
            }
        ),
        (id(), event()).prop_map(|(turn, event)| FromProxy::Event { turn, event }),
        id().prop_map(|turn| FromProxy::TurnEnded { turn }),
        (id(), vec(process_info(), 0..4)).prop_map(|(request, processes)| FromProxy::Processes { request, processes }),
        (id(), receipt()).prop_map(|(request, receipt)| FromProxy::Receipt { request, receipt }),
        (id(), json()).prop_map(|(request, reply)| FromProxy::Reply { request, reply }),
        text().prop_map(|id| FromProxy::NativeSession { id }),
        id().prop_map(|request| FromProxy::Done { request }),
        (id(), wire_error()).prop_map(|(request, error)| FromProxy::Failed { request, error }),
        agent_fact().prop_map(FromProxy::Fact),
        (exit_status(), any::<bool>()).prop_map(|(exit, kept)| FromProxy::AgentExited { exit, kept }),
        (end_reason(), receipt()).prop_map(|(reason, receipt)| FromProxy::Ended { reason, receipt }),
        attached().prop_map(|attached| FromProxy::Attached(Box::new(attached))),
    ]
    .boxed()
}

fn attached() -> impl Strategy<Value = AttachedSession> {
    let numbers = any::<(u64, u64, u64, u64)>();
    let names = (of(text()), of(text()), of(text()), of(text()));
    let turns = any::<(bool, Option<u64>, u64)>();
    (numbers, of(process_id()), names, turns, of(measures()), of(end_reason())).prop_map(
        |(numbers, agent, names, (turns, turn, turn_count), measures, ending)| {
            let (epoch, next_seq, waiting, detached_ms) = numbers;
            let (native_session_id, model, mode, thinking) = names;
            let (measures, permissions) = (measures.map(|measures| *measures), Vec::new());
            AttachedSession {
                epoch,
                next_seq,
                waiting,
                detached_ms,
                agent,
                native_session_id,
                turns,
                measures,
                turn,
                turn_count,
                permissions,
                model,
                mode,
                thinking,
                ending,
            }
        },
    )
}

pub(crate) fn to_fork_server() -> BoxedStrategy<ToForkServer> {
    prop_oneof![
        hello().prop_map(ToForkServer::Hello),
        (session_id(), enclosure(), limits(), of(detach().prop_map(Box::new)), json()).prop_map(
            |(session, enclosure, limits, detach, card)| ToForkServer::Fork {
                session,
                enclosure: Box::new(enclosure),
                limits,
                detach,
                card
            }
        ),
        (session_id(), any::<u64>()).prop_map(|(session, after_seq)| ToForkServer::Adopt { session, after_seq }),
        session_id().prop_map(|session| ToForkServer::List { session }),
        session_id().prop_map(|session| ToForkServer::View { session }),
        Just(ToForkServer::Probe),
        any::<u64>().prop_map(|until_ms| ToForkServer::Lease { until_ms }),
        (session_id(), kill_options()).prop_map(|(session, options)| ToForkServer::Kill { session, options }),
    ]
    .boxed()
}

pub(crate) fn from_fork_server() -> BoxedStrategy<FromForkServer> {
    prop_oneof![
        hello().prop_map(FromForkServer::Hello),
        (session_id(), process_id()).prop_map(|(session, process)| FromForkServer::Forked { session, process }),
        (session_id(), wire_error()).prop_map(|(session, error)| FromForkServer::ForkFailed { session, error }),
        (session_id(), event()).prop_map(|(session, event)| FromForkServer::Observed { session, event }),
        (session_id(), vec(process_info(), 0..4))
            .prop_map(|(session, processes)| FromForkServer::Listed { session, processes }),
        (session_id(), process_id(), of(exit_status()), receipt()).prop_map(|(session, process, exit, receipt)| {
            FromForkServer::ProxyGone { session, process, exit, receipt }
        }),
        vec((session_id(), process_id(), json()), 0..4).prop_map(|sessions| {
            let session = |(session, process, card)| DetachedSession { session, process, card };
            FromForkServer::Detached(sessions.into_iter().map(session).collect())
        }),
    ]
    .boxed()
}
