//! Arguments for a session's budget.

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use ipc_protocol::{Budget, BudgetAction, OnUsageLimit, Usd};

/// Names of the actions.
const ACTIONS: [(&str, BudgetAction); 4] = [
    ("warn", BudgetAction::Warn),
    ("refuse", BudgetAction::RefusePrompts),
    ("end-turn", BudgetAction::EndTurn),
    ("end-session", BudgetAction::EndSession),
];

fn action() -> impl TypedValueParser<Value = BudgetAction> {
    let parse = |name: String| ACTIONS.iter().find(|(known, _)| *known == name).map(|(_, action)| *action);
    PossibleValuesParser::new(ACTIONS.map(|(name, _)| name)).try_map(move |name| parse(name).ok_or("no such action"))
}

fn on_usage_limit() -> impl TypedValueParser<Value = OnUsageLimit> {
    PossibleValuesParser::new(["fail", "wait"])
        .map(|name| if name == "wait" { OnUsageLimit::Wait } else { OnUsageLimit::Fail })
}

/// A budget.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Budget")]
pub(crate) struct BudgetArgs {
    /// Tokens, read and written, that the session's turns may take together, as its agent counts them
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// Of these, tokens read
    #[arg(long, value_name = "N")]
    max_input_tokens: Option<u64>,
    /// Of these, tokens written
    #[arg(long, value_name = "N")]
    max_output_tokens: Option<u64>,
    /// Cost in US dollars that the turns may have together, where the agent reports it or prices give it
    #[arg(long, value_name = "USD")]
    max_cost: Option<Usd>,
    /// Action when the budget is used up [default: end-turn]
    ///
    /// warn: an event only. refuse: the running turn goes on, further prompts are refused. end-turn: the turn is aborted too.
    /// end-session: the session is ended. Most agents tell at the end of a turn what it took.
    #[arg(long, value_name = "ACTION", value_parser = action())]
    on_budget: Option<BudgetAction>,
    /// Fail a prompt that meets the usage limit of the agent's account, or let it wait [default: fail]
    ///
    /// wait: it waits until the limit is reset, and is asked again then; prompts behind it wait with it. It fails where the agent does
    /// not say when that is. An abort ends the wait.
    #[arg(long, value_name = "WHAT", value_parser = on_usage_limit())]
    on_usage_limit: Option<OnUsageLimit>,
}

impl BudgetArgs {
    /// Returns the choice for prompts that meet a usage limit.
    pub(crate) fn on_usage_limit(&self) -> OnUsageLimit {
        self.on_usage_limit.unwrap_or_default()
    }

    /// Converts to the library's form.
    pub(crate) fn budget(self) -> Budget {
        Budget {
            input_tokens: self.max_input_tokens,
            output_tokens: self.max_output_tokens,
            total_tokens: self.max_tokens,
            cost_usd: self.max_cost,
            action: self.on_budget.unwrap_or_default(),
        }
    }
}
