//! The file `config.toml`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use toml_edit::{Document, Item, Value};

use super::{ConfigFault, ConfigKey, is_address, keys, keys::ValueKind};

/// Values of a file.
#[derive(Clone, Debug)]
pub(crate) struct ConfigFile {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Entries in the order of the file.
    pub(crate) entries: Vec<FileEntry>,
}

/// Value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileEntry {
    /// Name of the key.
    pub(crate) key: String,
    /// Its value, or the values of a list, as the command line would have them.
    pub(crate) values: Vec<String>,
    /// Line, from 1.
    pub(crate) line: usize,
}

impl ConfigFile {
    /// Reads a file; `None` if there is none.
    ///
    /// # Errors
    /// Each fault with its line, key and what is allowed.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, Vec<ConfigFault>> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(path, &text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(vec![fault(path, None, None, None, format!("reading it failed: {error}"), None)]),
        }
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Vec<ConfigFault>> {
        let line_at = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
        let document = Document::parse(text).map_err(|error| {
            let line = error.span().map(|span| line_at(span.start));
            let reason = format!("it is no TOML: {}", error.message().replace('\n', ", "));
            vec![fault(path, line, None, None, reason, None)]
        })?;
        let (mut entries, mut faults) = (Vec::new(), Vec::new());
        for (name, item) in document.iter() {
            let span = document.key(name).and_then(toml_edit::Key::span).or_else(|| item.span());
            let line = span.map_or(1, |span| line_at(span.start));
            let Some(key) = keys().iter().find(|key| key.name == name) else {
                faults.push(fault(path, Some(line), Some(name), None, unknown(name), None));
                continue;
            };
            let found = values(key, item, path)
                .and_then(|values| values.iter().try_for_each(|value| key.check(value)).map(|()| values));
            match found {
                Ok(values) => entries.push(FileEntry { key: name.to_owned(), values, line }),
                Err(reason) => {
                    let given = key.redacted(item.span().and_then(|span| text.get(span)).unwrap_or_default().trim());
                    faults.push(fault(path, Some(line), Some(name), Some(given), reason, Some(key.allowed())));
                }
            }
        }
        if faults.is_empty() { Ok(Self { path: path.to_owned(), entries }) } else { Err(faults) }
    }
}

fn fault(
    path: &Path,
    line: Option<usize>,
    key: Option<&str>,
    given: Option<String>,
    reason: String,
    allowed: Option<String>,
) -> ConfigFault {
    ConfigFault { file: Some(path.to_owned()), line, key: key.map(str::to_owned), given, reason, allowed }
}

/// Says that there is no such key, and which may be meant.
fn unknown(name: &str) -> String {
    let plain = name.trim_start_matches('-').replace('-', "_");
    let near = keys().iter().map(|key| (strsim::jaro_winkler(&key.name, &plain), key));
    let near = near.max_by(|(one, _), (other, _)| one.total_cmp(other)).filter(|(likeness, _)| *likeness > 0.8);
    match near {
        Some((_, key)) => format!("no such key: `{}` may be meant", key.name),
        None => "no such key: docs/configuration.md and `agent-proxy config show` list them".to_owned(),
    }
}

/// Values as text; the reason where they have another form.
fn values(key: &ConfigKey, item: &Item, file: &Path) -> Result<Vec<String>, String> {
    let Item::Value(value) = item else { return Err("a table is no value".to_owned()) };
    let one = |value: &Value| text(key, value, file);
    match value {
        Value::Array(list) if key.is_list => list.iter().map(one).collect(),
        Value::Array(_) => Err("it takes one value".to_owned()),
        value => Ok(vec![one(value)?]),
    }
}

fn text(key: &ConfigKey, value: &Value, file: &Path) -> Result<String, String> {
    match (&key.kind, value) {
        (ValueKind::Switch, Value::Boolean(on)) => Ok(on.value().to_string()),
        (ValueKind::Switch, _) => Err("it is true or false, without quotes".to_owned()),
        (ValueKind::Path, Value::String(address)) if is_address(address.value()) => Ok(address.value().clone()),
        (ValueKind::Path, Value::String(path)) => Ok(absolute(Path::new(path.value()), file).display().to_string()),
        (_, Value::String(text)) => Ok(text.value().clone()),
        (ValueKind::Number, Value::Integer(number)) => Ok(number.value().to_string()),
        (_, other) => Err(format!("a value of the type {} has no meaning here", other.type_name())),
    }
}

/// A path below the user's home, or below the file's directory.
fn absolute(path: &Path, file: &Path) -> PathBuf {
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    match path.strip_prefix("~") {
        Ok(below) => home().map_or_else(|| path.to_owned(), |home| home.join(below)),
        Err(_) => file.parent().map_or_else(|| path.to_owned(), |directory| directory.join(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key, values and line.
    type ParsedEntry = (String, Vec<String>, usize);

    fn parse(text: &str) -> Result<Vec<ParsedEntry>, Vec<String>> {
        let parsed = ConfigFile::parse(Path::new("/etc/ap/config.toml"), text);
        parsed
            .map(|file| file.entries.into_iter().map(|entry| (entry.key, entry.values, entry.line)).collect())
            .map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn values_of_each_form() {
        let text = "# the daemon\nmax_sessions = 8\ndrain = \"1m\"\n\nstate_dir = 'state'\nlisten = [\"127.0.0.1:1\", '[::1]:2']\n\
                    allow_sessions = true\nlog_file = '/var/log/ap.log'\nhost = 'one'\n";
        let entry =
            |key: &str, values: &[&str], line| (key.to_owned(), values.iter().map(|v| (*v).to_owned()).collect(), line);
        assert_eq!(
            parse(text).expect("valid"),
            [
                entry("max_sessions", &["8"], 2),
                entry("drain", &["1m"], 3),
                entry("state_dir", &["/etc/ap/state"], 5),
                entry("listen", &["127.0.0.1:1", "[::1]:2"], 6),
                entry("allow_sessions", &["true"], 7),
                entry("log_file", &["/var/log/ap.log"], 8),
                entry("host", &["one"], 9),
            ]
        );
        assert_eq!(parse("").expect("empty"), []);
    }

    #[test]
    fn each_fault_has_file_line_key_and_what_is_allowed() {
        let text = "max_sessions = -1\nmax-session = 3\ndetach = 'yes'\ndrain = 30\ncontainment = 'loose'\nlisten = ['here']\n\
                    max_depth = [1]\n[queue]\n";
        let faults = parse(text).expect_err("faults");
        let expected = [
            ("/etc/ap/config.toml:1: max_sessions = -1: ", "; allowed: a whole number"),
            ("/etc/ap/config.toml:2: max-session: no such key: ", "`max_sessions` may be meant"),
            ("/etc/ap/config.toml:3: detach = 'yes': it is true or false", "; allowed: true or false"),
            ("/etc/ap/config.toml:4: drain = 30: a value of the type integer", "a time, as in \"30s\""),
            ("/etc/ap/config.toml:5: containment = 'loose': ", "; allowed: one of auto, baseline"),
            ("/etc/ap/config.toml:6: listen = ['here']: ", "; allowed: a list; each value: text, as ADDRESS:PORT"),
            ("/etc/ap/config.toml:7: max_depth = [1]: it takes one value", "; allowed: a whole number"),
            ("/etc/ap/config.toml:8: queue = ", "a table is no value"),
        ];
        assert_eq!(faults.len(), expected.len(), "{faults:#?}");
        for (fault, (begin, part)) in faults.iter().zip(expected) {
            assert!(fault.starts_with(begin) && fault.contains(part), "{fault}");
        }
        let broken = parse("a = 1\nb = = 2\n").expect_err("broken");
        assert!(broken[0].starts_with("/etc/ap/config.toml:2: it is no TOML: "), "{broken:?}");
    }
}
