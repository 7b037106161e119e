//! Random events.

use ipc_protocol::*;
use proptest::{collection::vec, option::of, prelude::*};

use super::{
    config::{budget_action, budget_kind, permission_mode, surface, timeout_action, timeout_kind},
    end_reason, exit_status, json, limit_action, limit_form, limit_kind, measures, one_of, process_id, process_info,
    receipt, text,
};

fn usage() -> impl Strategy<Value = Box<Usage>> {
    let count = || of(any::<u64>());
    // A fraction that decimal digits can say.
    let cost = any::<u32>().prop_map(|n| f64::from(n) / 1024.0);
    let source = one_of(&[CostSource::Agent, CostSource::Prices]);
    (count(), count(), count(), count(), of((cost, source))).prop_map(|(input, output, read, write, cost)| {
        let (cost_usd, cost_source) = cost.unzip();
        Box::new(Usage {
            input_tokens: input,
            output_tokens: output,
            cache_read_tokens: read,
            cache_write_tokens: write,
            cost_usd,
            cost_source,
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
    let names = (text(), of(text()), text(), text(), text(), of(text()));
    (names, vec(text(), 0..3), json(), vec(option, 0..4), of(text())).prop_map(
        |((id, tool_call_id, title, tool, kind, command), paths, input, options, parent)| PermissionRequest {
            id,
            tool_call_id,
            title,
            tool,
            kind,
            command,
            paths,
            input,
            options,
            parent,
        },
    )
}

pub(crate) fn permission_answer() -> impl Strategy<Value = PermissionAnswer> {
    prop_oneof![
        Just(PermissionAnswer::Allow),
        Just(PermissionAnswer::Deny),
        text().prop_map(PermissionAnswer::Option),
        json().prop_map(|input| PermissionAnswer::AllowWith { input }),
        text().prop_map(|message| PermissionAnswer::DenyWith { message }),
        Just(PermissionAnswer::Cancelled),
    ]
}

fn diff() -> impl Strategy<Value = Event> {
    let kinds = [FileChange::Created, FileChange::Modified, FileChange::Deleted, FileChange::Moved];
    let hunk = (of(text()), of(text()), of(any::<u64>()), of(any::<u64>()))
        .prop_map(|(old_text, new_text, old_line, new_line)| DiffHunk { old_text, new_text, old_line, new_line });
    let names = (text(), text(), of(one_of(&kinds)), of(text()), of(text()));
    (names, vec(hunk, 0..3), any::<u64>()).prop_map(
        |((tool_call_id, path, change, moved_to, parent), hunks, omitted_bytes)| {
            Event::Diff(Box::new(FileDiff { tool_call_id, path, change, moved_to, hunks, omitted_bytes, parent }))
        },
    )
}

fn setting_event() -> impl Strategy<Value = Event> {
    let step = one_of(&[WorkspaceStep::Made, WorkspaceStep::Applied, WorkspaceStep::Dropped]);
    let kind = one_of(&WorkspaceKind::ALL.map(|(kind, _)| kind));
    let by = || one_of(&[SettingSource::Caller, SettingSource::Agent, SettingSource::Terminal]);
    let command = (text(), of(text()), of(text())).prop_map(|(name, description, argument_hint)| SlashCommand {
        name,
        description,
        argument_hint,
    });
    prop_oneof![
        vec(command, 0..3).prop_map(|commands| Event::SessionCommands { commands }),
        (text(), by()).prop_map(|(title, by)| Event::SessionTitle { title, by }),
        (text(), by()).prop_map(|(model, by)| Event::SessionModel { model, by }),
        (text(), by()).prop_map(|(mode, by)| Event::SessionMode { mode, by }),
        (text(), by()).prop_map(|(level, by)| Event::SessionThinking { level, by }),
        (step, kind, text(), text(), any::<u64>()).prop_map(|(step, kind, source, path, files)| {
            Event::SessionWorkspace { step, kind, source, path, files }
        }),
        (any::<u64>(), of(text()), of(text()), of(text())).prop_map(|(warm_ms, user_id, workspace_id, agent_type)| {
            Event::SessionClaimed { warm_ms, user_id, workspace_id, agent_type }
        }),
        (text(), of(text()), any::<u64>(), of(text()), of(text())).prop_map(
            |(mime_type, data, bytes, tool_call_id, parent)| {
                Event::Image(Box::new(ImageOutput { mime_type, data, bytes, tool_call_id, parent }))
            }
        ),
        (text(), text()).prop_map(|(parent, text)| Event::SubagentText { parent, text }),
        (text(), text()).prop_map(|(parent, text)| Event::SubagentThinking { parent, text }),
    ]
}

fn tool_event() -> impl Strategy<Value = Event> {
    let start = (text(), text(), text(), text(), json(), tool_status(), of(text())).prop_map(
        |(id, name, title, kind, input, status, parent)| {
            Event::ToolStart(Box::new(ToolStart { id, name, title, kind, input, status, parent }))
        },
    );
    let update = (text(), of(text()), of(tool_status()), of(json()), of(text())).prop_map(
        |(id, title, status, input, output)| {
            Event::ToolUpdate(Box::new(ToolUpdate { id, title, status, input, output }))
        },
    );
    let end = (text(), tool_status(), text())
        .prop_map(|(id, status, output)| Event::ToolEnd(Box::new(ToolEnd { id, status, output })));
    prop_oneof![start, update, end]
}

pub(crate) fn resolved_by() -> impl Strategy<Value = ResolvedBy> {
    prop_oneof![
        of(text()).prop_map(|name| ResolvedBy::User { name }),
        permission_mode().prop_map(ResolvedBy::Mode),
        any::<u32>().prop_map(|index| ResolvedBy::Rule { index }),
        Just(ResolvedBy::Deadline),
        Just(ResolvedBy::Terminal),
        Just(ResolvedBy::Abort),
        Just(ResolvedBy::Agent),
    ]
}

pub(crate) fn event() -> BoxedStrategy<Event> {
    let plan_entry =
        (text(), text(), of(text())).prop_map(|(content, status, priority)| PlanEntry { content, status, priority });
    prop_oneof![
        (text(), process_id(), process_id(), of(text()), measures(), surface()).prop_map(
            |(agent, process, proxy, native_session_id, measures, surface)| {
                Event::SessionStarted { agent, process, proxy, native_session_id, measures, surface }
            }
        ),
        Just(Event::SessionIdle {}),
        Just(Event::SessionBusy {}),
        (text(), text()).prop_map(|(status, detail)| Event::SessionStatus { status, detail }),
        (end_reason(), of(receipt())).prop_map(|(reason, receipt)| Event::SessionEnded { reason, receipt }),
        (end_reason(), of(receipt())).prop_map(|(reason, receipt)| Event::SessionSuspended { reason, receipt }),
        text().prop_map(|reason| Event::SessionDegraded { reason }),
        (text(), text()).prop_map(|(by, detail)| Event::SessionResumed { by, detail }),
        (text(), any::<u32>(), json()).prop_map(|(kind, version, payload)| Event::External {
            kind: format!("x:{kind}").into(),
            version,
            payload
        }),
        any::<(u64, u64)>().prop_map(|(from, to)| Event::SessionGap(OffsetGap { from, to })),
        text().prop_map(|reason| Event::SessionLossy { reason }),
        (text(), vec(text(), 0..3)).prop_map(|(prompt, attachments)| Event::TurnStarted { prompt, attachments }),
        text().prop_map(|text| Event::Text { text }),
        text().prop_map(|text| Event::Thinking { text }),
        tool_event(),
        diff(),
        setting_event(),
        vec(plan_entry, 0..4).prop_map(|entries| Event::Plan { entries }),
        usage().prop_map(Event::Usage),
        any::<(u64, u64)>().prop_map(|(used, size)| Event::context_window(used, size)),
        (stop_reason(), of(usage())).prop_map(|(stop_reason, usage)| Event::Complete { stop_reason, usage }),
        (text(), text(), any::<bool>(), of(any::<u32>()), of(any::<u64>())).prop_map(
            |(code, message, retryable, attempt, delay_ms)| {
                Event::Error { code, message, retryable, attempt, delay_ms }
            }
        ),
        permission_request().prop_map(|request| Event::PermissionRequested(Box::new(request))),
        (text(), of(text()), resolved_by()).prop_map(|(id, option, by)| Event::PermissionResolved { id, option, by }),
        (text(), text(), text(), text(), of(resolved_by()), one_of(&[BypassAction::Warn, BypassAction::AbortTurn]))
            .prop_map(|(tool_call_id, tool, kind, title, denied_by, action)| {
                Event::PermissionBypassed(Box::new(PermissionBypassed {
                    tool_call_id,
                    tool,
                    kind,
                    title,
                    denied_by,
                    action,
                }))
            }),
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
        (budget_kind(), any::<(u64, u64)>(), budget_action()).prop_map(|(budget, (value, measured), action)| {
            Event::BudgetExceeded(Box::new(BudgetExceeded { budget, value, measured, action }))
        }),
        (timeout_kind(), any::<u64>(), timeout_action(), of(text())).prop_map(
            |(clock, after_ms, action, last_words)| Event::TimeoutFired { clock, after_ms, action, last_words }
        ),
        any::<u64>().prop_map(|for_ms| Event::SessionSilent { for_ms }),
        any::<(u64, u16, u16)>().prop_map(|(viewer, rows, columns)| Event::TerminalAttached { viewer, rows, columns }),
        any::<u64>().prop_map(|viewer| Event::TerminalDetached { viewer }),
        text().prop_map(|text| Event::TerminalPrompted { text }),
        (text(), of(text())).prop_map(|(status, detail)| Event::TerminalStatus { status, detail }),
        (text(), vec(any::<u8>(), 0..40))
            .prop_map(|(agent, line)| Event::Harness { agent: agent.into(), payload: line.as_slice().into() }),
        (text(), text())
            .prop_map(|(agent, line)| Event::Harness { agent: agent.into(), payload: line.as_bytes().into() }),
        (text(), text()).prop_map(|(action, error)| Event::ActionFailed { action, error }),
        (text(), text()).prop_map(|(stream, text)| Event::Log { stream, text }),
        any::<(u64, u64)>().prop_map(|(text_bytes, thinking_bytes)| Event::Voided { text_bytes, thinking_bytes }),
        (text(), any::<u16>(), any::<(u64, u64, u64)>(), of(process_id())).prop_map(
            |(host, port, (sent, received, duration_ms), process)| {
                Event::NetworkConnection(Box::new(NetworkConnection {
                    host,
                    port,
                    sent,
                    received,
                    duration_ms,
                    process,
                }))
            }
        ),
        (text(), any::<u16>(), text(), of(process_id())).prop_map(|(host, port, reason, process)| {
            Event::NetworkRefused(Box::new(NetworkRefusal { host, port, reason, process }))
        }),
        (text(), text(), of(0..253_402_300_799_999_u64), any::<bool>())
            .prop_map(|(limit, message, resets_at, waits)| Event::UsageLimited { limit, message, resets_at, waits }),
        (text(), vec(text(), 0..3), of(process_id()), of(text())).prop_map(|(path, access, process, command)| {
            Event::FileRefused(Box::new(FileRefusal { path, access, process, command }))
        }),
    ]
    .boxed()
}
