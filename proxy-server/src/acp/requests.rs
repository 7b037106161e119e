//! Requests of the editor.

use futures_util::FutureExt as _;
use serde_json::{Map, Value, json};

use super::{
    AcpServer, EditorSession,
    connection::{AcpConnection, AcpError},
    prompts::parts,
    turn::{EventFollower, TurnOutcome},
    updates::{BUILD, commands},
};
use crate::api_client::{encode, last_offset, session_path};

/// Version of the protocol.
const VERSION: u64 = 1;

/// Most sessions on a page of the list.
const PAGE: usize = 100;

/// Modes that agents have in common.
const MODES: [(&str, &str); 2] = [(BUILD, "Build"), ("plan", "Plan")];

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
}

impl OpenedSession {
    /// Begins to tell of its events. The editor knows its id now.
    pub(super) async fn begin(self) {
        let Self { follower, from, session, commands: offered } = self;
        if offered.as_array().is_some_and(|offered| !offered.is_empty()) {
            let update =
                json!({ "sessionUpdate": "available_commands_update", "availableCommands": commands(&offered) });
            let params = json!({ "sessionId": follower.session, "update": update });
            follower.connection.notify("session/update", params).await;
        }
        session.follow(tokio::spawn(follower.follow(from)));
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
    ) -> Result<AcpAnswer, AcpError> {
        match method {
            "initialize" => Ok(initialize().into()),
            "authenticate" => Ok(json!({}).into()),
            "session/new" => self.new_session(connection, &params).await,
            "session/load" => self.load(connection, &params, true).await,
            "session/resume" => self.load(connection, &params, false).await,
            "session/fork" => self.fork(connection, &params).await,
            "session/list" => Ok(self.list(&params).await?.into()),
            "session/prompt" => Ok(self.prompt(&params).await?.into()),
            "session/set_mode" => Ok(self.set(&params, "mode", text(&params, "modeId")?).await?.into()),
            "session/set_model" => Ok(self.set(&params, "model", text(&params, "modelId")?).await?.into()),
            "session/set_config_option" => {
                self.set(&params, text(&params, "configId")?, text(&params, "value")?).await?;
                let session = self.api.get(&session_path(text(&params, "sessionId")?, "")).await?;
                Ok(json!({ "configOptions": config_options(&session) }).into())
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
            session.cancelled.notify_one();
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
        let session = self.api.post("/v1/sessions", &Value::Object(config)).await?;
        Ok(self.opens(
            connection,
            &session,
            last_offset(&session),
            Map::from_iter([("sessionId".to_owned(), session["sessionId"].clone())]),
        ))
    }

    /// Opens a session that there is, whose conversation the editor is told where it asks for that.
    async fn load(&self, connection: &AcpConnection, params: &Value, replays: bool) -> Result<AcpAnswer, AcpError> {
        let id = text(params, "sessionId")?;
        self.check_room()?;
        let mut session = self.api.get(&session_path(id, "")).await?;
        if session["status"] == "suspended" {
            // Its servers are kept nowhere.
            let servers = params["mcpServers"].as_array().map_or(&[][..], Vec::as_slice);
            let servers = servers.iter().map(mcp_server).collect::<Result<Vec<_>, _>>()?;
            session = self.api.post(&session_path(id, "/resume"), &json!({ "mcpServers": servers })).await?;
        }
        let until = last_offset(&session);
        let mut answer = self.opens(connection, &session, until, Map::new());
        if replays && let Some(opened) = &mut answer.begins {
            opened.follower.replay(until).await?;
        }
        Ok(answer)
    }

    fn opens(
        &self,
        connection: &AcpConnection,
        session: &Value,
        from: u64,
        mut result: Map<String, Value>,
    ) -> AcpAnswer {
        let id = session["sessionId"].as_str().unwrap_or_default().to_owned();
        if let Some(modes) = modes(session) {
            result.insert("modes".to_owned(), modes);
        }
        result.insert("configOptions".to_owned(), config_options(session));
        let opened = self.open(&id);
        let follower = EventFollower::new(self.api.clone(), connection.clone(), id, opened.ends.clone());
        let begins = OpenedSession { follower, from, session: opened, commands: session["commands"].clone() };
        AcpAnswer { result: Value::Object(result), begins: Some(begins) }
    }

    /// Lists the sessions that can be loaded.
    async fn list(&self, params: &Value) -> Result<Value, AcpError> {
        let mut path = format!("/v1/sessions?limit={PAGE}");
        if let Some(agent) = self.template.get("agent").and_then(Value::as_str).filter(|agent| !agent.is_empty()) {
            path = format!("{path}&agent={}", encode(agent));
        }
        let sessions = self.api.get(&path).await?;
        let wanted = params["cwd"].as_str();
        let is_shown =
            |session: &&Value| session["status"] != "ended" && wanted.is_none_or(|cwd| session["cwd"] == cwd);
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
        let sessions: Vec<Value> = sessions.as_array().into_iter().flatten().filter(is_shown).map(shown).collect();
        Ok(json!({ "sessions": sessions }))
    }

    /// Has the agent answer a prompt. The reply comes when the turn has ended.
    async fn prompt(&self, params: &Value) -> Result<Value, AcpError> {
        let id = text(params, "sessionId")?;
        let session = self.opened(id)?;
        let parts = parts(&params["prompt"])?;
        // A cancel that came when no turn ran is for none.
        let _ = session.cancelled.notified().now_or_never();
        let mut ends = session.ends.subscribe();
        let request = json!({ "parts": parts, "mode": "queue" });
        let accepted = self.api.post(&session_path(id, "/prompt"), &request).await?;
        let Some(turn) = accepted["turn"].as_u64() else {
            return Err(AcpError::invalid(
                "this agent has no turns, so an editor cannot wait for their ends".to_owned(),
            ));
        };
        let has_ended = async {
            let ended = ends.wait_for(|ends| ends.of(turn).is_some()).await;
            ended.ok().and_then(|ends| ends.of(turn))
        };
        let aborts = async {
            loop {
                session.cancelled.notified().await;
                if let Err(problem) = self.api.post(&session_path(id, "/abort"), &json!({})).await {
                    tracing::info!(why = problem.detail, "a turn that the editor cancelled could not be aborted");
                }
            }
        };
        let outcome = tokio::select! {
            outcome = has_ended => outcome,
            never = aborts => never,
        };
        match outcome {
            Some(TurnOutcome::Ended(reason)) => Ok(json!({ "stopReason": reason })),
            Some(TurnOutcome::Failed(why)) => Err(AcpError::failed(why)),
            None => Err(AcpError::failed("the session is not followed any more".to_owned())),
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
        self.opened(id)?;
        self.open_sessions().remove(id);
        self.end_session(id).await;
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

/// Modes to choose from, where the agent tells the one that it is in.
fn modes(session: &Value) -> Option<Value> {
    let current = session["currentMode"].as_str()?;
    let mut available: Vec<Value> = MODES.iter().map(|(id, name)| json!({ "id": id, "name": name })).collect();
    if !MODES.iter().any(|(id, _)| *id == current) {
        available.insert(0, json!({ "id": current, "name": current }));
    }
    Some(json!({ "currentModeId": current, "availableModes": available }))
}

/// Settings that the editor can show: those whose value the agent tells.
fn config_options(session: &Value) -> Value {
    let option = |(id, name, category, member): (&str, &str, &str, &str)| {
        let current = session[member].as_str()?;
        let mut values = vec![json!({ "value": current, "name": current })];
        if id == "thinking" {
            values.extend(
                ["off", "low", "medium", "high"]
                    .iter()
                    .filter(|level| **level != current)
                    .map(|level| json!({ "value": level, "name": level })),
            );
        }
        Some(
            json!({ "id": id, "name": name, "category": category, "type": "select", "currentValue": current, "options": values }),
        )
    };
    [("model", "Model", "model", "currentModel"), ("thinking", "Thinking", "thought_level", "currentThinking")]
        .into_iter()
        .filter_map(option)
        .collect()
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
