//! The configuration directory.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use agents::{ConfigDir, ConfigError, ModelApi, PROTOCOLS, Profile, ProfileLimits, SaveMode, StoredModel};
use tempfile::TempDir;

fn place() -> (TempDir, ConfigDir) {
    let root = tempfile::tempdir().expect("a directory");
    let directory = ConfigDir::new(root.path().join("config"));
    (root, directory)
}

fn write(directory: &ConfigDir, name: &str, text: &str, mode: u32) {
    let path = directory.path().join(name);
    fs::create_dir_all(path.parent().expect("in a directory")).expect("created");
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
}

fn text(directory: &ConfigDir, name: &str) -> String {
    fs::read_to_string(directory.path().join(name)).expect("there")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o777
}

fn profile(name: &str) -> Profile {
    Profile { name: name.into(), agent: "codex".into(), ..Profile::default() }
}

#[test]
fn one_that_is_not_there_has_only_the_built_in_agents() {
    let (_root, directory) = place();
    let built_in = agents::Catalog::default();
    assert_eq!(directory.catalog(&PROTOCOLS).expect("nothing to read").rows(), built_in.rows());
    assert_eq!(directory.profiles().expect("nothing to read").iter().count(), 0);
    assert!(directory.models().expect("nothing to read").is_empty());
    assert!(!directory.path().exists(), "reading makes nothing");
}

#[test]
fn agents_come_from_every_file_of_theirs_the_later_ones_winning() {
    let (_root, directory) = place();
    write(&directory, "agents.toml", "id = 'a'\nprotocol = 'acp'\ncmd = ['one']", 0o644);
    write(&directory, "agents.json", r#"[{"id":"b","protocol":"acp","cmd":["two"]}]"#, 0o644);
    write(&directory, "agents.d/1.toml", "id = 'a'\nprotocol = 'acp'\ncmd = ['three']", 0o644);
    write(&directory, "agents.d/2.json", r#"{"id":"c","protocol":"acp"}"#, 0o644);
    write(&directory, "agents.d/notes.txt", "none of ours", 0o644);
    let catalog = directory.catalog(&PROTOCOLS).expect("all are rows");
    let cmd = |id: &str| catalog.get(id).expect("there").cmd.clone();
    assert_eq!((cmd("a"), cmd("b"), cmd("c")), (vec!["three".into()], vec!["two".into()], vec![]));
    write(&directory, "agents.d/3.toml", "id = 'd'\nprotocol = 'morse'", 0o644);
    let error = directory.catalog(&PROTOCOLS).expect_err("nobody speaks that").to_string();
    assert!(error.contains("agents.d/3.toml, agent \"d\", field protocol"), "{error}");
}

#[test]
fn profiles_are_made_changed_and_deleted() {
    let (_root, directory) = place();
    let mut review = Profile {
        description: Some("only looks".into()),
        limits: ProfileLimits { processes: Some(9), ..ProfileLimits::default() },
        ..profile("review")
    };
    review.permissions.rules = vec![agents::ProfileRule {
        tool: Some("bash".into()),
        command: Some("git *".into()),
        path: None,
        decision: ipc_protocol::RuleDecision::Allow,
    }];
    directory.save_profile(&review, SaveMode::New).expect("saved");
    assert_eq!(mode(&directory.path().join("profiles.toml")), 0o600);
    assert_eq!(mode(directory.path()), 0o700);
    assert_eq!(directory.profiles().expect("readable").get("review"), Ok(&review));
    insta::assert_snapshot!(text(&directory, "profiles.toml"));

    let error = directory.save_profile(&review, SaveMode::New).expect_err("it is there");
    assert!(matches!(error, ConfigError::Exists { .. }), "{error}");
    review.model = Some("big".into());
    directory.save_profile(&review, SaveMode::Changed).expect("changed");
    assert_eq!(directory.profiles().expect("readable").get("review"), Ok(&review));

    let error = directory.save_profile(&profile("other"), SaveMode::Changed).expect_err("it is not there").to_string();
    assert!(error.contains("no profile is called \"other\": there are review"), "{error}");
    directory.delete_profile("review").expect("deleted");
    assert!(matches!(directory.delete_profile("review"), Err(ConfigError::Missing { .. })));
    assert_eq!(directory.profiles().expect("readable").iter().count(), 0);
}

#[test]
fn what_a_person_wrote_around_it_stays() {
    let (_root, directory) = place();
    let before = "# mine\n\n[a] # first\nagent = \"pi\"\n\n# the second\n[b]\nagent = \"codex\"\n";
    write(&directory, "profiles.toml", before, 0o644);
    directory.save_profile(&profile("c"), SaveMode::New).expect("saved");
    assert_eq!(text(&directory, "profiles.toml"), format!("{before}\n[c]\nagent = \"codex\"\n"));
    directory.save_profile(&Profile { mode: Some("plan".into()), ..profile("b") }, SaveMode::Changed).expect("changed");
    directory.delete_profile("c").expect("deleted");
    let after = "# mine\n\n[a] # first\nagent = \"pi\"\n\n# the second\n[b]\nagent = \"codex\"\nmode = \"plan\"\n";
    assert_eq!(text(&directory, "profiles.toml"), after);
}

#[test]
fn what_belongs_to_one_stays_together() {
    let (_root, directory) = place();
    let before =
        "[a]\nagent = \"pi\"\n\n[a.limits]\nprocesses = 1\n\n[b]\nagent = \"codex\"\n\n[b.limits]\nprocesses = 2\n";
    write(&directory, "profiles.toml", before, 0o600);
    let with = |name: &str, processes| Profile {
        limits: ProfileLimits { processes: Some(processes), ..ProfileLimits::default() },
        ..profile(name)
    };
    directory.save_profile(&with("a", 3), SaveMode::Changed).expect("changed");
    directory.save_profile(&with("c", 4), SaveMode::New).expect("saved");
    insta::assert_snapshot!(text(&directory, "profiles.toml"));
}

#[test]
fn a_file_behind_a_link_is_changed_there() {
    let (root, directory) = place();
    fs::create_dir_all(directory.path()).expect("created");
    let real = root.path().join("real.toml");
    fs::write(&real, "").expect("written");
    std::os::unix::fs::symlink(&real, directory.path().join("profiles.toml")).expect("linked");
    directory.save_profile(&profile("a"), SaveMode::New).expect("saved");
    assert!(fs::read_to_string(&real).expect("there").contains("[a]"));
    assert!(directory.path().join("profiles.toml").is_symlink());
}

#[test]
fn only_one_changes_it_at_a_time() {
    let (_root, directory) = place();
    fs::create_dir_all(directory.path()).expect("created");
    let lock = fs::File::create(directory.path().join(".lock")).expect("created");
    lock.lock().expect("nobody has it");
    assert!(matches!(directory.save_profile(&profile("a"), SaveMode::New), Err(ConfigError::Locked { .. })));
    drop(lock);
    directory.save_profile(&profile("a"), SaveMode::New).expect("saved");
}

#[test]
fn what_makes_no_sense_names_file_entry_and_field() {
    for (file, text, part) in [
        ("profiles.toml", "[a]\nagnet = 'pi'", "\"a\", field agnet: unknown field: did you mean \"agent\"?"),
        ("profiles.toml", "[a]\nmode = 'plan'", "\"a\", field agent: "),
        ("profiles.toml", "[a]\nagent = 'pi'\nlimits.processes = 'x'", "\"a\", field limits.processes: "),
        ("profiles.toml", "['a b']\nagent = 'pi'", "field (name): "),
        ("profiles.toml", "a = 7", "a table is needed"),
        ("profiles.toml", "[a", "is no TOML: line 1: "),
        ("models.toml", "[a]\nprovider = ''", "\"a\", field provider: "),
        ("models.toml", "[a]\nprovider = 'x'\nbase_url = 'host:1'", "\"a\", field base_url: "),
        ("models.toml", "[a]\nprovider = 'x'\napi = 'chat'", "\"a\", field api: "),
        ("models.toml", "[a]\nprovider = 'x'\nkey = 'k'\nkey_env = 'K'", "give one of `key`, `key_env` and `key_file`"),
    ] {
        let (_root, directory) = place();
        write(&directory, file, text, 0o600);
        let error = match file {
            "profiles.toml" => directory.profiles().map(drop),
            _ => directory.models().map(drop),
        };
        let error = error.expect_err(text).to_string();
        assert!(error.contains(file) && error.contains(part), "{text}: {error}");
    }
}

fn stored() -> StoredModel {
    StoredModel { provider: "openai".into(), base_url: Some("http://127.0.0.1:1/v1".into()), ..StoredModel::default() }
}

#[test]
fn model_configurations_and_their_keys() {
    let (_root, directory) = place();
    let key = || Some("sk-secret".to_owned().into());
    directory.create_model("literal", &StoredModel { key: key(), ..stored() }).expect("saved");
    let by_env = StoredModel { key_env: Some("MY_KEY".into()), api: Some(ModelApi::OpenaiChat), ..stored() };
    directory.create_model("by-env", &by_env).expect("saved");
    directory.create_model("by-file", &StoredModel { key_file: Some("key".into()), ..stored() }).expect("saved");
    assert_eq!(mode(&directory.path().join("models.toml")), 0o600);
    write(&directory, "key", "sk-secret\n", 0o600);

    let models = directory.models().expect("readable");
    assert_eq!(models["by-env"], by_env);
    let env = |name: &str| (name == "MY_KEY").then(|| "sk-secret".to_owned());
    for (name, stored) in &models {
        let model = directory.resolve(name, stored, env).expect("it has its key");
        assert_eq!(model.key.as_ref().map(agents::Secret::expose), Some("sk-secret"), "{name}");
        assert!(!format!("{stored:?} {model:?}").contains("sk-secret"));
    }
    let missing = directory.resolve("by-env", &models["by-env"], |_| None).expect_err("it is not set").to_string();
    assert!(missing.contains("$MY_KEY"), "{missing}");
    assert!(matches!(directory.create_model("literal", &stored()), Err(ConfigError::Exists { .. })));
    directory.delete_model("literal").expect("deleted");
    assert!(!text(&directory, "models.toml").contains("sk-secret"));
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let (_root, directory) = place();
    write(&directory, "models.toml", "[a]\nprovider = 'x'\nkey = 'sk-secret'", 0o640);
    let error = directory.models().expect_err("it is open");
    assert!(
        matches!(error, ConfigError::Open { mode: 0o640, .. }) && error.to_string().contains("chmod 600"),
        "{error}"
    );
    write(&directory, "models.toml", "[a]\nprovider = 'x'\nkey_file = 'key'", 0o644);
    let models = directory.models().expect("there is no key in it");
    let resolve = || directory.resolve("a", &models["a"], |_| None).map(drop);
    assert!(matches!(resolve(), Err(ConfigError::Read { .. })), "there is no such file");
    write(&directory, "key", "sk-secret", 0o604);
    assert!(matches!(resolve(), Err(ConfigError::Open { .. })));
    write(&directory, "key", " \n", 0o600);
    assert!(matches!(resolve(), Err(ConfigError::EmptyKey { .. })));
    write(&directory, "key", "sk-secret", 0o600);
    resolve().expect("now it is private");
}

#[test]
fn no_error_shows_a_key() {
    for text in ["[a]\nkey = sk-secret", "[a]\nprovider = 'x'\nkey = 'sk-secret'\nkey_env = 'K'", "key = 'sk-secret'"] {
        let (_root, directory) = place();
        write(&directory, "models.toml", text, 0o600);
        let error = directory.models().expect_err(text);
        assert!(!format!("{error} {error:?}").contains("sk-secret"), "{error} {error:?}");
    }
}
