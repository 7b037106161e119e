//! Random configurations, and what is said to an agent.

use ipc_protocol::{
    WorkspaceKind,
    terminal::{OnDetach, Surface, TerminalConfig, TerminalSize},
    *,
};
use proptest::{
    collection::{btree_set, vec},
    option::of,
    prelude::*,
    sample::select,
};

use super::{env, json, limits, one_of, session_id, text};

fn mcp_server() -> impl Strategy<Value = McpServer> {
    let transport = prop_oneof![
        (text(), vec(text(), 0..3), env()).prop_map(|(command, args, env)| McpTransport::Stdio { command, args, env }),
        (text(), env()).prop_map(|(url, headers)| McpTransport::Http { url, headers }),
    ];
    (text(), transport).prop_map(|(name, transport)| McpServer { name, transport })
}

fn resume() -> impl Strategy<Value = ResumeRequest> {
    let from = prop_oneof![
        text().prop_map(|id| ResumeFrom::Native { id }),
        session_id().prop_map(|id| ResumeFrom::Session { id }),
        Just(ResumeFrom::MostRecent),
    ];
    let on_missing = prop_oneof![
        Just(OnMissing::Fail),
        Just(OnMissing::StartAnew),
        text().prop_map(|history| OnMissing::Inject { history }),
    ];
    (from, any::<bool>(), on_missing).prop_map(|(from, fork, on_missing)| ResumeRequest { from, fork, on_missing })
}

pub(crate) fn native_resume() -> impl Strategy<Value = NativeResume> {
    (of(text()), any::<bool>()).prop_map(|(id, fork)| NativeResume { id, fork })
}

pub(crate) fn permission_mode() -> impl Strategy<Value = PermissionMode> {
    one_of(&[PermissionMode::Ask, PermissionMode::Allow, PermissionMode::Deny, PermissionMode::ReadOnly])
}

fn permission_policy() -> impl Strategy<Value = PermissionPolicy> {
    let decisions = one_of(&[RuleDecision::Ask, RuleDecision::Allow, RuleDecision::Deny]);
    let rule = (of(text()), of(text()), of(text()), decisions)
        .prop_map(|(tool, command, path, decision)| PermissionRule { tool, command, path, decision });
    (vec(rule, 0..3), of(any::<u64>()), any::<bool>())
        .prop_map(|(rules, deadline_ms, allow_at_deadline)| PermissionPolicy { rules, deadline_ms, allow_at_deadline })
}

pub(crate) fn timeout_kind() -> impl Strategy<Value = TimeoutKind> {
    one_of(&[
        TimeoutKind::Start,
        TimeoutKind::FirstResponse,
        TimeoutKind::Inactivity,
        TimeoutKind::Turn,
        TimeoutKind::Tool,
    ])
}

pub(crate) fn timeout_action() -> impl Strategy<Value = TimeoutAction> {
    one_of(&[TimeoutAction::Warn, TimeoutAction::AbortTurn, TimeoutAction::KillSession])
}

fn timeouts() -> impl Strategy<Value = Timeouts> {
    (any::<[Option<u64>; 7]>(), timeout_action()).prop_map(|(clocks, action)| {
        let [start_ms, first_response_ms, inactivity_ms, turn_ms, tool_ms, silence_ms, silence_repeat_ms] = clocks;
        Timeouts { start_ms, first_response_ms, inactivity_ms, turn_ms, tool_ms, action, silence_ms, silence_repeat_ms }
    })
}

pub(crate) fn prompt() -> impl Strategy<Value = Prompt> {
    let part = prop_oneof![
        text().prop_map(PromptPart::Text),
        (text(), text()).prop_map(|(mime_type, data)| PromptPart::Image { mime_type, data }),
        text().prop_map(|path| PromptPart::File { path }),
    ];
    vec(part, 0..4).prop_map(Prompt::from)
}

pub(crate) fn operation() -> BoxedStrategy<Operation> {
    prop_oneof![
        text().prop_map(|model| Operation::SetModel { model }),
        text().prop_map(|mode| Operation::SetMode { mode }),
        text().prop_map(|level| Operation::SetThinking { level }),
        Just(Operation::Compact),
        text().prop_map(|instructions| Operation::CompactWith { instructions }),
        Just(Operation::GetState),
        Just(Operation::GetMessages),
        Just(Operation::ListSessions),
        Just(Operation::ListChoices),
        json().prop_map(|message| Operation::Native { message }),
    ]
    .boxed()
}

fn budget() -> impl Strategy<Value = Budget> {
    let tokens = (of(any::<u64>()), of(any::<u64>()), of(any::<u64>()));
    (tokens, of((0..=1_000_000_000_000_000_u64).prop_map(Usd::from_millionths)), budget_action()).prop_map(
        |((input_tokens, output_tokens, total_tokens), cost_usd, action)| Budget {
            input_tokens,
            output_tokens,
            total_tokens,
            cost_usd,
            action,
        },
    )
}

fn lifecycle() -> impl Strategy<Value = Lifecycle> {
    let restart = prop_oneof![
        Just(Restart::Never),
        any::<(u32, u64)>().prop_map(|(max, backoff_ms)| Restart::OnCrash { max, backoff_ms }),
    ];
    let on_missing = one_of(&[ResumeFallback::Fail, ResumeFallback::New, ResumeFallback::History]);
    let once = (any::<bool>(), on_missing, of(text()), of(text()));
    (of(text()), of(text()), vec(text(), 0..3), of(any::<u64>()), any::<bool>(), restart, once).prop_map(
        |(key, title, tags, idle_suspend_ms, resume_on_prompt, restart, once)| {
            let (replace, on_missing, before_start, after_end) = once;
            Lifecycle {
                key,
                title,
                tags,
                idle_suspend_ms,
                resume_on_prompt,
                restart,
                replace,
                on_missing,
                before_start,
                after_end,
            }
        },
    )
}

pub(crate) fn budget_action() -> impl Strategy<Value = BudgetAction> {
    one_of(&[BudgetAction::Warn, BudgetAction::RefusePrompts, BudgetAction::EndTurn, BudgetAction::EndSession])
}

pub(crate) fn budget_kind() -> impl Strategy<Value = BudgetKind> {
    one_of(&[BudgetKind::InputTokens, BudgetKind::OutputTokens, BudgetKind::TotalTokens, BudgetKind::Cost])
}

pub(crate) fn config() -> BoxedStrategy<Box<AgentSessionConfig>> {
    let labels = (session_id(), text(), of(text()), of(text()), of(text()), of(text()), of(text()), of(text()));
    let lists = (vec(text(), 0..4), env(), vec(text(), 0..4), vec(mcp_server(), 0..3));
    let containment = of(select(Containment::ALL.to_vec()).prop_map(|(value, _)| value));
    let hardening = any::<(bool, Option<bool>)>().prop_map(|(undumpable, landlock)| Hardening { undumpable, landlock });
    let exits = one_of(&[OnAgentExit::Kill, OnAgentExit::Keep]);
    let detach = any::<(u64, u64)>()
        .prop_map(|(fetch_within_ms, spool_bytes)| HostDeath::Detach { fetch_within_ms, spool_bytes });
    let ends = (exits, prop_oneof![Just(HostDeath::Kill), detach]);
    let bounds = (of(any::<u32>()), of(any::<u32>()));
    let policies = (permission_mode(), bounds, limits(), ends, containment, hardening, permission_policy());
    let names = (of(text()), of(text()), of(text()), of(text()), of(text()));
    let places = (of(one_of(&[Home::Shared, Home::Own])), of(terminal()), of(surface()));
    let conversation = (of(resume()), any::<bool>(), places, of(any::<bool>()));
    let part = prop_oneof![
        Just(HomePart::Login),
        Just(HomePart::Skills),
        "[a-z.]{1,8}"
            .prop_filter("a name", |name| name.parse::<HomePart>().is_ok())
            .prop_map(|name| name.parse().expect("a part")),
    ];
    let explicit = (btree_set(one_of(&ConfigSetting::ALL), 0..4), btree_set(text(), 0..3), vec(part, 0..3));
    let limited = one_of(&[OnUsageLimit::Fail, OnUsageLimit::Wait]);
    let sandbox = of(one_of(&[AgentSandbox::ReadOnly, AgentSandbox::WorkspaceWrite, AgentSandbox::None]));
    let workspace = of(one_of(&[WorkspaceKind::Off, WorkspaceKind::Copy, WorkspaceKind::Worktree]));
    let container = (of(text()), of(super::engine()), vec(super::session_mount(), 0..2))
        .prop_map(|(image, engine, mounts)| SessionContainer { image, engine, mounts });
    let sandbox = (sandbox, session_sandbox(), workspace, container);
    let nesting = (timeouts(), any::<bool>(), any::<u32>(), explicit, lifecycle(), budget(), limited, sandbox);
    (labels, lists, policies, names, conversation, nesting)
        .prop_map(|(labels, lists, policies, names, conversation, nesting)| {
            let (session_id, agent, agent_type, user_id, workspace_id, cwd, model, system_prompt) = labels;
            let (command, env, tools, mcp_servers) = lists;
            let (permission_mode, (max_turns, max_prompts), limits, ends, containment, hardening, permissions) =
                policies;
            let (on_agent_exit, on_host_death) = ends;
            let (profile, model_config, mode, thinking, endpoint) = names;
            let (resume, ephemeral, (home, terminal, surface), verbatim) = conversation;
            let (
                timeouts,
                runtime_context,
                depth,
                (explicit, not_secret, home_copy),
                lifecycle,
                budget,
                on_usage_limit,
                (agent_sandbox, sandbox, workspace, container),
            ) = nesting;
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
                max_prompts,
                limits,
                on_agent_exit,
                on_host_death,
                permissions,
                profile,
                model_config,
                mode,
                thinking,
                resume,
                ephemeral,
                home,
                endpoint,
                verbatim,
                timeouts,
                runtime_context,
                depth,
                lifecycle,
                containment,
                hardening,
                budget,
                agent_sandbox,
                explicit,
                on_usage_limit,
                not_secret,
                home_copy,
                terminal,
                surface,
                sandbox,
                workspace,
                container,
            })
        })
        .boxed()
}

fn session_sandbox() -> impl Strategy<Value = SessionSandbox> {
    let mode = of(one_of(&SandboxMode::ALL.map(|(mode, _)| mode)));
    (mode, vec(text(), 0..3), vec(text(), 0..3), of(super::network()))
        .prop_map(|(mode, read, write, network)| SessionSandbox { mode, read, write, network })
}

pub(crate) fn surface() -> impl Strategy<Value = Surface> {
    one_of(&[Surface::Machine, Surface::Terminal, Surface::Both])
}

pub(crate) fn terminal() -> BoxedStrategy<TerminalConfig> {
    let on_detach = prop_oneof![Just(OnDetach::Keep), Just(OnDetach::End)];
    let color = || of(any::<[u8; 3]>());
    (any::<(u16, u16, u16, bool, bool)>(), on_detach, (of(text()), of(text()), of(text())), color(), color())
        .prop_map(
            |(
                (rows, columns, first_row, visit, observed),
                on_detach,
                (record, reports, commands),
                foreground,
                background,
            )| {
                TerminalConfig {
                    size: TerminalSize { rows, columns },
                    on_detach,
                    record,
                    first_row,
                    foreground,
                    background,
                    visit,
                    observed,
                    reports,
                    commands,
                }
            },
        )
        .boxed()
}
