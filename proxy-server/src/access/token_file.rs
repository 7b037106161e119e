//! Tokens of callers over the network, in a file: their hashes, names and roles.
//!
//! A token has 256 random bits, so a plain hash of it is enough: there is nothing to guess.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{Identity, Role, pinned_directory::PinnedDirectory};

/// What every token begins with: a scanner for leaked secrets finds it.
const PREFIX: &str = "agent_proxy_";
/// Random bytes of a token.
const RANDOM_BYTES: usize = 32;
/// Most tokens of a file.
const MAX_TOKENS: usize = 1000;
/// Longest name, in bytes.
const MAX_NAME: usize = 100;

/// Failure to read or change a file of tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read or written.
    #[error("cannot {verb} the tokens in {path:?}")]
    Io {
        /// What was tried.
        verb: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is no file of tokens.
    #[error("{path:?} has no tokens in it ({reason}): remove it, and create new ones")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There is a token of that name.
    #[error("there is a token called {0:?}: revoke it, or choose another name")]
    Exists(String),
    /// There is no token of that name.
    #[error("there is no token called {0:?}: `agent-proxy tokens list` shows those there are")]
    Missing(String),
    /// The name cannot be used.
    #[error("{0:?} is no name for a token: 1 to {MAX_NAME} printable characters")]
    Name(String),
    /// There are as many as there may be.
    #[error("there are {MAX_TOKENS} tokens, which is all there may be: revoke some")]
    Full,
}

/// Facts of a token; not the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenInfo {
    /// Name, for people.
    pub name: String,
    /// What its holder may do.
    pub role: Role,
    /// The one user whose sessions its holder sees; `null` for those of all.
    #[serde(default)]
    pub user: Option<String>,
    /// Time of its creation. RFC 3339 in JSON.
    #[serde(with = "ipc_protocol::time_text")]
    pub created_at: SystemTime,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredToken {
    #[serde(flatten)]
    info: TokenInfo,
    /// SHA-256 of the token, in hexadecimal.
    sha256: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct StoredTokens {
    tokens: Vec<StoredToken>,
}

/// File of tokens. Changes by other processes count at once.
#[derive(Clone, Debug)]
pub struct TokenFile {
    path: PathBuf,
    /// The file in a directory that is held open.
    pinned: Option<PinnedDirectory>,
    read: Arc<Mutex<ReadTokens>>,
}

/// Tokens as they were read, and the file's stamp then.
#[derive(Debug, Default)]
struct ReadTokens {
    stamp: Option<(u64, u64, i64, i64)>,
    tokens: Arc<StoredTokens>,
}

impl TokenFile {
    /// Names a file, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), pinned: None, read: Arc::default() }
    }

    /// Reads from the directory that has the path now, whatever becomes of the path: for a server, whose agents might put another in its
    /// place. Blocks.
    ///
    /// # Errors
    /// [`TokenError::Io`]: the directory cannot be opened.
    pub fn pinned(self) -> Result<Self, TokenError> {
        let pinned = PinnedDirectory::of(&self.path).map_err(|error| self.failed("read", error))?;
        Ok(Self { pinned: Some(pinned), ..self })
    }

    fn read_path(&self) -> PathBuf {
        self.pinned.as_ref().map_or_else(|| self.path.clone(), PinnedDirectory::path)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a token, and returns it: it is stored nowhere. Blocks.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn create(&self, name: &str, role: Role, user: Option<&str>) -> Result<String, TokenError> {
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(TokenError::Name(name.to_owned()));
        }
        let token = format!("{PREFIX}{}", random_text().map_err(|error| self.failed("make", error))?);
        self.change(|stored| {
            if stored.tokens.iter().any(|known| known.info.name == name) {
                return Err(TokenError::Exists(name.to_owned()));
            }
            if stored.tokens.len() >= MAX_TOKENS {
                return Err(TokenError::Full);
            }
            let (user, created_at) = (user.map(str::to_owned), SystemTime::now());
            let info = TokenInfo { name: name.to_owned(), role, user, created_at };
            stored.tokens.push(StoredToken { info, sha256: hash(&token) });
            Ok(())
        })?;
        Ok(token)
    }

    /// Revokes a token. It is refused from the next request on. Blocks.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn revoke(&self, name: &str) -> Result<(), TokenError> {
        self.change(|stored| {
            let before = stored.tokens.len();
            stored.tokens.retain(|known| known.info.name != name);
            if stored.tokens.len() == before { Err(TokenError::Missing(name.to_owned())) } else { Ok(()) }
        })
    }

    /// Lists the tokens, in the order of their creation. Blocks.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn list(&self) -> Result<Vec<TokenInfo>, TokenError> {
        Ok(self.read()?.tokens.into_iter().map(|stored| stored.info).collect())
    }

    /// Returns who has this token; `None` for nobody. Takes the same time for every wrong one.
    ///
    /// # Errors
    /// [`TokenError`]: then nobody is known.
    pub fn identify(&self, token: &str) -> Result<Option<Identity>, TokenError> {
        let given = hash(token);
        let mut found = None;
        for stored in &self.current()?.tokens {
            if bool::from(stored.sha256.as_bytes().ct_eq(given.as_bytes())) {
                let TokenInfo { name, role, user, .. } = &stored.info;
                found = Some(Identity { name: name.clone(), role: *role, user: user.clone() });
            }
        }
        Ok(found)
    }

    /// Returns the tokens; reads the file if it has changed.
    fn current(&self) -> Result<Arc<StoredTokens>, TokenError> {
        let stamp = match fs::metadata(self.read_path()) {
            Ok(found) => Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(self.failed("look at", error)),
        };
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.stamp != stamp || stamp.is_none() {
            *read = ReadTokens { stamp, tokens: Arc::new(self.read()?) };
        }
        Ok(Arc::clone(&read.tokens))
    }

    fn read(&self) -> Result<StoredTokens, TokenError> {
        let text = match fs::read_to_string(self.read_path()) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StoredTokens::default()),
            Err(error) => return Err(self.failed("read", error)),
        };
        serde_json::from_str(&text)
            .map_err(|error| TokenError::Unreadable { path: self.path.clone(), reason: error.to_string() })
    }

    /// Changes the file in one step: a reader finds the old one or the new one.
    fn change(&self, change: impl FnOnce(&mut StoredTokens) -> Result<(), TokenError>) -> Result<(), TokenError> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let written = |error| self.failed("write", error);
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(written)?;
        let lock = private().open(self.path.with_extension("lock")).map_err(written)?;
        lock.lock().map_err(written)?;
        let mut stored = self.read()?;
        change(&mut stored)?;
        let text = serde_json::to_vec_pretty(&stored).map_err(|error| written(error.into()))?;
        let new = self.path.with_extension("new");
        write_private(&new, &text).and_then(|()| fs::rename(&new, &self.path)).map_err(written)?;
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(written)
    }

    fn failed(&self, verb: &'static str, source: io::Error) -> TokenError {
        TokenError::Io { verb, path: self.path.clone(), source }
    }
}

/// Returns 256 random bits as text.
pub(super) fn random_text() -> io::Result<String> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(URL_SAFE_NO_PAD.encode(random))
}

pub(super) fn hash(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
}

/// Writes a file that this user alone can read.
///
/// # Errors
/// The system's.
pub fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    // One that is left over might be another's, or open to others.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private().create_new(true).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_valid_at_once_and_until_it_is_revoked() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("access/tokens.json");
        let (serving, command) = (TokenFile::new(&path), TokenFile::new(&path));
        assert_eq!(serving.identify("anything").expect("readable"), None, "there is no file");
        let token = command.create("ci", Role::Operate, Some("ada")).expect("created");
        let known = serving.identify(&token).expect("readable");
        assert_eq!(known, Some(Identity::new("ci", Role::Operate).with_user("ada")));
        assert_eq!(serving.identify(&token[..token.len() - 1]).expect("readable"), None);
        assert_eq!(serving.identify("").expect("readable"), None);
        let text = fs::read_to_string(&path).expect("readable");
        assert!(!text.contains(&token) && !text.contains(token.trim_start_matches(PREFIX)), "only its hash is stored");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().expect("one")).expect("there").permissions().mode() & 0o777, 0o700);
        assert!(matches!(command.create("ci", Role::Read, None), Err(TokenError::Exists(_))));
        command.revoke("ci").expect("revoked");
        assert_eq!(serving.identify(&token).expect("readable"), None);
        assert!(matches!(command.revoke("ci"), Err(TokenError::Missing(_))));
    }

    #[test]
    fn a_file_that_cannot_be_read_knows_nobody() {
        let directory = tempfile::tempdir().expect("a directory");
        let tokens = TokenFile::new(directory.path().join("tokens.json"));
        fs::write(tokens.path(), "{").expect("written");
        assert!(matches!(tokens.identify("x"), Err(TokenError::Unreadable { .. })));
        assert!(matches!(tokens.create("a", Role::Read, None), Err(TokenError::Unreadable { .. })));
        assert_eq!(fs::read_to_string(tokens.path()).expect("readable"), "{", "it is left as it is");
    }

    #[test]
    fn a_directory_in_the_place_of_the_server_s_makes_nobody_an_operator() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("config/tokens.json");
        let command = TokenFile::new(&path);
        let good = command.create("ci", Role::Operate, None).expect("created");
        let serving = TokenFile::new(&path).pinned().expect("open");
        fs::rename(directory.path().join("config"), directory.path().join("moved")).expect("renamed");
        let forged = command.create("evil", Role::Admin, None).expect("created in another directory");
        assert_eq!(serving.identify(&forged).expect("readable"), None);
        assert!(serving.identify(&good).expect("readable").is_some());
    }

    #[test]
    fn names_are_checked() {
        let directory = tempfile::tempdir().expect("a directory");
        let tokens = TokenFile::new(directory.path().join("tokens.json"));
        for name in ["", "a\nb", &"x".repeat(101)] {
            assert!(matches!(tokens.create(name, Role::Read, None), Err(TokenError::Name(_))), "{name:?}");
        }
        assert_eq!(tokens.list().expect("readable"), []);
    }
}
