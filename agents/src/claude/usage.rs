//! Tokens, cost and the context window.
//!
//! * `result.modelUsage` and `total_cost_usd` are running totals of the process, and of a resumed conversation from its start; `/clear`
//!   resets them. `model_usage_since_last_result` is the usage of a turn, over all models and including sub-agents. This usage is
//!   emitted. For agents without that field it is the difference of the totals; for the first turn after a resume it is `usage`, which
//!   excludes sub-agents, and there is no cost.
//! * The agent counts tokens of the cache beside its input; events count them as part of it.
//! * The results of a turn that has several (a steered turn) are added up.
//! * The fill of the context window is the last request of the main conversation with its answer.

use std::collections::BTreeMap;

use ipc_protocol::{Event, Usage};
use serde::Deserialize;

/// Most models counted separately; the others are counted in the totals.
const MAX_MODELS: usize = 256;

/// Tokens of one request to the model, as the API reports them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RequestTokens {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

impl RequestTokens {
    fn all(self) -> u64 {
        [self.input_tokens, self.output_tokens, self.cache_read_input_tokens, self.cache_creation_input_tokens]
            .into_iter()
            .flatten()
            .fold(0, u64::saturating_add)
    }
}

impl From<RequestTokens> for Usage {
    fn from(tokens: RequestTokens) -> Self {
        Self {
            input_tokens: tokens.input_tokens,
            output_tokens: tokens.output_tokens,
            cache_read_tokens: tokens.cache_read_input_tokens,
            cache_write_tokens: tokens.cache_creation_input_tokens,
            ..Self::default()
        }
        .with_cache_in_input()
    }
}

/// Usage of one model.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ModelUsage {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
    #[serde(rename = "costUSD")]
    cost_usd: f64,
    context_window: Option<u64>,
}

/// Usage of all models.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ModelTotals {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
    cost: f64,
}

impl ModelTotals {
    fn of(models: &BTreeMap<String, ModelUsage>) -> Self {
        models.values().fold(Self::default(), |sum, model| Self {
            input: sum.input.saturating_add(model.input_tokens),
            output: sum.output.saturating_add(model.output_tokens),
            cache_read: sum.cache_read.saturating_add(model.cache_read_input_tokens),
            cache_write: sum.cache_write.saturating_add(model.cache_creation_input_tokens),
            cost: sum.cost + model.cost_usd,
        })
    }

    /// Returns the increase since `before`, or everything if the counters were reset in between.
    fn since(self, before: Self) -> Self {
        if self.input < before.input || self.output < before.output || self.cost < before.cost {
            return self;
        }
        Self {
            input: self.input - before.input,
            output: self.output - before.output,
            cache_read: self.cache_read.saturating_sub(before.cache_read),
            cache_write: self.cache_write.saturating_sub(before.cache_write),
            cost: self.cost - before.cost,
        }
    }
}

impl From<ModelTotals> for Usage {
    fn from(totals: ModelTotals) -> Self {
        Self {
            input_tokens: Some(totals.input),
            output_tokens: Some(totals.output),
            cache_read_tokens: Some(totals.cache_read),
            cache_write_tokens: Some(totals.cache_write),
            // A model without a price costs nothing.
            cost_usd: Some(totals.cost).filter(|cost| *cost > 0.0),
            cost_source: None,
        }
        .with_cache_in_input()
    }
}

/// Usage fields of a `result` line.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResultUsage {
    usage: Option<RequestTokens>,
    #[serde(rename = "modelUsage")]
    model_usage: BTreeMap<String, ModelUsage>,
    model_usage_since_last_result: Option<BTreeMap<String, ModelUsage>>,
}

/// Counters of the session.
#[derive(Debug, Default)]
pub(super) struct ClaudeUsage {
    /// Running totals; unknown before the first result of a continued conversation.
    totals: Option<ModelTotals>,
    /// Context window sizes of the models used.
    windows: BTreeMap<String, u64>,
    /// Model of the main conversation.
    model: Option<String>,
    /// Tokens of the last request of the main conversation.
    last: Option<RequestTokens>,
}

impl ClaudeUsage {
    /// Makes the counters of a new conversation, or of one that has a past.
    pub(super) fn new(has_past: bool) -> Self {
        Self { totals: (!has_past).then(ModelTotals::default), ..Self::default() }
    }

    /// Records the answer to a request of the main conversation.
    pub(super) fn record_request(&mut self, tokens: RequestTokens) {
        self.last = Some(tokens);
    }

    /// Records the model of the main conversation.
    pub(super) fn model(&mut self, model: &str) {
        if self.model.as_deref() != Some(model) {
            self.model = Some(model.to_owned());
        }
    }

    /// Records that the conversation was compacted to this many tokens.
    pub(super) fn compacted(&mut self, tokens: u64) {
        self.last = Some(RequestTokens { input_tokens: Some(tokens), ..RequestTokens::default() });
    }

    /// Resets the counters, since the conversation was cleared.
    pub(super) fn reset(&mut self) {
        (self.totals, self.last) = (Some(ModelTotals::default()), None);
    }

    /// Records the usage of a result and returns it.
    pub(super) fn record_result(&mut self, taken: ResultUsage) -> Usage {
        let totals = ModelTotals::of(&taken.model_usage);
        let usage = match (&taken.model_usage_since_last_result, self.totals) {
            (Some(since), _) => ModelTotals::of(since).into(),
            (None, Some(before)) if !taken.model_usage.is_empty() => totals.since(before).into(),
            (None, _) => taken.usage.unwrap_or_default().into(),
        };
        self.totals = Some(totals);
        for (model, usage) in taken.model_usage {
            if let Some(size) = usage.context_window
                && (self.windows.len() < MAX_MODELS || self.windows.contains_key(&model))
            {
                self.windows.insert(model, size);
            }
        }
        usage
    }

    /// Returns the fill of the context window, if known.
    pub(super) fn context_window(&self) -> Option<Event> {
        let size = match &self.model {
            Some(model) => self.windows.get(model).or_else(|| self.windows.values().next())?,
            None => self.windows.values().next()?,
        };
        Some(Event::context_window(self.last?.all(), *size))
    }
}

/// Adds two usages. A number that only one of them has stays as it is.
pub(super) fn add(a: Usage, b: Usage) -> Usage {
    fn sum<T: std::ops::Add<Output = T>>(a: Option<T>, b: Option<T>) -> Option<T> {
        match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        }
    }
    let tokens = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    };
    Usage {
        input_tokens: tokens(a.input_tokens, b.input_tokens),
        output_tokens: tokens(a.output_tokens, b.output_tokens),
        cache_read_tokens: tokens(a.cache_read_tokens, b.cache_read_tokens),
        cache_write_tokens: tokens(a.cache_write_tokens, b.cache_write_tokens),
        cost_usd: sum(a.cost_usd, b.cost_usd),
        cost_source: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(input: u64, cost: f64, since: Option<u64>) -> ResultUsage {
        let model =
            |input: u64, cost: f64| json!({ "m": { "inputTokens": input, "costUSD": cost, "contextWindow": 1000 } });
        let mut value = json!({ "modelUsage": model(input, cost), "usage": { "input_tokens": 7 } });
        if let Some(since) = since {
            value["model_usage_since_last_result"] = model(since, 0.5);
        }
        serde_json::from_value(value).expect("parses")
    }

    #[test]
    fn a_turn_is_what_came_on_top() {
        let mut meter = ClaudeUsage::new(false);
        assert_eq!(meter.record_result(taken(10, 1.0, None)).input_tokens, Some(10));
        let second = meter.record_result(taken(25, 1.5, None));
        assert_eq!((second.input_tokens, second.cost_usd), (Some(15), Some(0.5)));
        assert_eq!(meter.record_result(taken(5, 0.25, None)).input_tokens, Some(5), "the agent began to count anew");
        assert_eq!(meter.record_result(taken(99, 9.0, Some(3))).input_tokens, Some(3), "the agent says it itself");
    }

    #[test]
    fn the_past_of_a_resumed_conversation_is_not_the_turns() {
        let mut meter = ClaudeUsage::new(true);
        let first = meter.record_result(taken(1000, 10.0, None));
        assert_eq!((first.input_tokens, first.cost_usd), (Some(7), None));
        assert_eq!(meter.record_result(taken(1010, 10.0, None)).input_tokens, Some(10));
    }

    #[test]
    fn the_window_is_told_once_its_size_is_known() {
        let mut meter = ClaudeUsage::new(false);
        meter.model("m");
        meter.record_request(RequestTokens {
            input_tokens: Some(100),
            output_tokens: Some(20),
            ..RequestTokens::default()
        });
        assert_eq!(meter.context_window(), None);
        meter.record_result(taken(1, 0.0, None));
        assert_eq!(meter.context_window(), Some(Event::context_window(120, 1000)));
    }
}
