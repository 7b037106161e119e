//! A session's own home that begins with the user's login and skills.

use std::{fs, path::Path, sync::Arc};

use ipc_protocol::HomePart;
use proxy_manager::{AgentSessionConfig, Home, KillOptions};
use serde_json::json;

use super::{Ran, answers::ended_well, ensure, given::request};
use crate::{
    mock_model::says,
    real_agents::{Failure, Stage, Verdict, session::within},
};

/// What the model is told of a skill.
const SKILL: &str = "Picks plums that are purple.";

/// What an agent's user has, for its login to be with the mock model.
struct UserFiles {
    login: &'static str,
    contents: String,
    skills: &'static str,
    /// Further parts to copy.
    parts: Vec<HomePart>,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
    model: &'static str,
}

pub(super) async fn home_copy(stage: Arc<Stage>) -> Ran {
    let Some(user) = user_files(&stage)? else {
        return Ok(Verdict::Lacks("its login is with its provider alone, for which no mock stands in".into()));
    };
    let base = stage.folder().join("base");
    put(&base.join(user.login), &user.contents)?;
    let skill = format!("---\nname: plum\ndescription: {SKILL}\n---\n\nPick them.\n");
    put(&base.join(user.skills).join("plum/SKILL.md"), &skill)?;
    let home_copy = [vec![HomePart::Login, HomePart::Skills], user.parts].concat();
    let config = stage.config();
    let mut env = config.env.clone();
    env.0.extend(user.env.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let mut session = stage
        .start(AgentSessionConfig {
            home: Some(Home::Own),
            home_copy,
            model_config: None,
            model: Some(user.model.to_owned()),
            command: user.args,
            env,
            ..config
        })
        .await?;
    ended_well(&session.ask("good morning").await?)?;
    let asked = request(&stage, "good morning")?;
    let login = asked.authorization.as_deref().unwrap_or_default();
    ensure!(login.contains(&stage.key), "the login of the request: {login:?}");
    ensure!(says(&asked.body, SKILL), "the model was not told of the skill: {}", asked.body);
    let home = session.handle.info().metadata.home;
    let home = home.ok_or_else(|| Failure::Wrong("it has no home of its own".to_owned()))?;
    let copied = Path::new(&home).join(user.login);
    ensure!(copied.exists(), "the login is not at {}", copied.display());
    within("the kill", session.handle.kill(KillOptions::default())).await??;
    within("its end", async {
        while copied.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await?;
    ensure!(base.join(user.login).exists(), "the user's own is gone");
    Ok(Verdict::Pass)
}

fn put(path: &Path, contents: &str) -> Result<(), Failure> {
    let text = |error: std::io::Error| Failure::Wrong(format!("{}: {error}", path.display()));
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(text)?;
    fs::write(path, contents).map_err(text)
}

fn user_files(stage: &Stage) -> Result<Option<UserFiles>, Failure> {
    let (root, key) = (stage.model.root_url(), &stage.key);
    let user = match stage.row.family() {
        Some("claude") => UserFiles {
            login: ".claude/.credentials.json",
            contents: json!({ "claudeAiOauth": {
                "accessToken": key, "refreshToken": "none", "expiresAt": 4_102_444_800_000_u64,
                "scopes": ["user:inference", "user:profile"], "subscriptionType": "max",
            } })
            .to_string(),
            skills: ".claude/skills",
            parts: Vec::new(),
            args: Vec::new(),
            env: vec![("ANTHROPIC_BASE_URL", root)],
            model: stage.agent.set_model[0],
        },
        Some("codex") => {
            let provider = format!(
                "model_providers.login={{ name = \"login\", base_url = \"{root}/v1\", wire_api = \"responses\", \
                 requires_openai_auth = true, supports_websockets = false }}"
            );
            UserFiles {
                login: ".codex/auth.json",
                contents: json!({ "OPENAI_API_KEY": key }).to_string(),
                skills: ".codex/skills",
                parts: Vec::new(),
                args: ["-c", "model_provider=\"login\"", "-c", &provider].map(str::to_owned).into(),
                env: Vec::new(),
                model: stage.agent.set_model[0],
            }
        }
        Some("opencode") => {
            let options = json!({ "baseURL": format!("{root}/v1") });
            let models = json!({ "mock-model": { "limit": { "context": 200_000, "output": 32_000 } } });
            let provider = json!({ "npm": "@ai-sdk/openai-compatible", "options": options, "models": models });
            put(&stage.work().join("opencode.json"), &json!({ "provider": { "mock": provider } }).to_string())?;
            UserFiles {
                login: ".local/share/opencode/auth.json",
                contents: json!({ "mock": { "type": "api", "key": key } }).to_string(),
                skills: ".config/opencode/skills",
                parts: Vec::new(),
                args: Vec::new(),
                env: Vec::new(),
                model: "mock/mock-model",
            }
        }
        Some("pi") => {
            let models = json!([{ "id": "mock-model", "reasoning": false, "input": ["text"] }]);
            let provider = json!({ "baseUrl": format!("{root}/v1"), "api": "openai-completions", "models": models });
            let path = ".pi/agent/models.json";
            let providers = json!({ "providers": { "mock": provider } }).to_string();
            put(&stage.folder().join("base").join(path), &providers)?;
            UserFiles {
                login: ".pi/agent/auth.json",
                contents: json!({ "mock": { "type": "api_key", "key": key } }).to_string(),
                skills: ".pi/agent/skills",
                parts: vec![HomePart::Path(path.to_owned())],
                args: ["--approve", "--provider", "mock"].map(str::to_owned).into(),
                env: Vec::new(),
                model: "mock-model",
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(user))
}
