//! Sessions: list, start, look at, operate, kill, forget.

use std::time::{Duration, UNIX_EPOCH};

use axum::{
    extract::{Path, Query, RawQuery},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use proxy_manager::{
    AgentSessionConfig, KillOptions, KillScope, Operation, Receipt, ResumeFrom, ResumeRequest, SessionHandle,
    SessionId, SessionInfo, SessionRecord, SessionStatus,
};
use serde::Deserialize;

use super::records;
use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    api::{KillRequest, PlacementQuery, TranscriptResponse},
    idempotency::{self, NamedRequest, RequestAnswer},
    list_page::{ListPage, next_link},
    requests::{Body, JsonBody, RouteResult, UrlQuery, parse, to_the_end},
    route_table::api_routes,
};

api_routes! { "Sessions", ApiState;
    /// Lists the sessions of this server.
    get "/v1/sessions" list: query::<SessionsQuery>() json::<Vec<SessionInfo>>(200, "The sessions.") pages();
    /// Starts a session.
    ///
    /// The answer comes when the agent is ready. Only `agent` is needed. Without a `sessionId` it may be a warm session, which has an id of
    /// its own. In a fleet a node is chosen: one that has the agent, the labels and room, the least loaded first.
    post "/v1/sessions" start:
        query::<PlacementQuery>()
        header("Idempotency-Key", super::prompts::IDEMPOTENCY_KEY) body::<AgentSessionConfig>() json::<SessionInfo>(201, "The session.")
        problems(MANAGER) problems(START) problems(&["idempotency-key-reused", "interrupted", "ambiguous-id", "unknown-session", "not-ended", "suspended", "handed-over"])
        problems(&["no-node", "node-silent", "fleet-unreachable"]);
    /// Describes a session.
    get "/v1/sessions/{id}" read: json::<SessionInfo>(200, "The session.") problems(SESSION);
    /// Changes the title, the tags, or whether the session is archived.
    patch "/v1/sessions/{id}" change: body::<crate::api::RecordChange>() json::<SessionRecord>(200, "The session's record.") problems(SESSION) problems(&["invalid-config"]);
    /// Forgets a session that has ended or is suspended: its events, its home and its record.
    ///
    /// A workspace with changes that are not applied is refused without `force`.
    delete "/v1/sessions/{id}" delete:
        query::<DeleteQuery>() empty(204, "It is forgotten.")
        problems(SESSION) problems(&["not-ended", "busy", "workspace-unapplied", "workspace-busy"]);
    /// Asks the agent for an operation.
    ///
    /// The answer is the agent's.
    post "/v1/sessions/{id}/operations" operate:
        body::<Operation>() json::<proxy_manager::Json>(200, "Answer of the agent.")
        problems(SESSION) problems(PROXY) problems(&["agent-refused", "busy", "invalid-config"]);
    /// Reads the conversation as text.
    get "/v1/sessions/{id}/transcript" transcript: json::<TranscriptResponse>(200, "The conversation.") problems(SESSION);
    /// Kills a session, one process, a tree of processes, or all but the agent.
    ///
    /// The receipt says what became of each process. The kill is carried out even if the client leaves.
    post "/v1/sessions/{id}/kill" kill:
        body::<KillRequest>() json::<Receipt>(200, "Receipt of the kill.")
        problems(SESSION) problems(PROXY) problems(&["invalid-config", "unknown-process", "survivors"]);
}

/// Query of `sessions`.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct SessionsQuery {
    /// True to report what the processes of each session use now.
    process_use: bool,
    /// True to include archived sessions.
    archived: bool,
    /// Statuses with commas between them.
    status: String,
    /// Catalog id of the agent.
    agent: Option<String>,
    /// User label.
    user_id: Option<String>,
    /// Workspace label.
    workspace_id: Option<String>,
    /// Text in its id or working directory, in any case.
    text: Option<String>,
    /// Order of the list.
    sort: SessionOrder,
    /// Most sessions of a page; without it all are in one.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = 10_000)))]
    limit: Option<usize>,
    /// Cursor that the page before gave, in its header `Link`.
    cursor: Option<String>,
}

/// Query of a deletion.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
struct DeleteQuery {
    /// True to delete changes of its workspace that are not applied, too.
    force: bool,
}

/// Order of sessions.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
enum SessionOrder {
    /// By the time of their start.
    #[default]
    #[serde(rename = "startedAt")]
    Started,
    /// The latest first.
    #[serde(rename = "-startedAt")]
    Latest,
    /// By id.
    #[serde(rename = "id")]
    Id,
    /// By id, the greatest first.
    #[serde(rename = "-id")]
    IdDescending,
}

impl SessionsQuery {
    fn matches(&self, session: &SessionInfo, statuses: &[SessionStatus]) -> bool {
        let metadata = &session.metadata;
        let is = |wanted: &Option<String>, value: Option<&String>| wanted.is_none() || wanted.as_ref() == value;
        let has_text = |text: &String| {
            let text = text.to_lowercase();
            [metadata.session_id.as_str(), &metadata.cwd].iter().any(|value| value.to_lowercase().contains(&text))
        };
        (self.archived || !session.archived)
            && (statuses.is_empty() || statuses.contains(&SessionStatus::from(&session.state)))
            && is(&self.agent, Some(&metadata.agent))
            && is(&self.user_id, metadata.user_id.as_ref())
            && is(&self.workspace_id, metadata.workspace_id.as_ref())
            && self.text.as_ref().is_none_or(has_text)
    }

    fn statuses(&self) -> RouteResult<Vec<SessionStatus>> {
        let parse = |word: &str| {
            let status = SessionStatus::ALL.into_iter().find(|status| status.as_str() == word);
            status.ok_or_else(|| {
                let known: Vec<&str> = SessionStatus::ALL.iter().map(|status| status.as_str()).collect();
                ProblemDetails::usage(format!("status {word:?} is none of {}", known.join(", ")))
            })
        };
        self.status.split(',').filter(|word| !word.is_empty()).map(parse).collect()
    }

    fn page(&self) -> ListPage {
        let descending = matches!(self.sort, SessionOrder::Latest | SessionOrder::IdDescending);
        ListPage { limit: self.limit, cursor: self.cursor.clone(), descending }
    }

    /// Returns what a session is sorted by.
    fn key(&self, session: &SessionInfo) -> String {
        let id = &session.metadata.session_id;
        match self.sort {
            SessionOrder::Id | SessionOrder::IdDescending => id.to_string(),
            SessionOrder::Started | SessionOrder::Latest => {
                start_key(session.metadata.started_at.duration_since(UNIX_EPOCH).unwrap_or_default(), id.as_str())
            }
        }
    }
}

/// Returns what a session is sorted by that began so long after 1970: to the millisecond, which is all that its JSON has.
pub(crate) fn start_key(began: Duration, id: &str) -> String {
    format!("{:024} {id}", began.as_millis())
}

async fn list(caller: Caller, listing: UrlQuery<SessionsQuery>, RawQuery(raw): RawQuery) -> RouteResult<Response> {
    let Query(query) = listing.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let statuses = query.statuses()?;
    let mut sessions =
        if query.process_use { caller.manager.measured_sessions().await } else { caller.manager.list_sessions() };
    sessions.retain(|session| caller.sees(session.metadata.user_id.as_deref()) && query.matches(session, &statuses));
    let next = query.page().cut(&mut sessions, |session| query.key(session))?;
    Ok((next_link(raw.as_deref().unwrap_or_default(), next.as_deref()), JsonBody(sessions)).into_response())
}

async fn start(
    caller: Caller,
    placement: UrlQuery<PlacementQuery>,
    headers: HeaderMap,
    body: Body,
) -> RouteResult<Response> {
    let Query(placement) = placement.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    // In a fleet that was done before.
    if placement != PlacementQuery::default() {
        let detail = "node, label: this server is in no fleet, and has no other node: start it with `serve --fleet`";
        return Err(ProblemDetails::new("unsupported", detail));
    }
    let named = match &body {
        Ok(body) => NamedRequest::of(&caller, &headers, "start", body)?,
        Err(_) => None,
    };
    // Under a name of the caller's own, or one by which the request is sent again, it is a session of its own.
    let takes_warm = named.is_none() && matches!(&body, Ok(body) if !names_session(body));
    let mut config: AgentSessionConfig = parse(body)?;
    caller.own(&mut config)?;
    if let Some(ResumeRequest { from: ResumeFrom::Session { id }, .. }) = &mut config.resume {
        *id = caller.session_id(id.as_str())?;
    }
    caller.refresh().await?;
    caller.apply_policy(&mut config)?;
    let (starter, id) = (caller.clone(), config.session_id.clone());
    let answer = |session: SessionHandle| RequestAnswer::new(StatusCode::CREATED, &session.info());
    let finder = caller.manager.clone();
    let found = move |id: &SessionId| finder.session(id).ok().map(answer);
    let work = async move {
        let session = match takes_warm {
            true => starter.manager.start_or_claim(config).await?,
            false => starter.manager.start_session(config).await?,
        };
        starter.has_started(session.id());
        answer(session)
    };
    idempotency::once(&caller, named, Some(&id), found, work).await
}

/// Returns true if a configuration names its session.
fn names_session(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Named {
        session_id: Option<serde::de::IgnoredAny>,
    }
    // What is no configuration is an error soon.
    serde_json::from_slice(body).is_ok_and(|Named { session_id }| session_id.is_some())
}

async fn read(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<SessionInfo>> {
    Ok(JsonBody(caller.find(&id)?.info()))
}

/// Changes the title, the tags, or whether the session is archived.
async fn change(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<SessionRecord>> {
    records::change(caller, Path(id), body).await
}

async fn delete(caller: Caller, Path(id): Path<String>, query: UrlQuery<DeleteQuery>) -> RouteResult<StatusCode> {
    let Query(DeleteQuery { force }) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    caller.manager.delete_session_with(&caller.session_id(&id)?, force).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Performs the [`Operation`] in the body: `"compact"`, `{"compactWith":{"instructions":"…"}}`, `{"setModel":{"model":"M"}}`. The answer is the agent's.
async fn operate(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<proxy_manager::Json>> {
    let operation: Operation = parse(body)?;
    let session = caller.find(&id)?;
    caller.check_operation(&session, &operation)?;
    Ok(JsonBody(session.operate(operation).await?))
}

async fn transcript(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<TranscriptResponse>> {
    Ok(JsonBody(TranscriptResponse { transcript: caller.manager.transcript(&caller.session_id(&id)?).await? }))
}

async fn kill(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<Receipt>> {
    let KillRequest { pid, tree, keep_agent, grace_ms } = parse(body)?;
    let options = grace_ms.map_or_else(KillOptions::default, |ms| KillOptions::grace(Duration::from_millis(ms)));
    let session = caller.find(&id)?;
    let refused = |reason: &str| proxy_manager::Error::InvalidConfig { field: "kill", reason: reason.into() };
    let scope = match (pid, tree, keep_agent) {
        (Some(pid), tree, false) => KillScope::Process { pid, tree },
        (None, false, true) => KillScope::AllButAgent,
        (None, false, false) => KillScope::Session,
        (None, true, _) => return Err(refused("tree needs the pid of the process at its top").into()),
        (Some(_), _, true) => {
            let reason = "pid and keepAgent exclude each other: one names a process, the other all but the agent";
            return Err(refused(reason).into());
        }
    };
    Ok(JsonBody(to_the_end(async move { session.kill_scope(scope, options).await }).await?))
}
