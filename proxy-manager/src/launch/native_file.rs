//! The file in which an agent keeps a conversation.

use std::{
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use agents::AgentSpec;

use super::{backup, family};

/// Directories of a family's conversation files, below its store.
const DIRECTORIES: [(&str, &str); 5] =
    [("claude", "projects"), ("codex", "sessions"), ("gemini", "tmp"), ("opencode", ""), ("pi", "")];
/// Name of OpenCode's database of all conversations.
pub(super) const DATABASE: &str = "opencode.db";
/// Maximum number of files whose beginning is searched for a working directory.
const NEWEST: usize = 1000;

/// Directory of the conversation files of an agent of `spec`: its family's, else the one in its row. `None` where
/// neither is known.
pub(super) fn directory(spec: &AgentSpec, store: Option<&Path>, home: Option<&String>) -> Option<PathBuf> {
    let family = family(spec);
    if let Some((_, below)) = DIRECTORIES.iter().find(|(name, _)| *name == family) {
        return Some(if below.is_empty() { store?.to_owned() } else { store?.join(below) });
    }
    let template = Some(&spec.session_config.session_dir_template).filter(|template| !template.is_empty())?;
    let path = PathBuf::from(template.replace("{home}", home?));
    path.is_absolute().then_some(path)
}

/// Finds the file of conversation `id` below `directory`: the newest file named after it. `None` if it does not exist
/// yet. Follows no links. Blocks.
///
/// # Errors
/// An error if the files cannot be listed, or are too many.
pub(crate) fn find(directory: &Path, id: &str) -> io::Result<Option<PathBuf>> {
    let database = directory.join(DATABASE);
    if database.is_file() {
        return Ok(Some(database));
    }
    Ok(newest_first(directory)?.find(|path| is_of(path, id)))
}

/// Finds the newest file below `directory` whose beginning names `cwd`. `None` if none of the newest does. Follows no
/// links. Blocks.
///
/// # Errors
/// As [`find`].
pub(super) fn most_recent(directory: &Path, cwd: &str) -> io::Result<Option<PathBuf>> {
    let says = format!("\"cwd\":{}", serde_json::Value::from(cwd));
    Ok(newest_first(directory)?.take(NEWEST).find(|path| backup::says(path, &says).unwrap_or(false)))
}

fn newest_first(directory: &Path) -> io::Result<impl Iterator<Item = PathBuf>> {
    let mut files: Vec<(PathBuf, SystemTime)> = Vec::new();
    backup::list(directory, backup::DEEPEST, &mut files)?;
    files.sort_by_key(|(_, changed)| std::cmp::Reverse(*changed));
    Ok(files.into_iter().map(|(path, _)| path))
}

/// Returns true if a file is named after the conversation: by its id, or by a prefix of it if the file's beginning has
/// the whole id.
fn is_of(path: &Path, id: &str) -> bool {
    let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { return false };
    let Some(prefix) = id.get(..backup::PREFIX) else { return !id.is_empty() && name == id };
    name.contains(id) || (name.contains(prefix) && backup::says(path, id).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_family_has_its_directory_and_others_what_their_row_says() {
        let of = |family: &str, template: &str| {
            let mut spec = AgentSpec::new("x", "acp", &["x"]);
            spec.protocol_config = serde_json::json!({ "config": family });
            spec.session_config.session_dir_template = template.to_owned();
            directory(&spec, Some(Path::new("/h/store")), Some(&"/h".to_owned()))
        };
        assert_eq!(of("claude", "{home}/elsewhere"), Some("/h/store/projects".into()));
        assert_eq!(of("pi", ""), Some("/h/store".into()));
        assert_eq!(of("mine", "{home}/chats"), Some("/h/chats".into()));
        assert_eq!((of("mine", ""), of("mine", "chats")), (None, None));
    }

    #[test]
    fn files_are_found_by_the_names_that_agents_give_them() {
        let scratch = tempfile::tempdir().expect("a directory");
        let id = "0f1e2d3c-aaaa-7000-8000-000000000000";
        let other = "0f1e2d3c-bbbb-7000-8000-000000000000";
        let find = |directory: &str, id: &str| find(&scratch.path().join(directory), id).expect("looked");
        let write = |path: String, contents: &str| {
            let path = scratch.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(&path, contents).expect("written");
            path
        };
        assert_eq!(find("claude", id), None, "it is not there yet");
        let claude = write(format!("claude/-work/{id}.jsonl"), "");
        let codex = write(format!("codex/2026/01/02/rollout-2026-01-02T03-04-05-{id}.jsonl"), "");
        let pi = write(format!("pi/--work--/2026-01-02_{id}.jsonl"), "");
        assert_eq!(find("claude", id), Some(claude));
        assert_eq!(find("codex", id), Some(codex));
        assert_eq!((find("pi", id), find("pi", other)), (Some(pi), None));
        // Two that begin alike, as those of one minute do.
        let gemini =
            write("gemini/w/chats/session-1-0f1e2d3c.jsonl".to_owned(), &format!("{{\"sessionId\":\"{id}\"}}"));
        write("gemini/w/chats/session-2-0f1e2d3c.jsonl".to_owned(), &format!("{{\"sessionId\":\"{other}\"}}"));
        assert_eq!(find("gemini", id), Some(gemini));
        let short = write("short/12.json".to_owned(), "");
        assert_eq!((find("short", "12"), find("short", "1"), find("short", "")), (Some(short), None, None));
        let database = write(format!("opencode/{DATABASE}"), "");
        assert_eq!(find("opencode", "ses_1"), Some(database));
    }
}
