//! A server as `opencode serve` is one, with a model that does what the prompt says: `words TEXT`, `cut TEXT` (and the event
//! stream breaks in the middle of it), `die TEXT` (and that is the last of it). What it sends as events it also writes to the
//! file that `FAKE_LOG` names.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// Slash commands that it offers.
const COMMANDS: &str = r#"[{"name":"review"}]"#;

/// Who follows the events, and what was sent.
struct Server {
    log: File,
    follower: Option<TcpStream>,
    /// The messages of the conversation.
    messages: Vec<Value>,
}

fn main() -> io::Result<()> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let login = STANDARD.encode(format!("opencode:{}", variable("OPENCODE_SERVER_PASSWORD")));
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let log = File::create(variable("FAKE_LOG"))?;
    let server = Arc::new(Mutex::new(Server { log, follower: None, messages: Vec::new() }));
    writeln!(io::stdout(), "opencode server listening on http://{}", listener.local_addr()?)?;
    for stream in listener.incoming() {
        let (server, login, stream) = (Arc::clone(&server), login.clone(), stream?);
        std::thread::spawn(move || {
            // Who asks may be gone.
            let _ = serve(&server, &login, stream);
        });
    }
    Ok(())
}

fn serve(server: &Mutex<Server>, login: &str, mut stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut request, mut len, mut allowed) = (String::new(), 0, false);
    reader.read_line(&mut request)?;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => len = value.parse().unwrap_or(0),
            "authorization" => allowed = value == format!("Basic {login}"),
            _ => {}
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body)?;
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let mut answer =
        |status: u16, body: &str| write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    match (method, path) {
        _ if !allowed => answer(401, ""),
        ("GET", "/event") => {
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")?;
            let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
            server.follower = Some(stream);
            server.send("server.connected", json!({}))
        }
        ("POST", "/session") => answer(200, r#"{"id":"ses_1"}"#),
        ("GET", "/session/ses_1/message") => {
            let messages = Value::from(server.lock().unwrap_or_else(PoisonError::into_inner).messages.clone());
            answer(200, &messages.to_string())
        }
        ("POST", "/session/ses_1/prompt_async") => {
            answer(204, "")?;
            let body: Value = serde_json::from_slice(&body)?;
            let prompt = body["parts"][0]["text"].as_str().unwrap_or_default();
            server.lock().unwrap_or_else(PoisonError::into_inner).turn(prompt)
        }
        ("GET", "/session/status") => answer(200, "{}"),
        ("GET", "/permission" | "/question") => answer(200, "[]"),
        ("GET", "/command") => answer(200, COMMANDS),
        ("GET", "/config/providers") => answer(200, r#"{"providers":[{"id":"p","key":"a-key"}]}"#),
        _ => answer(200, "true"),
    }
}

impl Server {
    fn send(&mut self, kind: &str, properties: Value) -> io::Result<()> {
        let event = format!("data: {}\n\n", json!({ "id": "evt", "type": kind, "properties": properties }));
        let Some(follower) = &mut self.follower else { return Ok(()) };
        self.log.write_all(event.as_bytes())?;
        follower.write_all(event.as_bytes())
    }

    fn message(&mut self, number: usize, role: &str, done: bool) -> io::Result<()> {
        let time = if done { json!({ "completed": 1 }) } else { json!({}) };
        let info = json!({ "id": format!("msg_{number}"), "sessionID": "ses_1", "role": role, "time": time,
            "parentID": (role == "assistant").then(|| format!("msg_{}", number - 1)), "finish": done.then_some("stop") });
        match self.messages.get_mut(number) {
            Some(message) => message["info"] = info.clone(),
            None => self.messages.push(json!({ "info": info, "parts": [] })),
        }
        self.send("message.updated", json!({ "info": info }))
    }

    fn part(&mut self, number: usize, text: &str, done: bool) -> io::Result<()> {
        let time = if done { json!({ "start": 1, "end": 2 }) } else { json!({ "start": 1 }) };
        let part = json!({ "id": format!("prt_{number}"), "messageID": format!("msg_{number}"), "sessionID": "ses_1",
            "type": "text", "text": text, "time": time });
        if let Some(message) = self.messages.get_mut(number) {
            message["parts"] = json!([part]);
        }
        self.send("message.part.updated", json!({ "part": part }))
    }

    fn status(&mut self, status: &str) -> io::Result<()> {
        self.send("session.status", json!({ "sessionID": "ses_1", "status": { "type": status } }))
    }

    /// Answers `prompt`.
    fn turn(&mut self, prompt: &str) -> io::Result<()> {
        let (verb, text) = prompt.split_once(' ').unwrap_or(("words", prompt));
        let number = self.messages.len();
        self.message(number, "user", false)?;
        self.status("busy")?;
        let number = number + 1;
        self.message(number, "assistant", false)?;
        self.part(number, "", false)?;
        for (at, word) in text.split_inclusive(' ').enumerate() {
            let part = format!("prt_{number}");
            self.send(
                "message.part.delta",
                json!({ "sessionID": "ses_1", "partID": part, "field": "text", "delta": word }),
            )?;
            if verb == "cut" && at == 0 {
                // The rest is only to be had by asking.
                self.follower = None;
            }
        }
        self.part(number, text, true)?;
        if verb == "die" {
            std::process::exit(0);
        }
        self.message(number, "assistant", true)?;
        self.status("idle")?;
        self.send("session.idle", json!({ "sessionID": "ses_1" }))
    }
}
