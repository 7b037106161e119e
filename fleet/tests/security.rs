//! Members at a server with TLS and the rights that `account_configuration` writes: what a node can do with its key, and what it cannot.

mod engine;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use async_nats::{ConnectOptions, Event, jetstream};
use fleet::{
    EngineAddress, EventBatch, FleetConfig, FleetMember, JoinError, NodeKey, NodeName, NodePresence, SessionFacts,
    account_configuration,
    exchange::{ExchangeAnswer, ExchangeRequest},
};
use futures_util::{FutureExt as _, StreamExt as _};
use ipc_protocol::SessionId;
use tokio::{sync::mpsc, time::timeout};

use self::engine::{DEADLINE, Engine};

/// An authority, and a certificate of 127.0.0.1 that it signed.
struct Certificates {
    directory: tempfile::TempDir,
}

impl Certificates {
    /// Makes them with openssl; `None` without that.
    fn make() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
        let made = openssl(
            directory.path(),
            &[&["req", "-x509", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"], &new[..]].concat(),
        ) && openssl(
            directory.path(),
            &[
                &[
                    "req",
                    "-x509",
                    "-subj",
                    "/CN=nats",
                    "-keyout",
                    "server.key",
                    "-out",
                    "server.pem",
                    "-CA",
                    "ca.pem",
                    "-CAkey",
                    "ca.key",
                ][..],
                &["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"],
                &new[..],
            ]
            .concat(),
        );
        if !made {
            engine::not_run("no openssl 3.0 or later");
        }
        made.then_some(Self { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The server's configuration.
    fn configuration(&self) -> String {
        format!(
            "tls {{ cert_file: {:?}, key_file: {:?} }}\n",
            self.path("server.pem").display().to_string(),
            self.path("server.key").display().to_string()
        )
    }
}

fn openssl(directory: &Path, arguments: &[&str]) -> bool {
    #[expect(clippy::disallowed_methods, reason = "tests start the program as a shell does")]
    let mut command = Command::new("openssl");
    command.args(arguments).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn node(name: &str) -> NodeName {
    name.parse().expect("a name")
}

fn session(id: &str) -> SessionId {
    id.parse().expect("an id")
}

/// A server, keys, and what members need of both.
struct SecuredFleet {
    engine: Engine,
    certificates: Certificates,
    keys: Vec<NodeKey>,
}

impl SecuredFleet {
    fn start(names: &[&str]) -> Option<Self> {
        let certificates = Certificates::make()?;
        let keys: Vec<NodeKey> = names.iter().map(|name| NodeKey::generate(node(name)).expect("a key")).collect();
        let configuration = certificates.configuration() + &account_configuration(&keys);
        let engine = Engine::start_with(&configuration)?;
        for key in &keys {
            std::fs::write(certificates.path(key.node().as_str()), key.seed()).expect("written");
        }
        Some(Self { engine, certificates, keys })
    }

    fn address(&self) -> String {
        self.engine.address().replace("nats://", "tls://")
    }

    fn config(&self, name: &str, key: &str) -> FleetConfig {
        let engine = EngineAddress {
            servers: vec![self.address()],
            nkey: Some(self.certificates.path(key)),
            tls_ca: Some(self.certificates.path("ca.pem")),
            ..EngineAddress::default()
        };
        FleetConfig {
            engine,
            node: node(name),
            identity: None,
            lease: Duration::from_secs(6),
            version: "0".into(),
            addresses: Vec::new(),
            labels: Default::default(),
            capacity: None,
            agents: Vec::new(),
            takes_over: false,
            layers: Vec::new(),
            log_max_age: None,
        }
    }

    async fn join(&self, name: &str) -> FleetMember {
        FleetMember::join(self.config(name, name)).await.expect("joined")
    }

    /// A plain client with the key of a node, and what its server complains of.
    async fn client(&self, name: &str) -> (async_nats::Client, mpsc::UnboundedReceiver<String>) {
        let key = self.keys.iter().find(|key| key.node().as_str() == name).expect("its key");
        let (told, complaints) = mpsc::unbounded_channel();
        let options = ConnectOptions::with_nkey(key.seed().to_owned())
            .custom_inbox_prefix(format!("_INBOX.{name}"))
            .add_root_certificates(self.certificates.path("ca.pem"))
            .require_tls(true)
            .event_callback(move |event| {
                if let Event::ServerError(error) = event {
                    // The test has ended.
                    let _ = told.send(error.to_string());
                }
                async {}
            });
        (options.connect(self.address()).await.expect("admitted"), complaints)
    }
}

/// Waits for a complaint about a subject.
async fn refused(complaints: &mut mpsc::UnboundedReceiver<String>, subject: &str) {
    let told = async {
        loop {
            let complaint = complaints.recv().await.expect("connected");
            if complaint.to_lowercase().contains("permissions violation") && complaint.contains(subject) {
                return;
            }
        }
    };
    timeout(DEADLINE, told).await.unwrap_or_else(|_| panic!("nobody refused {subject}"));
}

#[tokio::test]
async fn nodes_do_their_work_over_tls_and_nobody_else_is_admitted() {
    let Some(fleet) = SecuredFleet::start(&["a", "b"]) else { return };
    let (a, b) = (fleet.join("a").await, fleet.join("b").await);
    let echo = |request: ExchangeRequest| {
        let answer =
            ExchangeAnswer { head: request.body, is_stream: false, body: futures_util::stream::empty().boxed() };
        async move { answer }.boxed()
    };
    b.serve(Arc::new(echo)).await.expect("served");
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    let seen = async {
        while a.node(&node("b")).is_none_or(|node| node.presence != NodePresence::Alive) {
            looks.tick().await;
        }
    };
    timeout(DEADLINE, seen).await.expect("they see each other");
    let request = ExchangeRequest { head: Vec::new(), body: b"hello".to_vec() };
    assert_eq!(a.send(&node("b"), &request).await.expect("answered").head, b"hello");
    let id = session("s-1");
    a.claim(&id, &SessionFacts::default(), &BTreeMap::new()).await.expect("claimed");
    let batch = EventBatch { epoch: 1, first: 1, last: 1 };
    let (outcome, error) = a.log().publish(&id, batch, b"{}\n".to_vec(), 0).await;
    assert!(error.is_none(), "{outcome:?} {error:?}");
    assert_eq!(b.log().read(&id, 0).await.expect("begun").next().await.expect("a batch"), b"{}\n");
    assert!(b.log().read_all(1).await.expect("begun").next().await.expect("a batch").is_last);
    a.store_snapshot("s-1/1/1", vec![7; 9]).await.expect("stored");
    assert_eq!(b.snapshot("s-1/1/1").await.expect("read"), [7; 9]);

    // Without the authority the server is nobody, and without TLS it says nothing.
    for wrong in [
        EngineAddress { tls_ca: None, ..fleet.config("c", "a").engine },
        EngineAddress { servers: vec![fleet.engine.address()], tls_ca: None, ..fleet.config("c", "a").engine },
        EngineAddress { nkey: None, ..fleet.config("c", "a").engine },
    ] {
        let refused = FleetMember::join(FleetConfig { engine: wrong, ..fleet.config("c", "a") }).await;
        assert!(matches!(refused, Err(JoinError::Unreachable { .. })), "{refused:?}");
    }
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn a_node_writes_no_other_s_row_hears_no_other_and_removes_nothing() {
    let Some(fleet) = SecuredFleet::start(&["a", "b"]) else { return };
    let b = fleet.join("b").await;
    let (client, mut complaints) = fleet.client("a").await;
    let context = jetstream::new(client.clone());

    // Another's heartbeat: neither written nor removed. Its own it can.
    for subject in ["$KV.nodes.b", "$KV.nodes.c"] {
        client.publish(subject, "{}".into()).await.expect("sent");
        client.flush().await.expect("flushed");
        refused(&mut complaints, subject).await;
    }
    let own = context.publish("$KV.nodes.a", "{}".into()).await.expect("sent").await;
    assert!(own.is_ok(), "{own:?}");

    // Requests to others, and answers to others.
    for subject in ["node.b.cmd", "node.*.cmd", "_INBOX.b.>", "ev.>", "$KV.>", ">"] {
        let mut heard = client.subscribe(subject).await.expect("sent");
        client.flush().await.expect("flushed");
        refused(&mut complaints, subject).await;
        b.claim(&session(&format!("s-{}", subject.len())), &SessionFacts::default(), &BTreeMap::new())
            .await
            .expect("claimed");
        // What was sent before this answer would be here.
        context.query_account().await.expect("answered");
        assert!(heard.next().now_or_never().flatten().is_none(), "{subject} is heard");
    }

    // Streams and buckets: none is removed, emptied, or changed; no message is deleted.
    for stream in ["EV1", "KV_nodes", "KV_sessions", "KV_keys", "OBJ_snaps"] {
        for (request, payload) in [
            ("STREAM.DELETE", ""),
            ("STREAM.UPDATE", "{}"),
            ("STREAM.MSG.DELETE", "{\"seq\":1}"),
            ("STREAM.SNAPSHOT", "{}"),
            ("STREAM.PURGE", "{}"),
        ] {
            // Events and conversations of deleted sessions are purged by their owners.
            if request == "STREAM.PURGE" && matches!(stream, "EV1" | "OBJ_snaps") {
                continue;
            }
            let subject = format!("$JS.API.{request}.{stream}");
            client.publish(subject.clone(), payload.into()).await.expect("sent");
            client.flush().await.expect("flushed");
            refused(&mut complaints, &subject).await;
        }
        assert!(context.get_stream(stream).await.is_ok(), "{stream} is there");
    }
    assert!(b.is_lease_held() && b.owner(&session("s-1")).is_some(), "the other one goes on");
    b.leave().await;
}
