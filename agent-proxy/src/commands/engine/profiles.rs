//! Command `profiles`.

use std::path::Path;

use agents::{Profile, ProfileError, SaveMode};
use proxy_server::{LoadedConfiguration, ProblemDetails, profile_json};

use crate::{
    args::{
        ChangeProfileArgs, CreateProfileArgs, FormatArgs, ListingFormat, ProfileField, ProfilesArgs, ProfilesCommand,
    },
    command_failure::CommandFailure,
    configuration,
    render::listing::{Column, ColumnFit, Listing, ListingRow},
    term,
};

/// Lists, shows, creates, changes or deletes profiles.
pub(super) fn run(args: ProfilesArgs, directory: Option<&Path>, as_json: bool) -> Result<(), CommandFailure> {
    let configuration = configuration::read(directory)?;
    match args.command.unwrap_or_else(|| ProfilesCommand::List(FormatArgs::default())) {
        ProfilesCommand::List(format) => list(&configuration, &format.form(as_json)),
        ProfilesCommand::Show(args) => print_profile(configuration.profiles.get(&args.name)?, as_json),
        ProfilesCommand::Create(args) => create(&configuration, args, as_json),
        ProfilesCommand::Change(args) => change(&configuration, args, as_json),
        ProfilesCommand::Delete(args) => {
            configuration.stored_profile(&args.name)?;
            configuration.directory()?.delete_profile(&args.name).map_err(|error| ProblemDetails::from(error).into())
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

fn list(configuration: &LoadedConfiguration, form: &ListingFormat) -> Result<(), CommandFailure> {
    let row = |profile: &Profile| {
        let text = |text: &Option<String>| term::printable(text.as_deref().unwrap_or_default(), false);
        let cells = vec![
            profile.name.clone(),
            profile.agent.clone(),
            text(&profile.model),
            text(&profile.mode),
            text(&profile.description),
        ];
        ListingRow { cells, json: profile_json(profile) }
    };
    let rows = configuration.profiles.iter().map(row).collect();
    Listing { columns: COLUMNS, rows }
        .print(form, "no profiles: no agent is found, and `agent-proxy profiles create` has made none")
}

/// Converts a profile to its form in a file, with its name.
fn print_profile(profile: &Profile, as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return term::json(&profile_json(profile));
    }
    let text = profile.to_toml().map_err(ProblemDetails::failed)?;
    if profile.computed {
        term::error_line(format_args!("made for the agent that was found: {:?} is in no file", profile.name));
    }
    term::out(text)
}

fn create(configuration: &LoadedConfiguration, args: CreateProfileArgs, as_json: bool) -> Result<(), CommandFailure> {
    let mut profile =
        Profile { name: args.name, agent: args.agent, description: args.description, ..Profile::default() };
    args.choice.apply_to(&mut profile)?;
    save(configuration, &profile, SaveMode::New, as_json)
}

fn change(configuration: &LoadedConfiguration, args: ChangeProfileArgs, as_json: bool) -> Result<(), CommandFailure> {
    let mut profile = configuration.stored_profile(&args.name)?.clone();
    args.unset.into_iter().for_each(|field| unset(&mut profile, field));
    if let Some(agent) = args.agent {
        profile.agent = agent;
    }
    profile.description = args.description.or(profile.description);
    args.choice.apply_to(&mut profile)?;
    save(configuration, &profile, SaveMode::Changed, as_json)
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

fn save(
    configuration: &LoadedConfiguration,
    profile: &Profile,
    save: SaveMode,
    as_json: bool,
) -> Result<(), CommandFailure> {
    configuration.save_profile(profile, save)?;
    if as_json { term::json(&profile_json(profile)) } else { Ok(()) }
}

impl From<ProfileError> for CommandFailure {
    fn from(error: ProfileError) -> Self {
        ProblemDetails::from(error).into()
    }
}
