//! Random values of everything that crosses the wire.

use std::time::{Duration, SystemTime};

use ipc_protocol::{
    message::{AgentCommand, FromForkServer, FromProxy, Handover, Hello, ToForkServer, ToProxy},
    *,
};
use proptest::{
    collection::{btree_map, vec},
    option::of,
    prelude::*,
    sample::select,
};

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
    "[A-Za-z0-9._-]{1,64}".prop_map(|id| id.parse().expect("a valid id"))
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
        of(exit_status()),
        of(any::<u16>().prop_map(|percent| f32::from(percent) / 64.0)),
        of(any::<u64>()),
        any::<bool>(),
    );
    (ids, words, state).prop_map(
        |(
            (id, [ppid, pgid, sid], session_id),
            (command, args, cwd),
            (at, status, exit, cpu_percent, rss_bytes, tracked),
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
                cpu_percent,
                rss_bytes,
                tracked,
            }
        },
    )
}

fn receipt_entry() -> impl Strategy<Value = ReceiptEntry> {
    let outcome = prop_oneof![exit_status().prop_map(Outcome::Ended), Just(Outcome::Gone), Just(Outcome::Survived)];
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
    (session_id(), one_of(&causes), lists, figures, proof, layers()).prop_map(
        |(session_id, cause, (processes, unattributed, survivors), figures, proof, layers)| {
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
                ..Receipt::begin(session_id, cause)
            })
        },
    )
}

fn layers() -> impl Strategy<Value = Vec<Layer>> {
    vec(one_of(&[Layer::Baseline, Layer::Cgroup, Layer::Strict]), 0..3)
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

fn measures() -> impl Strategy<Value = Box<Measures>> {
    let limit = (limit_kind(), any::<u64>(), limit_form());
    let limit = limit.prop_map(|(limit, value, form)| LimitInForce { limit, value, form });
    let observer = one_of(&[Observer::Connector, Observer::Polling]);
    (layers(), observer, vec(limit, 0..4), any::<(bool, bool)>()).prop_map(
        |(layers, observer, limits, (undumpable, landlock))| {
            Box::new(Measures { layers, observer, limits, undumpable, landlock })
        },
    )
}

fn enclosure() -> impl Strategy<Value = Enclosure> {
    (text(), of(text()), any::<bool>()).prop_map(|(marker, cgroup, strict)| Enclosure { marker, cgroup, strict })
}

pub(crate) fn handover() -> impl Strategy<Value = Handover> {
    (session_id(), any::<bool>()).prop_map(|(session, observed)| Handover { session, observed })
}

fn end_reason() -> BoxedStrategy<EndReason> {
    prop_oneof![
        Just(EndReason::Killed),
        of(exit_status()).prop_map(EndReason::AgentExited),
        text().prop_map(EndReason::Failed),
        of(exit_status()).prop_map(EndReason::ProxyDied),
        Just(EndReason::ForkServerDied),
        Just(EndReason::HostDied),
        limit_kind().prop_map(EndReason::LimitExceeded),
        Just(EndReason::Shutdown),
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
        process_id().prop_map(|process| WireError::UnknownProcess { process }),
        text().prop_map(|id| WireError::UnknownPermission { id }),
        (two(), vec(text(), 0..4)).prop_map(|((id, option), options)| WireError::UnknownOption { id, option, options }),
        (text(), any::<u64>()).prop_map(|(operation, after_ms)| WireError::Deadline { operation, after_ms }),
        text().prop_map(|reason| WireError::AgentDied { reason }),
        two().prop_map(|(agent, reason)| WireError::AgentProtocol { agent, reason }),
        text().prop_map(|reason| WireError::Protocol { reason }),
        any::<(u32, u32)>().prop_map(|(ours, theirs)| WireError::VersionMismatch { ours, theirs }),
        receipt().prop_map(WireError::Survivors),
        two().prop_map(|(operation, reason)| WireError::System { operation, reason }),
    ]
    .boxed()
}

fn mcp_server() -> impl Strategy<Value = McpServer> {
    let transport = prop_oneof![
        (text(), vec(text(), 0..3), env()).prop_map(|(command, args, env)| McpTransport::Stdio { command, args, env }),
        (text(), env()).prop_map(|(url, headers)| McpTransport::Http { url, headers }),
    ];
    (text(), transport).prop_map(|(name, transport)| McpServer { name, transport })
}

fn config() -> impl Strategy<Value = Box<AgentSessionConfig>> {
    let modes = [PermissionMode::Ask, PermissionMode::Allow, PermissionMode::Deny];
    let labels = (session_id(), text(), of(text()), of(text()), of(text()), of(text()), of(text()), of(text()));
    let lists = (vec(text(), 0..4), env(), vec(text(), 0..4), vec(mcp_server(), 0..3));
    let containment = of(select(Containment::ALL.to_vec()).prop_map(|(value, _)| value));
    let hardening = any::<(bool, Option<bool>)>().prop_map(|(undumpable, landlock)| Hardening { undumpable, landlock });
    let exits = one_of(&[OnAgentExit::Kill, OnAgentExit::Keep]);
    let policies = (one_of(&modes), of(any::<u32>()), limits(), exits, containment, hardening);
    (labels, lists, policies).prop_map(|(labels, lists, policies)| {
        let (session_id, agent, agent_type, user_id, workspace_id, cwd, model, system_prompt) = labels;
        let (command, env, tools, mcp_servers) = lists;
        let (permission_mode, max_turns, limits, on_agent_exit, containment, hardening) = policies;
        Box::new(AgentSessionConfig {
            session_id,
            agent,
            command,
            agent_type,
            user_id,
            workspace_id,
            cwd,
            model,
            system_prompt,
            env,
            tools,
            mcp_servers,
            permission_mode,
            max_turns,
            limits,
            on_agent_exit,
            containment,
            hardening,
        })
    })
}

fn usage() -> impl Strategy<Value = Box<Usage>> {
    let count = || of(any::<u64>());
    // A fraction that decimal digits can say.
    let cost = any::<u32>().prop_map(|n| f64::from(n) / 1024.0);
    (count(), count(), count(), count(), of(cost)).prop_map(|(input, output, read, write, cost_usd)| {
        Box::new(Usage {
            input_tokens: input,
            output_tokens: output,
            cache_read_tokens: read,
            cache_write_tokens: write,
            cost_usd,
        })
    })
}

fn stop_reason() -> impl Strategy<Value = StopReason> {
    prop_oneof![
        Just(StopReason::EndTurn),
        Just(StopReason::Cancelled),
        Just(StopReason::Refusal),
        Just(StopReason::MaxTokens),
        Just(StopReason::MaxRequests),
        text().prop_map(StopReason::Other),
    ]
}

fn tool_status() -> impl Strategy<Value = ToolStatus> {
    one_of(&[ToolStatus::Pending, ToolStatus::InProgress, ToolStatus::Completed, ToolStatus::Failed])
}

fn permission_request() -> impl Strategy<Value = PermissionRequest> {
    let kinds = [
        PermissionOptionKind::AllowOnce,
        PermissionOptionKind::AllowAlways,
        PermissionOptionKind::RejectOnce,
        PermissionOptionKind::RejectAlways,
        PermissionOptionKind::Other,
    ];
    let option = (text(), text(), one_of(&kinds)).prop_map(|(id, name, kind)| PermissionOption { id, name, kind });
    (text(), of(text()), text(), json(), vec(option, 0..4)).prop_map(|(id, tool_call_id, title, input, options)| {
        PermissionRequest { id, tool_call_id, title, input, options }
    })
}

fn permission_answer() -> impl Strategy<Value = PermissionAnswer> {
    prop_oneof![
        Just(PermissionAnswer::Allow),
        Just(PermissionAnswer::Deny),
        text().prop_map(PermissionAnswer::Option),
        Just(PermissionAnswer::Cancelled),
    ]
}

fn tool_event() -> impl Strategy<Value = Event> {
    let start =
        (text(), text(), text(), text(), json(), tool_status()).prop_map(|(id, name, title, kind, input, status)| {
            Event::ToolStart(Box::new(ToolStart { id, name, title, kind, input, status }))
        });
    let update = (text(), of(text()), of(tool_status()), of(json()), of(text())).prop_map(
        |(id, title, status, input, output)| {
            Event::ToolUpdate(Box::new(ToolUpdate { id, title, status, input, output }))
        },
    );
    let end = (text(), tool_status(), text())
        .prop_map(|(id, status, output)| Event::ToolEnd(Box::new(ToolEnd { id, status, output })));
    prop_oneof![start, update, end]
}

pub(crate) fn event() -> BoxedStrategy<Event> {
    let plan_entry =
        (text(), text(), text()).prop_map(|(content, status, priority)| PlanEntry { content, status, priority });
    let by = one_of(&[ResolvedBy::User, ResolvedBy::Mode, ResolvedBy::Abort]);
    prop_oneof![
        (text(), process_id(), process_id(), of(text()), measures()).prop_map(
            |(agent, process, proxy, native_session_id, measures)| {
                Event::SessionStarted { agent, process, proxy, native_session_id, measures }
            }
        ),
        Just(Event::SessionIdle {}),
        Just(Event::SessionBusy {}),
        (text(), text()).prop_map(|(status, detail)| Event::SessionStatus { status, detail }),
        (end_reason(), of(receipt())).prop_map(|(reason, receipt)| Event::SessionEnded { reason, receipt }),
        any::<(u64, u64)>().prop_map(|(from, to)| Event::SessionGap(Gap { from, to })),
        text().prop_map(|reason| Event::SessionLossy { reason }),
        text().prop_map(|prompt| Event::TurnStarted { prompt }),
        text().prop_map(|text| Event::Text { text }),
        text().prop_map(|text| Event::Thinking { text }),
        tool_event(),
        vec(plan_entry, 0..4).prop_map(|entries| Event::Plan { entries }),
        usage().prop_map(Event::Usage),
        any::<(u64, u64)>().prop_map(|(used, size)| Event::ContextWindow { used, size }),
        (stop_reason(), of(usage())).prop_map(|(stop_reason, usage)| Event::Complete { stop_reason, usage }),
        (text(), text(), any::<bool>()).prop_map(|(code, message, retryable)| Event::Error {
            code,
            message,
            retryable
        }),
        permission_request().prop_map(|request| Event::PermissionRequested(Box::new(request))),
        (text(), of(text()), by).prop_map(|(id, option, by)| Event::PermissionResolved { id, option, by }),
        process_info().prop_map(|info| Event::ProcessSpawned(Box::new(info))),
        (process_id(), of(text()), of(exit_status())).prop_map(|(process, command, exit)| Event::ProcessExited {
            process,
            command,
            exit
        }),
        (limit_kind(), any::<(u64, u64)>(), limit_form(), limit_action(), of(process_id())).prop_map(
            |(limit, (value, measured), form, action, process)| {
                Event::LimitExceeded(Box::new(LimitExceeded { limit, value, measured, form, action, process }))
            }
        ),
        (text(), text()).prop_map(|(action, error)| Event::ActionFailed { action, error }),
        (text(), text()).prop_map(|(stream, text)| Event::Log { stream, text }),
    ]
    .boxed()
}

fn hello() -> impl Strategy<Value = Hello> {
    (any::<u32>(), process_id()).prop_map(|(version, process)| Hello { version, process })
}

fn agent_command() -> impl Strategy<Value = Box<AgentCommand>> {
    (text(), text(), vec(text(), 0..4), env(), any::<bool>()).prop_map(
        |(agent, protocol, argv, env, steer_by_prompt)| {
            Box::new(AgentCommand { agent, protocol, argv, env, steer_by_prompt })
        },
    )
}

pub(crate) fn to_proxy() -> BoxedStrategy<ToProxy> {
    let id = any::<u64>;
    let policies = [AbortPolicy::LeaveProcesses, AbortPolicy::KillTurnProcesses];
    prop_oneof![
        hello().prop_map(ToProxy::Hello),
        (id(), config(), agent_command(), enclosure()).prop_map(|(request, config, command, enclosure)| {
            ToProxy::Start { request, config, command, enclosure: Box::new(enclosure) }
        }),
        (id(), id(), text()).prop_map(|(request, turn, text)| ToProxy::Prompt { request, turn, text }),
        (id(), text()).prop_map(|(request, text)| ToProxy::Steer { request, text }),
        (id(), one_of(&policies), kill_options()).prop_map(|(request, policy, options)| ToProxy::Abort {
            request,
            policy,
            options
        }),
        (id(), text(), permission_answer()).prop_map(|(request, id, answer)| ToProxy::Permission {
            request,
            id,
            answer
        }),
        id().prop_map(|request| ToProxy::ListProcesses { request }),
        (id(), process_id(), any::<bool>(), kill_options())
            .prop_map(|(request, process, tree, options)| ToProxy::KillProcess { request, process, tree, options }),
        (id(), kill_options()).prop_map(|(request, options)| ToProxy::KillAll { request, options }),
        (kill_options(), end_reason()).prop_map(|(options, reason)| ToProxy::Shutdown { options, reason }),
        id().prop_map(|request| ToProxy::Ping { request }),
    ]
    .boxed()
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
        id().prop_map(|request| FromProxy::Done { request }),
        (id(), wire_error()).prop_map(|(request, error)| FromProxy::Failed { request, error }),
        id().prop_map(|request| FromProxy::Pong { request }),
        (exit_status(), any::<bool>()).prop_map(|(exit, kept)| FromProxy::AgentExited { exit, kept }),
        (end_reason(), receipt()).prop_map(|(reason, receipt)| FromProxy::Ended { reason, receipt }),
    ]
    .boxed()
}

pub(crate) fn to_fork_server() -> BoxedStrategy<ToForkServer> {
    prop_oneof![
        hello().prop_map(ToForkServer::Hello),
        (session_id(), enclosure()).prop_map(|(session, enclosure)| ToForkServer::Fork { session, enclosure }),
        session_id().prop_map(|session| ToForkServer::List { session }),
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
    ]
    .boxed()
}
