//! Editors over the Agent Client Protocol, and what others see of their sessions.

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{self, Next},
};
use proxy_server::{ProblemDetails, acp::AcpServer, service_of};
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::support::{ApiUnderTest, BodyReader, DEADLINE};

/// Bytes between the editor and its agent.
const PIPE: usize = 64 * 1024;

/// Editor, and what it was told.
struct Editor {
    output: DuplexStream,
    input: Lines<BufReader<DuplexStream>>,
    server: JoinHandle<Result<(), ProblemDetails>>,
    last: u64,
    updates: Vec<Value>,
    /// Requests of the agent's side.
    asked: Vec<Value>,
    answers: Vec<Value>,
    session: String,
}

impl Editor {
    /// Starts an editor of the fake agent with these arguments.
    fn new(api: &ApiUnderTest, args: &[&str]) -> Self {
        Self::of(api, fake_agent(args))
    }

    fn of(api: &ApiUnderTest, template: Map<String, Value>) -> Self {
        Self::at(api.router.clone(), template)
    }

    fn at(router: Router, template: Map<String, Value>) -> Self {
        let (output, from_editor) = tokio::io::duplex(PIPE);
        let (to_editor, input) = tokio::io::duplex(PIPE);
        let server = AcpServer::new(service_of(router), template, 0);
        let server = tokio::spawn(server.serve_client(from_editor, to_editor));
        let input = BufReader::new(input).lines();
        let (updates, asked, answers) = (Vec::new(), Vec::new(), Vec::new());
        Self { output, input, server, last: 0, updates, asked, answers, session: String::new() }
    }

    /// Starts one with a session.
    async fn begun(api: &ApiUnderTest, args: &[&str]) -> (Self, Value) {
        let mut editor = Self::new(api, args);
        let opened = editor.open("session/new", json!({ "cwd": "/", "mcpServers": [] })).await;
        editor.session = opened["sessionId"].as_str().expect("an id").to_owned();
        (editor, opened)
    }

    /// Starts one with a session whose conversation can go on.
    async fn kept(routes: Router, store: &tempfile::TempDir) -> Self {
        let mut editor = Self::at(routes, fake_agent(&["--store", store.path().to_str().expect("text")]));
        let opened = editor.open("session/new", json!({ "cwd": "/", "mcpServers": [] })).await;
        editor.session = opened["sessionId"].as_str().expect("an id").to_owned();
        editor.turn("say plum").await;
        editor
    }

    async fn write(&mut self, line: &str) {
        let written = timeout(DEADLINE, self.output.write_all(format!("{line}\n").as_bytes())).await;
        written.expect("written in time").expect("written");
    }

    async fn send(&mut self, method: &str, params: &Value) -> u64 {
        self.last += 1;
        let id = self.last;
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()).await;
        id
    }

    async fn notify(&mut self, method: &str, params: &Value) {
        self.write(&json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()).await;
    }

    /// Sends a prompt, and does not wait.
    async fn prompts(&mut self, script: &str) -> u64 {
        let params = json!({ "sessionId": self.session, "prompt": [{ "type": "text", "text": script }] });
        self.send("session/prompt", &params).await
    }

    async fn cancel(&mut self) {
        let params = json!({ "sessionId": self.session });
        self.notify("session/cancel", &params).await;
    }

    /// Takes the next message.
    async fn read(&mut self) {
        let line = timeout(DEADLINE, self.input.next_line()).await;
        let line =
            line.unwrap_or_else(|_| panic!("nothing more came: {:?}", self.updates)).expect("read").expect("a message");
        let message: Value = serde_json::from_str(&line).expect("JSON");
        match message["method"].as_str() {
            Some("session/update") => self.updates.push(message["params"]["update"].clone()),
            Some(_) => self.asked.push(message),
            None => self.answers.push(message),
        }
    }

    /// Reads until something is there.
    async fn until<T>(&mut self, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            self.read().await;
        }
    }

    async fn answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        self.until(|editor| {
            let at = editor.answers.iter().position(|answer| answer["id"] == id)?;
            Some(editor.answers.remove(at))
        })
        .await
    }

    async fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.send(method, params).await;
        self.answer(id).await
    }

    async fn open(&mut self, method: &str, params: Value) -> Value {
        let answer = self.call(method, &params).await;
        assert_eq!(answer["error"], Value::Null, "{answer}");
        answer["result"].clone()
    }

    async fn turn(&mut self, script: &str) -> Value {
        let id = self.prompts(script).await;
        self.answer(id).await
    }

    /// Answers the next question, whatever it asks.
    async fn replies(&mut self, reply: &Value) {
        let asked = self.until(|editor| editor.asked.pop()).await;
        assert_eq!(asked["method"], "session/request_permission");
        let mut message = reply.clone();
        (message["jsonrpc"], message["id"]) = ("2.0".into(), asked["id"].clone());
        self.write(&message.to_string()).await;
    }

    async fn update(&mut self, kind: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        let is_wanted = |update: &&Value| update["sessionUpdate"] == kind && wanted(update);
        let mut is_wanted = is_wanted;
        self.until(|editor| editor.updates.iter().find(&mut is_wanted).cloned()).await
    }

    async fn says(&mut self, text: &str) {
        self.update("agent_message_chunk", |update| update["content"]["text"] == text).await;
    }

    fn chunks(&self, kind: &str) -> String {
        let chunks = self.updates.iter().filter(|update| update["sessionUpdate"] == kind);
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    fn text(&self) -> String {
        self.chunks("agent_message_chunk")
    }

    /// Closes its end, and waits for the server's.
    async fn leaves(mut self) {
        self.output.shutdown().await.expect("closed");
        drop(self.output);
        let reads = tokio::spawn(async move { while self.input.next_line().await.is_ok_and(|line| line.is_some()) {} });
        timeout(DEADLINE, self.server).await.expect("an end in time").expect("joined").expect("no error");
        reads.abort();
    }
}

/// Configuration of a session with the fake agent, started with these arguments.
fn fake_agent(args: &[&str]) -> Map<String, Value> {
    let program = std::fs::read_link("/proc/self/exe").expect("a program").display().to_string();
    let command: Vec<&str> =
        [program.as_str(), "--agent-proxy-fake-agent"].into_iter().chain(args.iter().copied()).collect();
    let template = json!({ "agent": "acp", "command": command });
    let Value::Object(template) = template else { panic!("an object") };
    template
}

async fn status(api: &ApiUnderTest, id: &str) -> Value {
    api.json(&format!("GET /v1/sessions/{id}"), "").await.1["status"].clone()
}

fn stop_reason(answer: &Value) -> &str {
    answer["result"]["stopReason"].as_str().unwrap_or_else(|| panic!("no end: {answer}"))
}

#[tokio::test]
async fn an_answer_that_was_not_offered_allows_nothing() {
    let api = ApiUnderTest::new().await;
    let (mut editor, _) = Editor::begun(&api, &[]).await;
    for reply in [
        json!({ "result": { "outcome": { "outcome": "selected", "optionId": "allow" } } }),
        json!({ "result": { "outcome": { "outcome": "selected" } } }),
        json!({ "result": { "outcome": { "outcome": "allow-once", "optionId": "allow-once" } } }),
        json!({ "result": null }),
        json!({ "error": { "code": -32601, "message": "no such method" } }),
    ] {
        let turn = editor.prompts("ask to write\nsay on").await;
        editor.replies(&reply).await;
        assert_eq!(stop_reason(&editor.answer(turn).await), "end_turn", "{reply}");
        assert_eq!(editor.text(), "permission: cancelled\non\n", "{reply}");
        editor.updates.clear();
    }
    let turn = editor.prompts("ask to write").await;
    editor.replies(&json!({ "result": { "outcome": { "outcome": "selected", "optionId": "allow-once" } } })).await;
    editor.answer(turn).await;
    assert_eq!(editor.text(), "permission: allow-once\n");
    editor.leaves().await;
    api.end().await;
}

#[tokio::test]
async fn prompts_of_others_are_shown_and_the_editors_own_are_not() {
    let api = ApiUnderTest::new().await;
    let (mut editor, _) = Editor::begun(&api, &[]).await;
    let session = editor.session.clone();
    editor.turn("say mine").await;
    let body =
        json!({ "parts": [{ "text": "say elsewhere" }, { "image": { "mimeType": "image/png", "data": "AAAA" } }] });
    assert_eq!(
        api.json(&format!("POST /v1/sessions/{session}/prompt"), &body.to_string()).await.0,
        StatusCode::ACCEPTED
    );
    editor.says("elsewhere\n").await;
    assert_eq!(editor.chunks("user_message_chunk"), "say elsewhere\nimage/png (3 bytes)");
    editor.turn("say mine again").await;
    // One of another editor with the session is another's, too.
    let mut other = Editor::new(&api, &[]);
    other.open("session/load", json!({ "sessionId": session, "cwd": "/", "mcpServers": [] })).await;
    other.session = session;
    assert_eq!(other.chunks("user_message_chunk"), "say minesay elsewhere\nimage/png (3 bytes)say mine again");
    assert_eq!(stop_reason(&other.turn("say theirs").await), "end_turn");
    editor.says("theirs\n").await;
    assert_eq!(editor.chunks("user_message_chunk"), "say elsewhere\nimage/png (3 bytes)say theirs");
    editor.leaves().await;
    other.leaves().await;
    api.end().await;
}

#[tokio::test]
async fn a_diff_is_shown_beside_the_output_that_follows() {
    let api = ApiUnderTest::new().await;
    let (mut editor, _) = Editor::begun(&api, &[]).await;
    let update = |update: Value| {
        let params = json!({ "sessionId": "fake-session", "update": update });
        format!("raw {}", json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }))
    };
    let diff = json!({ "type": "diff", "path": "/a", "oldText": "a\n", "newText": "b\n" });
    let script = [
        update(
            json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": "Edit", "kind": "edit", "status": "in_progress", "content": [diff] }),
        ),
        update(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed",
            "content": [{ "type": "content", "content": { "type": "text", "text": "formatted" } }],
        })),
    ];
    editor.turn(&script.join("\n")).await;
    let is_shown = |editor: &Editor| {
        // As an editor does: the content of an update takes the place of what was there.
        let last =
            editor.updates.iter().rev().find(|update| update["toolCallId"] == "c" && update["content"].is_array());
        let content = &last.expect("content")["content"];
        let types: Vec<&str> =
            content.as_array().into_iter().flatten().filter_map(|block| block["type"].as_str()).collect();
        assert_eq!(types, ["diff", "content"], "{content}");
        assert_eq!(content[1]["content"]["text"], "formatted");
    };
    is_shown(&editor);
    let mut other = Editor::new(&api, &[]);
    other.open("session/load", json!({ "sessionId": editor.session, "cwd": "/", "mcpServers": [] })).await;
    is_shown(&other);
    editor.leaves().await;
    other.leaves().await;
    api.end().await;
}

#[tokio::test]
async fn settings_are_the_agents_own_and_changes_are_told() {
    let api = ApiUnderTest::new().await;
    let (mut editor, opened) = Editor::begun(&api, &["--modes"]).await;
    let ids =
        |list: &Value, id: &str| list.as_array().into_iter().flatten().map(|item| item[id].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&opened["modes"]["availableModes"], "id"), ["build", "plan"], "{opened}");
    assert_eq!(ids(&opened["models"]["availableModels"], "modelId"), ["fake-1", "fake-2"], "{opened}");
    assert_eq!(
        (&opened["modes"]["currentModeId"], &opened["models"]["currentModelId"]),
        (&"build".into(), &"fake-1".into())
    );
    let option =
        |options: &Value, id: &str| options.as_array().into_iter().flatten().find(|option| option["id"] == id).cloned();
    let thinking = option(&opened["configOptions"], "thinking").expect("an option");
    assert_eq!(ids(&thinking["options"], "value"), ["low", "high"], "{thinking}");
    assert_eq!(option(&opened["configOptions"], "mode").expect("an option")["currentValue"], "build");

    let session = editor.session.clone();
    let params = json!({ "sessionId": session, "configId": "thinking", "value": "high" });
    let set = editor.open("session/set_config_option", params).await;
    assert_eq!(option(&set["configOptions"], "thinking").expect("an option")["currentValue"], "high", "{set}");
    editor.open("session/set_model", json!({ "sessionId": session, "modelId": "fake-2" })).await;
    let is_second = |update: &Value| {
        option(&update["configOptions"], "model").is_some_and(|model| model["currentValue"] == "fake-2")
    };
    editor.update("config_option_update", is_second).await;
    editor.open("session/set_mode", json!({ "sessionId": session, "modeId": "plan" })).await;
    editor.update("current_mode_update", |update| update["currentModeId"] == "plan").await;
    editor.turn("model\nmode\nthinking").await;
    assert_eq!(editor.text(), "fake-2\nplan\nhigh\n");
    // The agent changes one itself.
    editor.updates.clear();
    editor.turn("switch-model fake-1").await;
    editor
        .update("config_option_update", |update| {
            option(&update["configOptions"], "model").is_some_and(|model| model["currentValue"] == "fake-1")
        })
        .await;

    for (method, params, wanted) in [
        ("session/set_mode", json!({ "sessionId": session, "modeId": "yolo" }), "it offers build, plan"),
        ("session/set_model", json!({ "sessionId": session, "modelId": "gpt" }), "it offers fake-1, fake-2"),
        (
            "session/set_config_option",
            json!({ "sessionId": session, "configId": "colour", "value": "red" }),
            "configId",
        ),
        ("session/set_mode", json!({ "sessionId": session }), "modeId: a text is wanted"),
        ("session/set_mode", json!({ "sessionId": "nobody", "modeId": "plan" }), "is not open"),
        ("session/destroy", json!({}), "no method"),
        ("session/prompt", json!([]), "sessionId: a text is wanted"),
        ("session/new", Value::Null, "cwd: a text is wanted"),
    ] {
        let answer = editor.call(method, &params).await;
        assert!(
            answer["error"]["message"].as_str().is_some_and(|message| message.contains(wanted)),
            "{method}: {answer}"
        );
    }
    // Nobody waits for an answer to these.
    for params in [Value::Null, json!([1]), json!({ "sessionId": 7 }), json!({ "sessionId": "nobody" })] {
        editor.notify("session/cancel", &params).await;
        editor.notify("session/unknown", &params).await;
    }
    editor.open("authenticate", json!({ "methodId": "none" })).await;
    assert_eq!(editor.answers, Vec::<Value>::new());
    editor.leaves().await;
    api.end().await;
}

#[tokio::test]
async fn a_cancel_is_for_all_prompts_before_it() {
    let api = ApiUnderTest::new().await;
    let (mut editor, _) = Editor::begun(&api, &[]).await;
    let first = editor.prompts("say begun\nwait").await;
    editor.says("begun\n").await;
    let second = editor.prompts("say never").await;
    editor.until_queued(&api).await;
    editor.cancel().await;
    assert_eq!(stop_reason(&editor.answer(first).await), "cancelled");
    assert_eq!(stop_reason(&editor.answer(second).await), "cancelled");
    // One that comes right behind its prompt finds no turn yet.
    for _ in 0..5 {
        let turn = editor.prompts("wait").await;
        editor.cancel().await;
        assert_eq!(stop_reason(&editor.answer(turn).await), "cancelled");
    }
    // A question is none any more.
    let turn = editor.prompts("ask to write\nwait").await;
    editor.until(|editor| editor.asked.pop()).await;
    editor.cancel().await;
    assert_eq!(stop_reason(&editor.answer(turn).await), "cancelled");
    // An earlier cancel is for none that comes later.
    editor.cancel().await;
    let (one, two) = (editor.prompts("say one").await, editor.prompts("say two").await);
    assert_eq!(
        (stop_reason(&editor.answer(one).await), stop_reason(&editor.answer(two).await)),
        ("end_turn", "end_turn")
    );
    let text = editor.text();
    assert!(text.contains("one\n") && text.contains("two\n") && !text.contains("never"), "{text}");
    editor.leaves().await;
    api.end().await;
}

#[tokio::test]
async fn a_close_answers_the_prompts_and_what_waits_never_runs() {
    let api = ApiUnderTest::durable().await;
    let store = tempfile::tempdir().expect("a directory");
    let (mut editor, _) = Editor::begun(&api, &["--store", store.path().to_str().expect("text")]).await;
    let session = editor.session.clone();
    editor.turn("say plum").await;
    let first = editor.prompts("say begun\nwait").await;
    editor.says("begun\n").await;
    let second = editor.prompts("say never").await;
    editor.until_queued(&api).await;
    editor.open("session/close", json!({ "sessionId": session })).await;
    for prompt in [first, second] {
        assert_eq!(stop_reason(&editor.answer(prompt).await), "cancelled");
    }
    assert_eq!(status(&api, &session).await, "suspended");
    editor.open("session/resume", json!({ "sessionId": session, "cwd": "/", "mcpServers": [] })).await;
    assert_eq!(stop_reason(&editor.turn("say on").await), "end_turn");
    assert!(!editor.text().contains("never"), "{}", editor.text());
    editor.leaves().await;
    api.end().await;
}

/// Requests that the daemon gets late.
struct LateRequests {
    /// Says when each is sent, and when it is answered.
    told: mpsc::UnboundedReceiver<()>,
    passes: watch::Sender<bool>,
}

impl LateRequests {
    /// Holds up requests to paths that end so. Returns the routes with them.
    fn new(api: &ApiUnderTest, end: &'static str) -> (Self, Router) {
        let passes = watch::Sender::new(true);
        let (tell, told) = mpsc::unbounded_channel();
        let late = Self { told, passes: passes.clone() };
        let hold_up = move |request: Request, next: Next| {
            let (tell, mut passes) = (tell.clone(), passes.subscribe());
            // It is done also for a caller who has left, as a daemon does.
            let done = tokio::spawn(async move {
                if !request.uri().path().ends_with(end) {
                    return next.run(request).await;
                }
                tell.send(()).expect("the test waits");
                passes.wait_for(|passes| *passes).await.expect("the test waits");
                let answer = next.run(request).await;
                // The test may have ended.
                let _ = tell.send(());
                answer
            });
            async { done.await.expect("answered") }
        };
        (late, api.router.clone().layer(middleware::from_fn(hold_up)))
    }

    /// Starts an editor with a session whose next prompt is on its way. Returns its request, too.
    async fn prompt(api: &ApiUnderTest, store: &tempfile::TempDir) -> (Self, Editor, u64) {
        let (mut late, routes) = Self::new(api, "/prompt");
        let mut editor = Editor::kept(routes, store).await;
        late.next().await;
        late.next().await;
        late.passes.send_replace(false);
        let prompt = editor.prompts("wait").await;
        late.next().await;
        (late, editor, prompt)
    }

    /// Waits until the next is sent, or answered.
    async fn next(&mut self) {
        timeout(DEADLINE, self.told.recv()).await.expect("in time").expect("a request");
    }

    /// Lets them through, after what would be done at once.
    async fn pass(&self, api: &ApiUnderTest) {
        for _ in 0..20 {
            api.json("GET /v1/sessions", "").await;
        }
        self.passes.send_replace(true);
    }
}

#[tokio::test]
async fn a_prompt_on_its_way_does_not_resume_a_session_that_is_closed() {
    let (api, store) = (ApiUnderTest::durable().await, tempfile::tempdir().expect("a directory"));
    let (late, mut editor, prompt) = LateRequests::prompt(&api, &store).await;
    let session = editor.session.clone();
    let close = editor.send("session/close", &json!({ "sessionId": session })).await;
    late.pass(&api).await;
    assert_eq!(editor.answer(close).await["error"], Value::Null);
    assert_eq!(stop_reason(&editor.answer(prompt).await), "cancelled");
    assert_eq!(status(&api, &session).await, "suspended");
    editor.open("session/resume", json!({ "sessionId": session, "cwd": "/", "mcpServers": [] })).await;
    assert_eq!(stop_reason(&editor.turn("say on").await), "end_turn");
    editor.leaves().await;
    api.end().await;
}

#[tokio::test]
async fn a_prompt_on_its_way_does_not_resume_a_session_whose_editor_has_left() {
    let (api, store) = (ApiUnderTest::durable().await, tempfile::tempdir().expect("a directory"));
    let (mut late, editor, _) = LateRequests::prompt(&api, &store).await;
    let session = editor.session.clone();
    tokio::join!(editor.leaves(), late.pass(&api));
    late.next().await;
    assert_eq!(status(&api, &session).await, "suspended");
    api.end().await;
}

#[tokio::test]
async fn what_waits_is_dropped_when_the_editor_leaves() {
    let (api, store) = (ApiUnderTest::durable().await, tempfile::tempdir().expect("a directory"));
    let mut editor = Editor::kept(api.router.clone(), &store).await;
    let session = editor.session.clone();
    editor.prompts("say begun\nwait").await;
    editor.says("begun\n").await;
    editor.prompts("say never").await;
    editor.until_queued(&api).await;
    editor.leaves().await;
    assert_eq!(status(&api, &session).await, "suspended");
    assert_eq!(api.json(&format!("GET /v1/sessions/{session}/queue"), "").await.1, json!([]));
    api.end().await;
}

#[tokio::test]
async fn a_session_that_somebody_else_resumes_first_is_loaded_all_the_same() {
    let (api, store) = (ApiUnderTest::durable().await, tempfile::tempdir().expect("a directory"));
    let (mut late, routes) = LateRequests::new(&api, "/resume");
    let mut editor = Editor::kept(routes, &store).await;
    let session = editor.session.clone();
    editor.open("session/close", json!({ "sessionId": session })).await;
    late.passes.send_replace(false);
    let load = editor.send("session/load", &json!({ "sessionId": session, "cwd": "/", "mcpServers": [] })).await;
    late.next().await;
    assert_eq!(api.json(&format!("POST /v1/sessions/{session}/resume"), "{}").await.0, StatusCode::OK);
    late.passes.send_replace(true);
    let loaded = editor.answer(load).await;
    assert_eq!(loaded["error"], Value::Null, "{loaded}");
    assert_eq!(stop_reason(&editor.turn("say on").await), "end_turn");
    editor.leaves().await;
    assert_eq!(status(&api, &session).await, "suspended");
    api.end().await;
}

#[tokio::test]
async fn a_prompt_is_answered_although_its_session_is_loaded_again() {
    let api = ApiUnderTest::new().await;
    let (mut editor, _) = Editor::begun(&api, &[]).await;
    let turn = editor.prompts("say begun\nwait").await;
    editor.says("begun\n").await;
    let session = editor.session.clone();
    editor.open("session/load", json!({ "sessionId": session, "cwd": "/", "mcpServers": [] })).await;
    editor.cancel().await;
    assert_eq!(stop_reason(&editor.answer(turn).await), "cancelled");
    editor.leaves().await;
    api.end().await;
}

impl Editor {
    /// Waits until a prompt waits for its turn: not only its event says so, which comes before.
    async fn until_queued(&mut self, api: &ApiUnderTest) {
        let queue = format!("GET /v1/sessions/{}/queue", self.session);
        api.until(&queue, |queued| queued.as_array().is_some_and(|queued| !queued.is_empty())).await;
    }
}

#[tokio::test]
async fn a_session_that_starts_while_the_editor_leaves_is_ended() {
    let api = ApiUnderTest::durable().await;
    let mut editor = Editor::new(&api, &[]);
    let mut events = BodyReader::new(api.send("GET /v1/events?follow=true", &[], "").await);
    editor.send("session/new", &json!({ "cwd": "/", "mcpServers": [] })).await;
    // The first that comes of the agent: it is not ready yet.
    events.until("event-received").await;
    editor.leaves().await;
    let statuses: Vec<Value> = {
        let (_, sessions) = api.json("GET /v1/sessions", "").await;
        sessions.as_array().into_iter().flatten().map(|session| session["status"].clone()).collect()
    };
    assert_eq!(statuses, ["ended"]);
    api.end().await;
}

#[tokio::test]
async fn an_open_question_is_asked_of_an_editor_that_loads_the_session() {
    let api = ApiUnderTest::new().await;
    let (mut editor, _) = Editor::begun(&api, &[]).await;
    let turn = editor.prompts("ask to write").await;
    editor.until(|editor| editor.asked.pop()).await;
    let mut other = Editor::new(&api, &[]);
    other.open("session/load", json!({ "sessionId": editor.session, "cwd": "/", "mcpServers": [] })).await;
    other.replies(&json!({ "result": { "outcome": { "outcome": "selected", "optionId": "reject-once" } } })).await;
    assert_eq!(stop_reason(&editor.answer(turn).await), "end_turn");
    assert_eq!(editor.text(), "permission: reject-once\n");
    other.leaves().await;
    editor.leaves().await;
    api.end().await;
}

#[tokio::test]
async fn a_message_that_is_too_long_is_refused_and_the_next_is_answered() {
    let api = ApiUnderTest::new().await;
    let (mut editor, _) = Editor::begun(&api, &[]).await;
    let script = format!("say {}", "x".repeat(40 * 1024 * 1024));
    let answer = editor.turn(&script).await;
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    assert_eq!(stop_reason(&editor.turn("say on").await), "end_turn");
    assert_eq!(editor.text(), "on\n");
    editor.leaves().await;
    api.end().await;
}

#[tokio::test]
async fn sessions_are_listed_forked_resumed_and_closed() {
    let api = ApiUnderTest::durable().await;
    let store = tempfile::tempdir().expect("a directory");
    let args = ["--store", store.path().to_str().expect("text")];
    let (mut editor, _) = Editor::begun(&api, &args).await;
    let first = editor.session.clone();
    editor.turn("say plum").await;
    editor.open("session/close", json!({ "sessionId": first })).await;
    assert_eq!(status(&api, &first).await, "suspended");
    let again = editor.turn("say x").await;
    assert!(again["error"]["message"].as_str().is_some_and(|message| message.contains("not open")), "{again}");
    let listed = editor.open("session/list", json!({ "cwd": "/" })).await;
    assert_eq!(listed["sessions"][0]["sessionId"], first.as_str(), "{listed}");
    assert_eq!(editor.open("session/list", json!({ "cwd": "/nowhere" })).await, json!({ "sessions": [] }));

    editor.updates.clear();
    editor.open("session/resume", json!({ "sessionId": first, "cwd": "/", "mcpServers": [] })).await;
    assert_eq!(stop_reason(&editor.turn("history").await), "end_turn");
    assert_eq!((editor.text().as_str(), editor.chunks("user_message_chunk")), ("1 before\n", String::new()));
    editor.leaves().await;
    assert_eq!(status(&api, &first).await, "suspended");
    api.end().await;
}
