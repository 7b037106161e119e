//! Rows from files.

use agents::{AgentSpec, ApplyMethod, Catalog, FileFormat, PROTOCOLS, schema};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The sample that the schema was taken from, as it stands there.
const SAMPLE: &str = include_str!("sample.json");

fn load(text: &str, format: FileFormat) -> Result<Catalog, String> {
    let mut catalog = Catalog::default();
    let loaded = catalog.load(text, format, &PROTOCOLS, "my/agents");
    loaded.map(|()| catalog).map_err(|error| error.to_string())
}

fn row(fields: Value) -> Value {
    let mut row = json!({ "id": "mine", "protocol": "acp", "cmd": ["mine"] });
    for (name, value) in fields.as_object().expect("an object") {
        row[name] = value.clone();
    }
    row
}

#[track_caller]
fn refused(fields: Value) -> String {
    load(&row(fields).to_string(), FileFormat::Json).expect_err("refused")
}

#[test]
fn the_sample_loads_verbatim() {
    let catalog = load(SAMPLE, FileFormat::Json).expect("it loads");
    let row = catalog.get("gemini").expect("it takes the built-in row's place");
    assert_eq!(row.cmd, ["gemini-cli", "--output-format=json", "--non-interactive"]);
    assert_eq!((row.protocol.as_str(), row.title()), ("gemini", "Gemini"));
    assert_eq!(row.required_env, ["GOOGLE_API_KEY"]);
    assert_eq!(row.resource_limits.cpu_cores, Some(2.0));
    assert_eq!(row.default_model(), Some("gemini-2.0-flash"));
    let setting = &row.permission_settings["auto_approve"];
    assert_eq!((setting.supported, setting.on, setting.apply_method), (true, false, ApplyMethod::CliFlag));
    assert_eq!(row.discovery.installation_path.macos, ["~/.gemini/config.json"]);
    let mut limits = ipc_protocol::Limits::default();
    row.resource_limits.apply(&mut limits);
    assert_eq!(
        (limits.memory_bytes, limits.cpu_percent, limits.wall_clock_ms),
        (Some(4 << 30), Some(200), Some(3_600_000))
    );
    // Nothing of it is lost: what is written again has all that it said.
    let again = serde_json::to_value(row).expect("serializes");
    let said: Value = serde_json::from_str(SAMPLE).expect("JSON");
    for (name, value) in said.as_object().expect("an object") {
        assert!(holds(&again[name], value), "{name}: {} is not in {}", value, again[name]);
    }
}

/// Whether `all` has everything that `part` has.
fn holds(all: &Value, part: &Value) -> bool {
    match (all, part) {
        (Value::Object(all), Value::Object(part)) => part.iter().all(|(k, v)| all.get(k).is_some_and(|a| holds(a, v))),
        (Value::Array(all), Value::Array(part)) => {
            all.len() == part.len() && all.iter().zip(part).all(|(a, p)| holds(a, p))
        }
        _ => all == part,
    }
}

#[test]
fn one_row_a_list_and_a_table_in_both_formats() {
    let one = row(json!({}));
    for text in [
        one.to_string(),
        json!([one]).to_string(),
        json!({ "$schema": "agents.schema.json", "agents": [one] }).to_string(),
    ] {
        assert!(load(&text, FileFormat::Json).expect(&text).get("mine").is_ok(), "{text}");
    }
    for text in ["id = 'mine'\nprotocol = 'acp'", "[[agents]]\nid = 'mine'\nprotocol = 'acp'"] {
        assert!(load(text, FileFormat::Toml).expect(text).get("mine").is_ok(), "{text}");
    }
    for (text, format) in [("", FileFormat::Toml), ("{}", FileFormat::Json), ("[]", FileFormat::Json)] {
        let rows = load(text, format).expect("nothing").rows().len();
        assert_eq!(rows, Catalog::default().rows().len());
    }
}

#[test]
fn what_is_no_list_of_rows_says_what_it_should_be() {
    for text in ["7", r#"{"agents":7}"#, r#"{"agents":[],"id":"x"}"#] {
        assert!(
            load(text, FileFormat::Json).expect_err(text).contains("one row, a list of rows, or `agents`"),
            "{text}"
        );
    }
    let error = load("{\"id\": \n oops}", FileFormat::Json).expect_err("no JSON");
    assert!(error.starts_with("my/agents is no JSON: ") && error.contains("line 2"), "{error}");
    let error = load("id = 'x'\noops", FileFormat::Toml).expect_err("no TOML");
    assert!(error.starts_with("my/agents is no TOML: ") && error.contains("line 2"), "{error}");
}

#[test]
fn an_unknown_field_names_file_row_and_what_may_be_meant() {
    for (fields, field, meant) in [
        (json!({ "comand": [] }), "comand", "cmd"),
        (json!({ "modelflag": "" }), "modelflag", "model_flag"),
        (json!({ "session_config": { "resum_flag": "" } }), "session_config.resum_flag", "resume_flag"),
        (json!({ "permission_settings": { "x": { "cli_flags": "" } } }), "permission_settings.x.cli_flags", "cli_flag"),
    ] {
        let error = refused(fields);
        assert!(error.starts_with(&format!("my/agents, agent \"mine\", field {field}: unknown field: ")), "{error}");
        if meant != "cmd" {
            assert!(error.contains(&format!("did you mean {meant:?}?")), "{error}");
        }
        assert!(error.contains(meant), "{error}");
    }
}

#[test]
fn a_value_of_the_wrong_kind_names_its_field() {
    for (fields, field) in [
        (json!({ "enabled": "yes" }), "enabled"),
        (json!({ "resource_limits": { "memory_mb": -1 } }), "resource_limits.memory_mb"),
        (json!({ "model_config": { "available_models": [{ "id": 7 }] } }), "model_config.available_models[0].id"),
        (json!({ "permission_settings": { "x": { "apply_method": "magic" } } }), "permission_settings.x.apply_method"),
        (json!({ "env": { "A": 1 } }), "env.A"),
    ] {
        let error = refused(fields);
        assert!(error.starts_with(&format!("my/agents, agent \"mine\", field {field}: ")), "{error}");
    }
    let error = load(r#"[{"id":"a","protocol":"acp"},{"protocol":"acp"}]"#, FileFormat::Json).expect_err("no id");
    assert_eq!(error, "my/agents, agent #2, field id: missing field `id`");
    let error = load(r#"[{"id":"a"}]"#, FileFormat::Json).expect_err("no protocol");
    assert_eq!(error, "my/agents, agent \"a\", field protocol: missing field `protocol`");
}

#[test]
fn what_makes_no_sense_names_its_field_and_what_would() {
    for (fields, field, part) in [
        (json!({ "id": "a b" }), "id", "1 to 64 characters"),
        (json!({ "protocol": "codx" }), "protocol", "did you mean \"codex\"? there are acp, claude-code, codex"),
        (json!({ "protocol_config": { "config": "calude" } }), "protocol_config.config", "did you mean \"claude\"?"),
        (json!({ "protocol_config": [] }), "protocol_config", "object"),
        (json!({ "image": "-x" }), "image", "no name of an image"),
        (json!({ "image": "x", "tag": "a b" }), "tag", "no tag"),
        (json!({ "tag": "x" }), "tag", "without an `image`"),
        (json!({ "image": "x", "mounts": [{ "source": "a", "target": "/b" }] }), "mounts", "absolute paths"),
        (json!({ "cmd": [""] }), "cmd", "no name"),
        (json!({ "cmd": ["a\0"] }), "cmd", "NUL"),
        (json!({ "working_dir": "here" }), "working_dir", "{workspace}"),
        (json!({ "required_env": ["A=B"] }), "required_env", "no name of a variable"),
        (json!({ "env": { "A=B": "" } }), "env", "no name of a variable"),
        (json!({ "env": { "A": "\0" } }), "env.A", "NUL"),
        (json!({ "resource_limits": { "memory_mb": 0 } }), "resource_limits.memory_mb", "leave it out"),
        (json!({ "resource_limits": { "cpu_cores": 0.0 } }), "resource_limits.cpu_cores", "leave it out"),
        (json!({ "resource_limits": { "timeout_seconds": 0 } }), "resource_limits.timeout_seconds", "leave it out"),
        (json!({ "model_flag": "--model" }), "model_flag", "--model {model}"),
        (json!({ "model_flag": "--model '{model}" }), "model_flag", "not closed"),
        (json!({ "workspace_flag": "'" }), "workspace_flag", "not closed"),
        (json!({ "session_config": { "resume_flag": "'" } }), "session_config.resume_flag", "not closed"),
        (
            json!({ "session_config": { "session_dir_template": "chats" } }),
            "session_config.session_dir_template",
            "begin with {home} or /",
        ),
        (
            json!({ "session_config": { "session_dir_template": "{workspace}/chats" } }),
            "session_config.session_dir_template",
            "only {home}",
        ),
        (
            json!({ "session_config": { "attach_command": ["mine", "--last"] } }),
            "session_config.attach_command",
            "{id}",
        ),
        (
            json!({ "session_config": { "native_session_resume": true, "resume_flag": "--resume" } }),
            "session_config.resume_flag",
            "never be given",
        ),
        (
            json!({ "protocol_config": { "config": "pi" }, "session_config": { "resume_flag": "--resume" } }),
            "session_config.resume_flag",
            "\"pi\"",
        ),
        (json!({ "protocol_config": { "config": "pi" }, "model_flag": "--model {model}" }), "model_flag", "\"pi\""),
        (
            json!({ "protocol_config": { "config": "pi" }, "session_config": { "session_dir_template": "{home}/x" } }),
            "session_config.session_dir_template",
            "{home}/.pi/agent/sessions",
        ),
        (
            json!({ "permission_config": { "permission_flag": "--ask {tool}" } }),
            "permission_config.tools_requiring_permission",
            "never be given",
        ),
        (
            json!({ "session_config": { "can_recover": false, "resume_flag": "--resume" } }),
            "session_config.resume_flag",
            "session_config.can_recover says",
        ),
        (
            json!({ "session_config": { "native_session_resume": false, "attach_command": ["mine", "{id}"] } }),
            "session_config.attach_command",
            "session_config.native_session_resume says",
        ),
        (
            json!({
                "session_config": { "native_session_resume": true },
                "discovery": { "discovery_capabilities": { "supports_session_resume": false } },
            }),
            "session_config.native_session_resume",
            "supports_session_resume says",
        ),
        (
            json!({ "discovery": { "installation_path": { "linux": ["mine.json"] } } }),
            "discovery.installation_path",
            "~/",
        ),
        (json!({ "discovery": { "mcp_config_path": { "linux": ["~me/x"] } } }), "discovery.mcp_config_path", "~/"),
        (json!({ "permission_settings": { "x": { "supported": true } } }), "permission_settings.x.cli_flag", "none"),
        (json!({ "discovery": { "min_node": "new" } }), "discovery.min_node", "22.19.0"),
        (json!({ "model_config": { "available_models": [{}] } }), "model_config.available_models", "no id"),
        (
            json!({ "model_config": { "default_model": "a", "available_models": [{ "id": "b", "is_default": true }] } }),
            "model_config.default_model",
            "\"b\" says is_default",
        ),
    ] {
        let error = refused(fields);
        assert!(error.contains(&format!(", field {field}: ")) && error.contains(part), "{error}");
    }
    let error = load(&json!([row(json!({})), row(json!({}))]).to_string(), FileFormat::Json).expect_err("twice");
    assert!(error.contains("another row of this file has it too"), "{error}");
}

#[test]
fn a_row_may_name_an_image() {
    let text = row(json!({
        "image": "x/y",
        "tag": "1",
        "mounts": [{ "source": "/a", "target": "/b", "read_only": true }],
        "session_config": { "session_dir_target": "/data" },
    }))
    .to_string();
    let catalog = load(&text, FileFormat::Json).expect("a row");
    let row = catalog.get("mine").expect("it starts");
    assert_eq!((row.image.as_str(), row.tag.as_str(), row.mounts.len()), ("x/y", "1", 1));
}

#[test]
fn no_row_is_added_from_a_file_with_a_wrong_one() {
    let mut catalog = Catalog::default();
    let text = json!([row(json!({})), row(json!({ "id": "other", "protocol": "?" }))]).to_string();
    catalog.load(&text, FileFormat::Json, &PROTOCOLS, "f").expect_err("refused");
    assert!(catalog.get("mine").is_err());
}

#[test]
fn an_adapter_of_the_embedder_s_is_a_protocol() {
    let text = row(json!({ "protocol": "own" })).to_string();
    assert!(load(&text, FileFormat::Json).is_err());
    let protocols = [&PROTOCOLS[..], &["own"]].concat();
    Catalog::default().load(&text, FileFormat::Json, &protocols, "f").expect("it is linked in");
}

#[test]
fn the_schema_is_as_reviewed() {
    insta::assert_snapshot!(serde_json::to_string_pretty(&schema()).expect("serializes"));
}

#[test]
fn the_schema_has_every_field_and_no_other() {
    let schema = schema();
    let fields = |of: &str| {
        let properties = schema["$defs"][of]["properties"].as_object().unwrap_or_else(|| panic!("{of}: {schema}"));
        assert_eq!(schema["$defs"][of]["additionalProperties"], json!(false), "{of}");
        properties.keys().cloned().collect::<std::collections::BTreeSet<_>>()
    };
    let row = serde_json::to_value(AgentSpec::new("x", "acp", &[])).expect("serializes");
    assert_eq!(fields("AgentSpec"), row.as_object().expect("an object").keys().cloned().collect());
    let discovery = row["discovery"].as_object().expect("an object").keys().cloned().collect();
    assert_eq!(fields("DiscoverySpec"), discovery);
    assert_eq!(schema["$defs"]["AgentSpec"]["required"], json!(["id", "protocol"]));
}

/// What of `value`, at `path`, does not fit `schema`: the part of JSON Schema that ours is written in.
fn misfits(root: &Value, schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (keyword, said) in schema.as_object().into_iter().flatten() {
        let list = || said.as_array().into_iter().flatten();
        let fits_one = || list().any(|one| misfits(root, one, value, path).is_empty());
        let fits = match keyword.as_str() {
            "$ref" => {
                let pointer = said.as_str().and_then(|to| to.strip_prefix('#')).expect("a pointer");
                wrong.extend(misfits(root, root.pointer(pointer).expect("it is there"), value, path));
                true
            }
            "anyOf" | "oneOf" => fits_one(),
            "const" => value == said,
            "enum" => list().any(|one| one == value),
            "type" if said.is_array() => list().any(|kind| is_of(value, kind)),
            "type" => is_of(value, said),
            "minimum" => value.as_f64().is_none_or(|number| number >= said.as_f64().unwrap_or(f64::MAX)),
            "required" => {
                !value.is_object() || list().all(|name| value.get(name.as_str().unwrap_or_default()).is_some())
            }
            "items" => {
                for (at, item) in value.as_array().into_iter().flatten().enumerate() {
                    wrong.extend(misfits(root, said, item, &format!("{path}/{at}")));
                }
                true
            }
            "properties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    match (said.get(name), schema.get("additionalProperties")) {
                        (Some(said), _) => wrong.extend(misfits(root, said, member, &format!("{path}/{name}"))),
                        (None, Some(Value::Bool(false))) => wrong.push(format!("{path}/{name}: unknown")),
                        (None, _) => {}
                    }
                }
                true
            }
            "additionalProperties" if said.is_object() => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    wrong.extend(misfits(root, said, member, &format!("{path}/{name}")));
                }
                true
            }
            _ => true,
        };
        if !fits {
            wrong.push(format!("{path}: {value} is not {keyword} {said}"));
        }
    }
    wrong
}

fn is_of(value: &Value, kind: &Value) -> bool {
    match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("null") => value.is_null(),
        other => panic!("{other:?}"),
    }
}

/// An editor that is given the schema has nothing to say against what is loaded, and something against what is not.
#[test]
fn what_is_loaded_fits_the_schema() {
    let schema = schema();
    let misfits = |value: &Value| misfits(&schema, &schema, value, "");
    let sample: Value = serde_json::from_str(SAMPLE).expect("JSON");
    let builtin: Value = toml::from_str(include_str!("../../src/catalog/builtin.toml")).expect("TOML");
    for rows in [&sample, &builtin["agents"]] {
        let rows = rows.get("agents").unwrap_or(rows);
        for row in rows.as_array().map_or(std::slice::from_ref(rows), Vec::as_slice) {
            assert_eq!(misfits(row), [""; 0]);
        }
    }
    for wrong in [
        json!({ "cmd": "mine" }),
        json!({ "unheard-of": 1 }),
        json!({ "discovery": { "supports_mcp": "yes" } }),
        json!({ "resource_limits": { "memory_mb": -1 } }),
    ] {
        assert!(load(&row(wrong.clone()).to_string(), FileFormat::Json).is_err(), "{wrong}");
        assert_ne!(misfits(&row(wrong.clone())), [""; 0], "{wrong}");
    }
    assert_ne!(misfits(&json!({ "id": "mine" })), [""; 0]);
}

proptest! {
    #[test]
    fn any_text_is_rows_or_an_error(text in "\\PC{0,200}") {
        let _ = load(&text, FileFormat::Json);
        let _ = load(&text, FileFormat::Toml);
    }

    #[test]
    fn a_field_of_any_value_is_taken_or_named(at: prop::sample::Index, value in prop_oneof![
        Just(json!(null)), Just(json!(true)), Just(json!(-7)), Just(json!("x")), Just(json!([1])), Just(json!({ "a": "b" })),
    ]) {
        let fields = serde_json::to_value(AgentSpec::new("mine", "acp", &["mine"])).expect("serializes");
        let names: Vec<&String> = fields.as_object().expect("an object").keys().collect();
        let name = at.get(&names).as_str();
        if let Err(error) = load(&row(json!({ name: value })).to_string(), FileFormat::Json) {
            prop_assert!(error.contains(&format!("field {name}")), "{}", error);
        }
    }
}

/// What a person runs to go on with a conversation: each agent's own program, also where a session runs an ACP wrapper of it.
#[test]
fn a_conversation_is_gone_on_with_by_the_agent_s_own_program() {
    let catalog = Catalog::default();
    let commands: Vec<_> = catalog
        .rows()
        .iter()
        .map(|row| (row.id.as_str(), row.attach_command("id 1", None).map(|words| words.join("|"))))
        .collect();
    let expected = [
        ("claude-code", Some("claude|--resume|id 1")),
        ("codex", Some("codex|resume|id 1")),
        ("opencode", Some("opencode|--session|id 1")),
        ("pi", Some("pi|--session|id 1")),
        ("gemini", Some("gemini|--resume|id 1")),
        ("qwen", Some("qwen|--resume|id 1")),
        ("opencode-acp", Some("opencode|--session|id 1")),
        ("claude-agent-acp", Some("claude|--resume|id 1")),
        ("codex-acp", Some("codex|resume|id 1")),
        ("acp", None),
        ("command", None),
    ];
    assert_eq!(commands, expected.map(|(id, command)| (id, command.map(str::to_owned))));
    // Where a running server has it, by that server; what has no such server is not asked.
    let on_server = |agent| catalog.get(agent).expect("built in").attach_command("id 1", Some("http://h:1"));
    let words = on_server("opencode").map(|words| words.join("|"));
    assert_eq!(words.as_deref(), Some("opencode|attach|http://h:1|--dir|.|--session|id 1"));
    assert_eq!(on_server("pi").map(|words| words.join("|")).as_deref(), Some("pi|--session|id 1"));
}
