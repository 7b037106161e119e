//! Requests of the editor.

use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::{
    AcpServer, EditorSession,
    connection::{AcpConnection, AcpError},
    prompt_table::{PromptStage, PromptTable, SentPrompt, TurnOutcome},
    prompts::parts,
    settings::SessionSettings,
    turn::EventFollower,
    updates::commands,
};
use crate::api_client::{encode, last_offset, session_path};

/// Version of the protocol.
const VERSION: u64 = 1;

/// Most sessions on a page of the list.
const PAGE: usize = 100;

/// Statuses of sessions that can be loaded.
const LOADABLE: &str = "starting,idle,busy,suspended";

/// Answer to a request, and the session whose events the editor is told from then on.
pub(super) struct AcpAnswer {
    pub(super) result: Value,
    pub(super) begins: Option<OpenedSession>,
}

/// Session that was opened.
pub(super) struct OpenedSession {
    follower: EventFollower,
    from: u64,
    session: EditorSession,
    /// Slash commands that the agent offers already.
    commands: Value,
    /// What the agent asks already.
    open_permissions: Value,
}

impl OpenedSession {
    /// Begins to tell of its events. The editor knows its id now.
    pub(super) async fn begin(self) {
        let Self { follower, from, session, commands: offered, open_permissions } = self;
        if offered.as_array().is_some_and(|offered| !offered.is_empty()) {
            let update =
                json!({ "sessionUpdate": "available_commands_update", "availableCommands": commands(&offered) });
            let params = json!({ "sessionId": follower.session, "update": update });
            follower.connection.notify("session/update", params).await;
        }
        session.prompts.send_modify(PromptTable::open);
        // One that follows it already misses nothing, and knows the turn that runs.
        if session.follower.is_running() {
            return;
        }
        let follower = tokio::spawn(async move { follower.follow(from, &open_permissions).await });
        session.follower.set(&follower);
    }
}

impl From<Value> for AcpAnswer {
    fn from(result: Value) -> Self {
        Self { result, begins: None }
    }
}

impl AcpServer {
    /// Answers a request.
    pub(super) async fn answer(
        &self,
        connection: &AcpConnection,
        method: &str,
        params: Value,
        cancels: Option<watch::Receiver<u64>>,
    ) -> Result<AcpAnswer, AcpError> {
        match method {
            "initialize" => Ok(initialize().into()),
            "authenticate" => Ok(json!({}).into()),
            "session/new" => self.new_session(connection, &params).await,
            "session/load" => self.load(connection, &params, true).await,
            "session/resume" => self.load(connection, &params, false).await,
            "session/fork" => self.fork(connection, &params).await,
            "session/list" => Ok(self.list(&params).await?.into()),
            "session/prompt" => Ok(self.prompt(&params, cancels).await?.into()),
            "session/set_mode" => Ok(self.set(&params, "mode", text(&params, "modeId")?).await?.into()),
            "session/set_model" => Ok(self.set(&params, "model", text(&params, "modelId")?).await?.into()),
            "session/set_config_option" => {
                self.set(&params, text(&params, "configId")?, text(&params, "value")?).await?;
                let settings = SessionSettings::read(&self.api, text(&params, "sessionId")?).await?;
                Ok(json!({ "configOptions": settings.config_options() }).into())
            }
            "session/close" => Ok(self.close(&params).await?.into()),
            method => Err(AcpError::unknown_method(method)),
        }
    }

    /// Takes a notification.
    pub(super) fn receive(&self, method: &str, params: &Value) {
        if method == "session/cancel"
            && let Some(session) = params["sessionId"].as_str().and_then(|id| self.opened(id).ok())
        {
            session.cancels.send_modify(|cancels| *cancels += 1);
        }
    }

    async fn new_session(&self, connection: &AcpConnection, params: &Value) -> Result<AcpAnswer, AcpError> {
        let config = self.config(params)?;
        self.start(connection, config).await
    }

    async fn fork(&self, connection: &AcpConnection, params: &Value) -> Result<AcpAnswer, AcpError> {
        let mut config = self.config(params)?;
        let id = text(params, "sessionId")?;
        config.insert("resume".to_owned(), json!({ "from": { "session": { "id": id } }, "fork": true }));
        self.start(connection, config).await
    }

    /// Builds the configuration of a session of the editor's.
    fn config(&self, params: &Value) -> Result<Map<String, Value>, AcpError> {
        let cwd = text(params, "cwd")?;
        if !cwd.starts_with('/') {
            return Err(AcpError::invalid(format!("cwd: given is {cwd:?}, and it has to be absolute")));
        }
        let servers = params["mcpServers"].as_array().map_or(&[][..], Vec::as_slice);
        let servers = servers.iter().map(mcp_server).collect::<Result<Vec<_>, _>>()?;
        let mut config = self.template.clone();
        config.insert("cwd".to_owned(), json!(cwd));
        config.insert("depth".to_owned(), json!(self.api.depth));
        let mut all = config.remove("mcpServers").and_then(|all| all.as_array().cloned()).unwrap_or_default();
        all.extend(servers);
        config.insert("mcpServers".to_owned(), Value::Array(all));
        Ok(config)
    }

    async fn start(&self, connection: &AcpConnection, config: Map<String, Value>) -> Result<AcpAnswer, AcpError> {
        self.check_room()?;
        let session = self.begin_session("/v1/sessions", Value::Object(config)).await?;
        let result = Map::from_iter([("sessionId".to_owned(), session["sessionId"].clone())]);
        Ok(self.opens(connection, &session, last_offset(&session), result).await)
    }

    /// Opens a session that there is, whose conversation the editor is told where it asks for that.
    async fn load(&self, connection: &AcpConnection, params: &Value, replays: bool) -> Result<AcpAnswer, AcpError> {
        let id = text(params, "sessionId")?;
        self.check_room()?;
        if self.opened(id).is_ok_and(|session| session.is_left()) {
            return Err(AcpError::invalid(format!("sessionId: {id:?} is being closed: load it after that")));
        }
        let mut session = self.api.get(&session_path(id, "")).await?;
        if session["status"] == "suspended" {
            // Its servers are kept nowhere.
            let servers = params["mcpServers"].as_array().map_or(&[][..], Vec::as_slice);
            let servers = servers.iter().map(mcp_server).collect::<Result<Vec<_>, _>>()?;
            let resumed = self.begin_session(&session_path(id, "/resume"), json!({ "mcpServers": servers })).await;
            session = match resumed {
                // Somebody else was first.
                Err(problem) if problem.kind == "not-suspended" => {
                    let session = self.api.get(&session_path(id, "")).await?;
                    if session["status"] != "ended" {
                        self.hold(&session).await?;
                    }
                    session
                }
                resumed => resumed?,
            };
        } else if session["status"] != "ended" {
            self.hold(&session).await?;
        }
        let until = last_offset(&session);
        let mut answer = self.opens(connection, &session, until, Map::new()).await;
        if replays && let Some(opened) = &mut answer.begins {
            opened.follower.replay(until).await?;
        }
        Ok(answer)
    }

    async fn opens(
        &self,
        connection: &AcpConnection,
        session: &Value,
        from: u64,
        mut result: Map<String, Value>,
    ) -> AcpAnswer {
        let id = session["sessionId"].as_str().unwrap_or_default().to_owned();
        let settings = SessionSettings::of(&self.api, session).await;
        for (name, offered) in [("modes", settings.modes()), ("models", settings.models())] {
            result.extend(offered.map(|offered| (name.to_owned(), offered)));
        }
        result.insert("configOptions".to_owned(), settings.config_options());
        let opened = self.open(&id);
        let follower = EventFollower::new(self.api.clone(), connection.clone(), id, opened.prompts.clone());
        let (commands, open_permissions) = (session["commands"].clone(), session["openPermissions"].clone());
        let begins = OpenedSession { follower, from, session: opened, commands, open_permissions };
        AcpAnswer { result: Value::Object(result), begins: Some(begins) }
    }

    /// Lists the sessions that can be loaded.
    async fn list(&self, params: &Value) -> Result<Value, AcpError> {
        let mut path = format!("/v1/sessions?sort=-id&status={LOADABLE}");
        if let Some(agent) = self.template.get("agent").and_then(Value::as_str).filter(|agent| !agent.is_empty()) {
            path = format!("{path}&agent={}", encode(agent));
        }
        let sessions = self.api.get(&path).await?;
        let (wanted, after) = (params["cwd"].as_str(), params["cursor"].as_str());
        // The cursor is the last id of the page before; ids descend.
        let is_shown = |session: &&Value| {
            wanted.is_none_or(|cwd| session["cwd"] == cwd)
                && after.is_none_or(|after| session["sessionId"].as_str().is_some_and(|id| id < after))
        };
        let shown = |session: &Value| {
            let mut entry =
                json!({ "sessionId": session["sessionId"], "cwd": session["cwd"], "updatedAt": session["heartbeat"] });
            if let Some(title) = session["title"].as_str() {
                entry["title"] = json!(title);
            }
            if entry["updatedAt"].is_null() {
                entry["updatedAt"] = session["startedAt"].clone();
            }
            entry
        };
        let mut sessions: Vec<&Value> = sessions.as_array().into_iter().flatten().filter(is_shown).collect();
        let has_more = sessions.len() > PAGE;
        sessions.truncate(PAGE);
        let next = sessions.last().filter(|_| has_more).map(|last| last["sessionId"].clone());
        let mut list = json!({ "sessions": sessions.into_iter().map(shown).collect::<Vec<_>>() });
        if let Some(next) = next {
            list["nextCursor"] = next;
        }
        Ok(list)
    }

    /// Has the agent answer a prompt. The reply comes when the turn has ended.
    async fn prompt(&self, params: &Value, cancels: Option<watch::Receiver<u64>>) -> Result<Value, AcpError> {
        let id = text(params, "sessionId")?;
        let session = self.opened(id)?;
        let parts = parts(&params["prompt"])?;
        let mut cancels = cancels.unwrap_or_else(|| session.cancels.subscribe());
        session.wait_held().await;
        let mut prompt = SentPrompt::new(&session.prompts);
        let request = json!({ "parts": parts, "mode": "queue", "metadata": prompt.metadata() });
        let accepted = {
            let _sending = session.sending.read().await;
            if session.is_left() {
                return Ok(json!({ "stopReason": "cancelled" }));
            }
            self.api.post(&session_path(id, "/prompt"), &request).await
        };
        let accepted = match accepted {
            Err(_) if cancels.has_changed().unwrap_or(false) => return Ok(json!({ "stopReason": "cancelled" })),
            accepted => accepted?,
        };
        if accepted["turn"].is_null() {
            return Err(AcpError::invalid(
                "this agent has no turns, so an editor cannot wait for their ends".to_owned(),
            ));
        }
        // What the editor's last cancel is still to do.
        let (mut is_cancelled, mut drops, mut aborts) = (false, false, false);
        loop {
            match prompt.stage() {
                // Whatever came of it: the editor has cancelled it.
                PromptStage::Ended(TurnOutcome::Failed(_))
                    if is_cancelled || cancels.has_changed().unwrap_or(false) =>
                {
                    return Ok(json!({ "stopReason": "cancelled" }));
                }
                PromptStage::Ended(TurnOutcome::Ended(reason)) => return Ok(json!({ "stopReason": reason })),
                PromptStage::Ended(TurnOutcome::Failed(why)) => return Err(AcpError::failed(why)),
                PromptStage::Queued { offset } if std::mem::take(&mut drops) => {
                    // Its turn may begin before, and is aborted then.
                    if let Err(problem) = self.api.delete(&session_path(id, &format!("/queue/{offset}"))).await {
                        tracing::debug!(why = problem.detail, "a prompt that the editor cancelled did not wait");
                    }
                    continue;
                }
                PromptStage::Running if std::mem::take(&mut aborts) => {
                    if let Err(problem) = self.api.post(&session_path(id, "/abort"), &json!({})).await {
                        tracing::info!(why = problem.detail, "a turn that the editor cancelled could not be aborted");
                    }
                    continue;
                }
                PromptStage::Sent | PromptStage::Queued { .. } | PromptStage::Running => {}
            }
            tokio::select! {
                () = prompt.changed() => {}
                Ok(()) = cancels.changed() => (is_cancelled, drops, aborts) = (true, true, true),
            }
        }
    }

    /// Changes a setting: `mode`, `model` or `thinking`.
    async fn set(&self, params: &Value, setting: &str, value: &str) -> Result<Value, AcpError> {
        let id = text(params, "sessionId")?;
        self.opened(id)?;
        let operation = match setting {
            "mode" => json!({ "setMode": { "mode": value } }),
            "model" => json!({ "setModel": { "model": value } }),
            "thinking" => json!({ "setThinking": { "level": value } }),
            other => {
                return Err(AcpError::invalid(format!(
                    "configId: given is {other:?}, and there are mode, model and thinking"
                )));
            }
        };
        self.api.post(&session_path(id, "/operations"), &operation).await?;
        Ok(json!({}))
    }

    async fn close(&self, params: &Value) -> Result<Value, AcpError> {
        let id = text(params, "sessionId")?;
        let session = self.opened(id)?;
        if session.is_left() {
            return Err(AcpError::invalid(format!("sessionId: {id:?} is being closed")));
        }
        session.cancels.send_modify(|cancels| *cancels += 1);
        self.clone().leave_session(id.to_owned(), session.clone()).await;
        // It is held until then.
        self.end_session(id).await;
        self.open_sessions().remove(id);
        session.prompts.send_modify(|prompts| prompts.close("the session was closed".to_owned()));
        Ok(json!({}))
    }
}

fn initialize() -> Value {
    json!({
        "protocolVersion": VERSION,
        "agentCapabilities": {
            "loadSession": true,
            "promptCapabilities": { "image": true, "audio": false, "embeddedContext": true },
            "mcpCapabilities": { "http": true, "sse": false },
            "sessionCapabilities": { "list": {}, "resume": {}, "close": {}, "fork": {} },
        },
        "agentInfo": { "name": "agent-proxy", "title": "agent-proxy", "version": env!("CARGO_PKG_VERSION") },
        "authMethods": [],
    })
}

/// MCP server of the editor, as sessions take it.
fn mcp_server(server: &Value) -> Result<Value, AcpError> {
    let name = text(server, "name")?;
    let pairs = |member: &str| -> Map<String, Value> {
        let pairs = server[member].as_array().into_iter().flatten();
        pairs.filter_map(|pair| Some((pair["name"].as_str()?.to_owned(), pair["value"].clone()))).collect()
    };
    let transport = match server["type"].as_str() {
        None | Some("stdio") => {
            let args = server["args"].as_array().cloned().unwrap_or_default();
            json!({ "stdio": { "command": text(server, "command")?, "args": args, "env": pairs("env") } })
        }
        Some("http") => json!({ "http": { "url": text(server, "url")?, "headers": pairs("headers") } }),
        Some(other) => {
            return Err(AcpError::invalid(format!(
                "mcpServers: {name} is of the type {other:?}: stdio and http are taken"
            )));
        }
    };
    Ok(json!({ "name": name, "transport": transport }))
}

fn text<'a>(params: &'a Value, name: &str) -> Result<&'a str, AcpError> {
    params[name]
        .as_str()
        .ok_or_else(|| AcpError::invalid(format!("{name}: a text is wanted, and given is {}", params[name])))
}
