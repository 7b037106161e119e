//! Command `profiles`.

use agents::Profile;
use api_types::ProblemDetails;
use serde_json::Value;

use crate::{
    args::{
        ChangeProfileArgs, CreateProfileArgs, FormatArgs, GlobalArgs, ListingFormat, ProfileField, ProfilesArgs,
        ProfilesCommand,
    },
    command_failure::CommandFailure,
    configuration_store::ConfigurationStore,
    render::listing::{Column, ColumnFit, Listing, ListingRow},
    term,
};

/// Lists, shows, creates, changes or deletes profiles.
pub(super) async fn run(args: ProfilesArgs, global: &GlobalArgs) -> Result<(), CommandFailure> {
    let store = ConfigurationStore::find(global)?;
    let as_json = global.json;
    match args.command.unwrap_or_else(|| ProfilesCommand::List(FormatArgs::default())) {
        ProfilesCommand::List(format) => list(&store.profiles().await?, &format.form(as_json)),
        ProfilesCommand::Show(args) => show(&store, &args.name, as_json).await,
        ProfilesCommand::Create(args) => create(&store, args, as_json).await,
        ProfilesCommand::Change(args) => change(&store, args, as_json).await,
        ProfilesCommand::Delete(args) => {
            stored(&store, &args.name).await?;
            Ok(store.delete_profile(&args.name).await?)
        }
    }
}

const COLUMNS: &[Column] = &[
    Column { key: "id", heading: "PROFILE", fit: ColumnFit::Whole, from: 0 },
    Column { key: "agent", heading: "AGENT", fit: ColumnFit::Whole, from: 0 },
    Column { key: "model", heading: "MODEL", fit: ColumnFit::End, from: 0 },
    Column { key: "mode", heading: "MODE", fit: ColumnFit::End, from: 0 },
    Column { key: "description", heading: "WHAT FOR", fit: ColumnFit::End, from: 0 },
];

fn list(profiles: &[Value], form: &ListingFormat) -> Result<(), CommandFailure> {
    let row = |profile: &Value| {
        let text = |member: &str| term::printable(profile[member].as_str().unwrap_or_default(), false);
        let cells = ["name", "agent", "model", "mode", "description"].map(text).to_vec();
        ListingRow { cells, json: profile.clone() }
    };
    let rows = profiles.iter().map(row).collect();
    Listing { columns: COLUMNS, rows }
        .print(form, "no profiles: no agent is found, and `agent-proxy profiles create` has made none")
}

/// Prints a profile in its form in a file, or as JSON with its name.
async fn show(store: &ConfigurationStore, name: &str, as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return term::json(&store.profile_description(name).await?);
    }
    let profile = store.profile(name).await?;
    let text = profile.to_toml().map_err(ProblemDetails::failed)?;
    if profile.computed {
        term::error_line(format_args!("made for the agent that was found: {:?} is in no file", profile.name));
    }
    term::out(text)
}

async fn create(store: &ConfigurationStore, args: CreateProfileArgs, as_json: bool) -> Result<(), CommandFailure> {
    let mut profile =
        Profile { name: args.name, agent: args.agent, description: args.description, ..Profile::default() };
    args.choice.apply_to(&mut profile)?;
    print_saved(&store.create_profile(&profile).await?, as_json)
}

async fn change(store: &ConfigurationStore, args: ChangeProfileArgs, as_json: bool) -> Result<(), CommandFailure> {
    let mut profile = stored(store, &args.name).await?;
    args.unset.into_iter().for_each(|field| unset(&mut profile, field));
    if let Some(agent) = args.agent {
        profile.agent = agent;
    }
    profile.description = args.description.or(profile.description);
    args.choice.apply_to(&mut profile)?;
    print_saved(&store.change_profile(&profile).await?, as_json)
}

/// Returns the profile of that name, if it is in a file.
async fn stored(store: &ConfigurationStore, name: &str) -> Result<Profile, ProblemDetails> {
    let profile = store.profile(name).await?;
    if profile.computed {
        let advice = "make one of that name, which then takes its place";
        return Err(ProblemDetails::new("unknown-profile", format!("profile {name:?} is in no file: {advice}")));
    }
    Ok(profile)
}

fn unset(profile: &mut Profile, field: ProfileField) {
    match field {
        ProfileField::Description => profile.description = None,
        ProfileField::Model => profile.model = None,
        ProfileField::ModelConfig => profile.model_config = None,
        ProfileField::Mode => profile.mode = None,
        ProfileField::Thinking => profile.thinking = None,
        ProfileField::SystemPrompt => profile.system_prompt = None,
        ProfileField::Permission => profile.permissions.mode = None,
        ProfileField::Rules => profile.permissions.rules.clear(),
        ProfileField::PermissionTimeout => {
            (profile.permissions.deadline_ms, profile.permissions.allow_at_deadline) = (None, None);
        }
        ProfileField::Limits => profile.limits = Default::default(),
        ProfileField::Timeouts => profile.timeouts = Default::default(),
    }
}

fn print_saved(description: &Value, as_json: bool) -> Result<(), CommandFailure> {
    if as_json { term::json(description) } else { Ok(()) }
}
