//! Public keys of an issuer of OpenID Connect (JWKS): from a file that is read again when it changes, or from elsewhere, cached.

use std::{
    collections::HashMap,
    fmt, fs, io,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use jsonwebtoken::jwk::Jwk;
use serde::Deserialize;
use serde_json::Value;

use super::{audit::lock, pinned_directory::PinnedDirectory};

/// Time for which the file of the keys is not looked at again.
const FILE_LIFE: Duration = Duration::from_secs(1);
/// Time after which fetched keys are fetched again: one that the issuer has withdrawn counts no longer.
const FETCHED_LIFE: Duration = Duration::from_secs(15 * 60);
/// Time for which fetched keys count while they cannot be fetched again.
const FETCHED_MOST: Duration = Duration::from_secs(24 * 3600);
/// Least time between two fetches, whatever tokens come: an id that is not known may be that of a new key, or anybody's invention.
const FETCH_PAUSE: Duration = Duration::from_secs(30);
/// Most keys of an issuer.
const MAX_KEYS: usize = 100;

/// Reads a JWKS from elsewhere than a file. Blocks, for a bounded time; its answer is bounded as well.
pub type KeyFetch = Arc<dyn Fn() -> io::Result<Vec<u8>> + Send + Sync>;

/// Keys of an issuer, by their ids. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct IssuerKeys {
    source: KeySource,
    read: Arc<Mutex<ReadKeys>>,
}

#[derive(Clone)]
enum KeySource {
    File(PinnedDirectory),
    Fetched { address: String, fetch: KeyFetch, pause: Duration, life: Duration },
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
            Self::Fetched { address, .. } => f.debug_tuple("Fetched").field(address).finish(),
        }
    }
}

/// Keys as they were read.
#[derive(Debug, Default)]
struct ReadKeys {
    /// Time of the file's change.
    stamp: Option<SystemTime>,
    /// Time of the last look at the file, or of the last fetch that succeeded.
    looked: Option<Instant>,
    /// Beginning of the last fetch.
    tried: Option<Instant>,
    /// Reason why that failed.
    failure: Option<String>,
    keys: HashMap<String, Jwk>,
}

impl ReadKeys {
    /// Answers with what there is.
    fn find(&self, id: &str) -> io::Result<Option<Jwk>> {
        if self.looked.is_some_and(|looked| looked.elapsed() < FETCHED_MOST) {
            return Ok(self.keys.get(id).cloned());
        }
        let why = self.failure.clone().unwrap_or_else(|| "they are being fetched: try again".to_owned());
        Err(io::Error::other(why))
    }
}

impl IssuerKeys {
    /// Takes them from a file. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, or holds no keys.
    pub(super) fn of_file(path: &Path) -> io::Result<Self> {
        let file = PinnedDirectory::of(path)?;
        parse(&fs::read(file.path())?)?;
        Ok(Self { source: KeySource::File(file), read: Arc::default() })
    }

    /// Takes them from an address, which errors name.
    pub(super) fn of_address(address: &str, fetch: KeyFetch) -> Self {
        let source = KeySource::Fetched { address: address.to_owned(), fetch, pause: FETCH_PAUSE, life: FETCHED_LIFE };
        Self { source, read: Arc::default() }
    }

    /// Finds a key. Blocks.
    ///
    /// # Errors
    /// There are no keys; says where they were looked for, and what to do.
    pub(super) fn find(&self, id: &str) -> io::Result<Option<Jwk>> {
        match &self.source {
            KeySource::File(file) => self.find_in_file(file, id).map_err(|error| {
                io::Error::other(format!("reading the file of its keys failed: {error}: put its JWKS there again"))
            }),
            KeySource::Fetched { address, fetch, pause, life } => {
                self.find_fetched(fetch, *pause, *life, id).map_err(|error| {
                    io::Error::other(format!(
                        "fetching its keys from {address} failed: {error}: check the address, or name a file with --oidc-keys"
                    ))
                })
            }
        }
    }

    fn find_in_file(&self, file: &PinnedDirectory, id: &str) -> io::Result<Option<Jwk>> {
        let mut read = lock(&self.read);
        if read.looked.is_none_or(|looked| looked.elapsed() >= FILE_LIFE) {
            let stamp = fs::metadata(file.path())?.modified()?;
            if read.stamp != Some(stamp) {
                read.keys = parse(&fs::read(file.path())?)?;
                read.stamp = Some(stamp);
            }
            read.looked = Some(Instant::now());
        }
        Ok(read.keys.get(id).cloned())
    }

    fn find_fetched(&self, fetch: &KeyFetch, pause: Duration, life: Duration, id: &str) -> io::Result<Option<Jwk>> {
        {
            let mut read = lock(&self.read);
            let is_due = read.looked.is_none_or(|looked| looked.elapsed() >= life) || !read.keys.contains_key(id);
            if !is_due || read.tried.is_some_and(|tried| tried.elapsed() < pause) {
                return read.find(id);
            }
            // One fetches, without the lock: others have what there is.
            read.tried = Some(Instant::now());
        }
        let fetched = fetch().and_then(|text| parse(&text));
        let mut read = lock(&self.read);
        match fetched {
            Ok(keys) => (read.keys, read.looked, read.failure) = (keys, Some(Instant::now()), None),
            Err(error) => {
                tracing::warn!(%error, "failed to fetch the keys of an issuer");
                read.failure = Some(error.to_string());
            }
        }
        read.find(id)
    }
}

/// Parses a JWKS. Keys of kinds that are not known are left out.
fn parse(text: &[u8]) -> io::Result<HashMap<String, Jwk>> {
    #[derive(Deserialize)]
    struct KeySet {
        keys: Vec<Value>,
    }
    let KeySet { keys } =
        serde_json::from_slice(text).map_err(|error| io::Error::other(format!("no JWKS: {error}")))?;
    if keys.len() > MAX_KEYS {
        return Err(io::Error::other(format!("{} keys, and {MAX_KEYS} at most are read", keys.len())));
    }
    let usable = keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    let keys: HashMap<String, Jwk> = usable.map(|key| (key.common.key_id.clone().unwrap_or_default(), key)).collect();
    if keys.is_empty() { Err(io::Error::other("it has no keys that can be used")) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    fn jwks(ids: &[&str]) -> Vec<u8> {
        let key = |id: &&str| json!({ "kty": "OKP", "crv": "Ed25519", "x": "AAAA", "kid": id });
        let other = json!({ "kty": "of another time", "kid": "x" });
        json!({ "keys": ids.iter().map(key).chain([other]).collect::<Vec<_>>() }).to_string().into_bytes()
    }

    /// Keys whose fetch answers in turn; counts the fetches.
    fn fetched(answers: Vec<io::Result<Vec<u8>>>, pause: Duration, life: Duration) -> (IssuerKeys, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let (counted, answers) = (count.clone(), Mutex::new(answers.into_iter()));
        let fetch: KeyFetch = Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            lock(&answers).next().unwrap_or_else(|| Err(io::Error::other("down")))
        });
        let source = KeySource::Fetched { address: "https://id.example/keys".into(), fetch, pause, life };
        (IssuerKeys { source, read: Arc::default() }, count)
    }

    fn knows(keys: &IssuerKeys, id: &str) -> bool {
        keys.find(id).expect("there are keys").is_some()
    }

    #[test]
    fn an_id_that_is_not_known_fetches_the_keys_again_now_and_then() {
        let hour = Duration::from_secs(3600);
        let (keys, count) = fetched(vec![Ok(jwks(&["1"])), Ok(jwks(&["1", "2"]))], hour, hour);
        assert!(knows(&keys, "1"));
        // Inventions fetch nothing.
        assert!((0..100).all(|number| !knows(&keys, &format!("invented-{number}"))) && !knows(&keys, "2"));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        let (keys, count) = fetched(vec![Ok(jwks(&["1"])), Ok(jwks(&["1", "2"]))], Duration::ZERO, hour);
        assert!(knows(&keys, "1") && knows(&keys, "1") && count.load(Ordering::Relaxed) == 1);
        assert!(knows(&keys, "2") && knows(&keys, "1"));
        assert_eq!(count.load(Ordering::Relaxed), 2, "a new key is found");
    }

    #[test]
    fn keys_are_fetched_again_after_a_while_and_count_while_they_cannot_be() {
        let answers =
            vec![Ok(jwks(&["1", "2"])), Err(io::Error::other("down")), Ok(b"<html>".to_vec()), Ok(jwks(&["2"]))];
        let (keys, count) = fetched(answers, Duration::ZERO, Duration::ZERO);
        assert!(knows(&keys, "1") && knows(&keys, "1") && knows(&keys, "1"));
        assert_eq!(count.load(Ordering::Relaxed), 3);
        assert!(!knows(&keys, "1") && count.load(Ordering::Relaxed) == 4, "it was withdrawn");
    }

    #[test]
    fn an_error_names_the_address_and_the_next_step() {
        let hour = Duration::from_secs(3600);
        for (answer, word) in [
            (Err(io::Error::other("connection refused")), "connection refused"),
            (Ok(b"{}".to_vec()), "no JWKS"),
            (Ok(br#"{"keys":[]}"#.to_vec()), "no keys"),
            (Ok(jwks(&["k"; 101])), "100 at most"),
        ] {
            let (keys, count) = fetched(vec![answer], hour, hour);
            for _ in 0..2 {
                let error = keys.find("1").expect_err("none").to_string();
                let names = ["https://id.example/keys", word, "--oidc-keys"].iter().all(|part| error.contains(part));
                assert!(names, "{error}");
            }
            assert_eq!(count.load(Ordering::Relaxed), 1, "it is not tried for each request");
        }
    }
}
