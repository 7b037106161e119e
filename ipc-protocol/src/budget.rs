//! Budget of a session for its model.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// US dollars, to the millionth. In JSON a number: `0.25`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Usd {
    millionths: u64,
}

impl Usd {
    /// Creates an amount from millionths of a dollar.
    pub const fn from_millionths(millionths: u64) -> Self {
        Self { millionths }
    }

    /// Returns the amount in millionths of a dollar.
    pub const fn millionths(self) -> u64 {
        self.millionths
    }

    /// Returns the amount nearest to `dollars`; `None` if that is negative, above a billion, or not a number.
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        let millionths = (dollars * 1e6).round();
        // A billion dollars: far beyond that an `f64` cannot represent every millionth.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
        (0.0..=1e15).contains(&millionths).then_some(Self { millionths: millionths as u64 })
    }

    /// Returns the amount in dollars.
    pub fn dollars(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "it is for people")]
        let millionths = self.millionths as f64;
        millionths / 1e6
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.dollars())
    }
}

/// Error for text that is no amount of money.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no amount of US dollars: write 0.25, 3 or 12.50")]
pub struct InvalidUsd(String);

impl FromStr for Usd {
    type Err = InvalidUsd;

    fn from_str(text: &str) -> Result<Self, InvalidUsd> {
        let number = text.strip_prefix('$').unwrap_or(text).parse().ok();
        number.and_then(Self::from_dollars).ok_or_else(|| InvalidUsd(text.chars().take(80).collect()))
    }
}

impl Serialize for Usd {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() { s.serialize_f64(self.dollars()) } else { s.serialize_u64(self.millionths) }
    }
}

impl<'de> Deserialize<'de> for Usd {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if !d.is_human_readable() {
            return u64::deserialize(d).map(Self::from_millionths);
        }
        let dollars = f64::deserialize(d)?;
        Self::from_dollars(dollars).ok_or_else(|| D::Error::custom(format!("{dollars} is no amount of US dollars")))
    }
}

/// Action when a budget is used up. Each emits the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum BudgetAction {
    /// Emits the event only.
    Warn,
    /// Lets the running turn continue, and refuses further prompts.
    RefusePrompts,
    /// Aborts the running turn, and refuses further prompts.
    #[default]
    EndTurn,
    /// Ends the session.
    EndSession,
}

/// Bounds on all turns of a session together, as its agent counts. Agents report at the end of a turn, and some
/// also during it (after each request to the model): a turn can exceed a budget by its usage up to that report.
///
/// Input counts all tokens read, those from a cache too. `cost_usd` is for agents that report a cost.
///
/// ```
/// use ipc_protocol::{Budget, BudgetAction};
///
/// let mut budget = Budget::default();
/// budget.total_tokens = Some(200_000);
/// budget.action = BudgetAction::EndSession;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Budget {
    /// Tokens read.
    pub input_tokens: Option<u64>,
    /// Tokens written.
    pub output_tokens: Option<u64>,
    /// Tokens read and written.
    pub total_tokens: Option<u64>,
    /// Cost in US dollars.
    pub cost_usd: Option<Usd>,
    /// Action when one of these is used up.
    pub action: BudgetAction,
}

/// Part of a [`Budget`], with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum BudgetKind {
    /// Number of tokens read.
    InputTokens,
    /// Number of tokens written.
    OutputTokens,
    /// Number of tokens read and written.
    TotalTokens,
    /// Millionths of a US dollar.
    Cost,
}

impl fmt::Display for BudgetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InputTokens => "input tokens",
            Self::OutputTokens => "output tokens",
            Self::TotalTokens => "tokens",
            Self::Cost => "cost",
        })
    }
}

/// Report of a budget that was used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetExceeded {
    /// Part of the budget.
    pub budget: BudgetKind,
    /// Allowed value, in the unit of its kind.
    pub value: u64,
    /// Value measured by then.
    pub measured: u64,
    /// Action taken.
    pub action: BudgetAction,
}

impl fmt::Display for BudgetExceeded {
    /// `1200 of 1000 tokens`, `$1.2 of $1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { budget, value, measured, .. } = self;
        match budget {
            BudgetKind::Cost => {
                write!(f, "{} of {}", Usd::from_millionths(*measured), Usd::from_millionths(*value))
            }
            kind => write!(f, "{measured} of {value} {kind}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn money_as_it_is_written() {
        for (text, millionths) in [("0.25", 250_000), ("3", 3_000_000), ("$12.50", 12_500_000), ("0.0000004", 0)] {
            assert_eq!(text.parse(), Ok(Usd::from_millionths(millionths)), "{text}");
        }
        for text in ["", "-1", "NaN", "inf", "1e99", "a lot"] {
            text.parse::<Usd>().expect_err(text);
        }
        let passed = BudgetExceeded {
            budget: BudgetKind::Cost,
            value: 1_000_000,
            measured: 1_200_000,
            action: BudgetAction::Warn,
        };
        assert_eq!(passed.to_string(), "$1.2 of $1");
    }

    #[test]
    fn json_of_a_budget() {
        let budget: Budget =
            serde_json::from_str(r#"{"totalTokens":9,"costUsd":0.5,"action":"endSession"}"#).expect("parses");
        let expected = Budget {
            total_tokens: Some(9),
            cost_usd: Some(Usd::from_millionths(500_000)),
            action: BudgetAction::EndSession,
            ..Budget::default()
        };
        assert_eq!(budget, expected);
        assert!(serde_json::from_str::<Budget>(r#"{"costUsd":-1}"#).is_err());
        assert!(serde_json::from_str::<Budget>(r#"{"tokens":1}"#).is_err());
    }

    proptest! {
        #[test]
        fn amounts_survive_json(millionths in 0..=1_000_000_000_000_000_u64) {
            let amount = Usd::from_millionths(millionths);
            let json = serde_json::to_string(&amount).expect("serializes");
            prop_assert_eq!(serde_json::from_str::<Usd>(&json).expect("parses"), amount);
        }
    }
}
