//! Users of an OpenID Connect issuer whose keys come from its address.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData as _, SigningKey as _};
use serde_json::{Value, json};
use tokio_rustls::rustls::{
    ServerConfig, ServerConnection, StreamOwned, crypto::ring::default_provider, pki_types::PrivateKeyDer,
};

use crate::{
    harness::{DEADLINE, Daemon, Place, Running},
    network::{Answer, bearer, send},
};

/// What the issuer answers.
struct IssuerPage {
    status: &'static str,
    body: Mutex<String>,
    count: AtomicUsize,
}

impl IssuerPage {
    fn new(status: &'static str, body: String) -> Arc<Self> {
        Arc::new(Self { status, body: Mutex::new(body), count: AtomicUsize::new(0) })
    }

    fn answer(&self, mut stream: impl Read + Write) {
        let mut lines = BufReader::new(&mut stream).lines();
        // To the end of the head; one that breaks off has no answer.
        if !lines.by_ref().map_while(Result::ok).any(|line| line.is_empty()) {
            return;
        }
        drop(lines);
        self.count.fetch_add(1, Ordering::Relaxed);
        let body = self.body.lock().expect("no panic").clone();
        let head = format!("HTTP/1.1 {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", self.status, body.len());
        // A client that has read enough leaves.
        let _ = stream.write_all(format!("{head}{body}").as_bytes());
        let _ = stream.flush();
    }

    /// Serves it on loopback until the test's end, encrypted with a configuration.
    fn serve(self: &Arc<Self>, tls: Option<Arc<ServerConfig>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        let page = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("accepted");
                stream.set_read_timeout(Some(DEADLINE)).expect("set");
                match &tls {
                    Some(tls) => {
                        let server = ServerConnection::new(tls.clone()).expect("a server");
                        page.answer(StreamOwned::new(server, stream));
                    }
                    None => page.answer(stream),
                }
            }
        });
        address
    }
}

fn jwks(keys: &[(&str, &KeyPair)]) -> String {
    let key = |(id, key): &(&str, &KeyPair)| {
        let public = URL_SAFE_NO_PAD.encode(key.der_bytes());
        json!({ "kty": "OKP", "crv": "Ed25519", "x": public, "kid": id, "alg": "EdDSA" })
    };
    json!({ "keys": keys.iter().map(key).collect::<Vec<_>>() }).to_string()
}

fn sign(id: &str, key: &KeyPair) -> Vec<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after it").as_secs();
    let claims =
        json!({ "iss": "https://id.example", "aud": "agents", "sub": "ada", "role": "operate", "exp": now + 600 });
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let text = format!("{}.{}", part(&json!({ "alg": "EdDSA", "kid": id })), part(&claims));
    let signature = URL_SAFE_NO_PAD.encode(key.sign(text.as_bytes()).expect("signed"));
    bearer(&format!("{text}.{signature}"))
}

fn pair() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).expect("a key")
}

/// Starts a daemon that trusts the issuer's keys at this address, with this variable in its environment.
fn serve<'a>(place: &'a Place, keys: &str, variable: Option<(&str, &str)>) -> (Daemon<'a>, SocketAddr) {
    let issuer = ["--oidc-issuer", "https://id.example", "--oidc-audience", "agents", "--oidc-keys", keys];
    let mut command = place.command(&[&["serve", "--json", "--listen", "127.0.0.1:0"], issuer.as_slice()].concat());
    command.envs(variable);
    place.serve_command(Running::new(command))
}

fn whoami(address: SocketAddr, token: &[String]) -> Answer {
    send(address, "GET /v1/whoami", token, "")
}

#[test]
fn keys_of_an_issuer_come_from_its_address_and_are_cached() {
    let place = Place::new();
    let (first, second) = (pair(), pair());
    let page = IssuerPage::new("200 OK", jwks(&[("1", &first)]));
    let keys = page.serve(None);
    let (daemon, address) = serve(&place, &format!("http://{keys}/keys"), None);
    let ada = sign("1", &first);
    let begin = Instant::now();
    // The daemon fetches them by itself, and a token meanwhile is told to try again.
    let known = loop {
        let known = whoami(address, &ada);
        if known.status == 200 || begin.elapsed() > DEADLINE {
            break known;
        }
        thread::yield_now();
    };
    assert_eq!((known.status, known.body), (200, json!({ "name": "ada", "role": "operate", "user": "ada" })));
    for _ in 0..8 {
        assert_eq!(whoami(address, &ada).status, 200);
        // Of an id that somebody invents, and with the signature of another.
        assert_eq!(whoami(address, &sign("2", &second)).status, 401);
        assert_eq!(whoami(address, &sign("1", &second)).status, 401);
    }
    assert!(page.count.load(Ordering::Relaxed) <= 2, "twice a minute at most");
    drop(daemon);
}

#[test]
fn keys_of_an_issuer_come_encrypted_from_one_with_a_certificate_that_the_system_trusts() {
    let place = Place::new();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let roots = place.directory.join("roots.pem");
    fs::write(&roots, made.cert.pem()).expect("written");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let tls = ServerConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions();
    let tls = tls.expect("versions").with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key);
    let signer = pair();
    let page = IssuerPage::new("200 OK", jwks(&[("1", &signer)]));
    let keys = page.serve(Some(Arc::new(tls.expect("a certificate"))));
    let url = format!("https://localhost:{}/keys", keys.port());
    let (daemon, address) = serve(&place, &url, Some(("SSL_CERT_FILE", roots.to_str().expect("UTF-8"))));
    let begin = Instant::now();
    while whoami(address, &sign("1", &signer)).status != 200 {
        assert!(begin.elapsed() < DEADLINE, "{}", whoami(address, &sign("1", &signer)).body);
        thread::yield_now();
    }
    drop(daemon);
    // One that nobody vouches for has no keys.
    let other = place.directory.join("others.pem");
    let others = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    fs::write(&other, others.cert.pem()).expect("written");
    let (daemon, address) = serve(&place, &url, Some(("SSL_CERT_FILE", other.to_str().expect("UTF-8"))));
    let detail = refusal(address, &sign("1", &signer));
    assert!(detail.contains("certificate") && detail.contains("--oidc-keys"), "{detail}");
    drop(daemon);
}

/// What a token is told once the fetch has failed.
fn refusal(address: SocketAddr, token: &[String]) -> String {
    let begin = Instant::now();
    loop {
        let Answer { status, body, .. } = whoami(address, token);
        assert_eq!(status, 500, "{body}");
        let detail = body["detail"].as_str().expect("text").to_owned();
        if !detail.contains("being fetched") || begin.elapsed() > DEADLINE {
            return detail;
        }
        thread::yield_now();
    }
}

#[test]
fn an_issuer_without_keys_is_an_error_with_the_next_step() {
    let place = Place::new();
    let token = sign("1", &pair());
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("an address");
    let html = IssuerPage::new("200 OK", "<html>".to_owned()).serve(None);
    let moved = IssuerPage::new("302 Found", String::new()).serve(None);
    let long = IssuerPage::new("200 OK", " ".repeat(1 << 20)).serve(None);
    for (keys, word) in [(closed, "refused"), (html, "no JWKS"), (moved, "jwks_uri"), (long, "limit")] {
        let (daemon, address) = serve(&place, &format!("http://{keys}/keys"), None);
        let detail = refusal(address, &token);
        let words = [word, "--oidc-keys", "https://id.example", &format!("http://{keys}/keys")];
        assert!(words.iter().all(|word| detail.contains(word)), "{word}: {detail}");
        // The daemon serves others all the same.
        daemon.run(&["sessions"]).exits(0);
    }
    for wrong in ["http://id.example/keys", "https://user:word@id.example/keys"] {
        let issuer = ["--oidc-issuer", "https://id.example", "--oidc-audience", "agents", "--oidc-keys", wrong];
        let serve = [&["serve", "--json", "--listen", "127.0.0.1:0"], issuer.as_slice()].concat();
        let refused = place.run(&serve).exits(2).problem();
        assert!(refused["detail"].as_str().expect("text").contains(wrong), "{refused}");
    }
    // In the configuration file it is no path.
    fs::create_dir_all(place.config()).expect("made");
    let file = format!(
        "listen = [\"127.0.0.1:0\"]\noidc_issuer = \"https://id.example\"\noidc_audience = \"agents\"\noidc_keys = \"http://{}/keys\"\n",
        TcpStream::connect(html).expect("it listens").peer_addr().expect("an address")
    );
    fs::write(place.config().join("config.toml"), file).expect("written");
    let shown = place.run(&["config", "show"]).exits(0).stdout;
    assert!(shown.contains(&format!("http://{html}/keys")), "{shown}");
}
