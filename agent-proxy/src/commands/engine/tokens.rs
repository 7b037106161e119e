//! Command `tokens`.

use std::path::Path;

use proxy_server::TokenInfo;
use serde_json::json;

use crate::{
    args::{CreateTokenArgs, FormatArgs, ListingFormat, TokensArgs, TokensCommand},
    command_failure::CommandFailure,
    configuration,
    render::listing::{Column, ColumnFit, Listing, ListingRow},
    term,
    tokens::{file, problem},
};

/// Lists, creates or revokes tokens.
pub(super) fn run(args: TokensArgs, directory: Option<&Path>, as_json: bool) -> Result<(), CommandFailure> {
    let tokens = file(configuration::read(directory)?.directory()?.path());
    match args.command.unwrap_or_else(|| TokensCommand::List(FormatArgs::default())) {
        TokensCommand::List(format) => list(&tokens.list().map_err(problem)?, &format.form(as_json)),
        TokensCommand::Create(CreateTokenArgs { name, role, user }) => {
            let token = tokens.create(&name, role, user.as_deref()).map_err(problem)?;
            if as_json {
                return term::json(&json!({ "name": name, "role": role, "user": user, "token": token }));
            }
            term::error_line("it is shown this once:");
            term::line(token)
        }
        TokensCommand::Revoke(args) => Ok(tokens.revoke(&args.name).map_err(problem)?),
    }
}

const COLUMNS: &[Column] = &[
    Column { key: "id", heading: "NAME", fit: ColumnFit::Whole, from: 0 },
    Column { key: "role", heading: "ROLE", fit: ColumnFit::Whole, from: 0 },
    Column { key: "user", heading: "USER", fit: ColumnFit::End, from: 0 },
    Column { key: "created", heading: "CREATED", fit: ColumnFit::Whole, from: 0 },
];

fn list(tokens: &[TokenInfo], form: &ListingFormat) -> Result<(), CommandFailure> {
    let row = |token: &TokenInfo| {
        let cells = vec![
            term::printable(&token.name, false),
            token.role.to_string(),
            term::printable(token.user.as_deref().unwrap_or("all"), false),
            humantime::format_rfc3339_seconds(token.created_at).to_string(),
        ];
        ListingRow { cells, json: json!(token) }
    };
    let rows = tokens.iter().map(row).collect();
    Listing { columns: COLUMNS, rows }.print(form, "no tokens: make one with `agent-proxy tokens create NAME`")
}
