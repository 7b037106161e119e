//! Token counts. Codex counts for the whole conversation; events contain the counts of a turn.

use ipc_protocol::Usage;
use serde::Deserialize;
use serde_json::{Value, json};

/// Count of the app-server. `inputTokens` includes cached tokens, `outputTokens` includes reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TokenCount {
    total_tokens: u64,
    input_tokens: u64,
    cached_input_tokens: u64,
    cache_write_input_tokens: u64,
    output_tokens: u64,
}

impl TokenCount {
    /// Returns the increase since `base`.
    fn since(&self, base: &Self) -> Self {
        Self {
            total_tokens: self.total_tokens.saturating_sub(base.total_tokens),
            input_tokens: self.input_tokens.saturating_sub(base.input_tokens),
            cached_input_tokens: self.cached_input_tokens.saturating_sub(base.cached_input_tokens),
            cache_write_input_tokens: self.cache_write_input_tokens.saturating_sub(base.cache_write_input_tokens),
            output_tokens: self.output_tokens.saturating_sub(base.output_tokens),
        }
    }

    fn usage(&self) -> Usage {
        Usage {
            input_tokens: Some(self.input_tokens),
            output_tokens: Some(self.output_tokens),
            cache_read_tokens: Some(self.cached_input_tokens),
            cache_write_tokens: Some(self.cache_write_input_tokens),
            ..Usage::default()
        }
    }
}

/// Parameters of `thread/tokenUsage/updated`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TokenUsageUpdate {
    /// Count of the whole conversation.
    total: TokenCount,
    /// Count of the last request to the model. Codex repeats it when a request fails, so a sum of these would be wrong.
    last: TokenCount,
    model_context_window: Option<u64>,
}

/// Token counts of a conversation, and of its current turn.
#[derive(Debug, Default)]
pub(super) struct ThreadTokens {
    /// Last total; `None` in a continued conversation until Codex reports its total.
    total: Option<TokenCount>,
    /// Total when the turn started.
    base: Option<TokenCount>,
    /// Usage of the turn that was emitted last.
    reported: Option<Usage>,
    window: Option<(u64, u64)>,
}

/// New information in an update.
#[derive(Debug, Default, PartialEq)]
pub(super) struct UsageChange {
    /// Tokens of the turn.
    pub(super) usage: Option<Usage>,
    /// Tokens in the context window, and its size.
    pub(super) window: Option<(u64, u64)>,
}

impl ThreadTokens {
    /// Makes the counts of a new conversation.
    pub(super) fn of_new() -> Self {
        Self { total: Some(TokenCount::default()), ..Self::default() }
    }

    /// Starts a turn.
    pub(super) fn begin(&mut self) {
        self.base = self.total;
        self.reported = None;
    }

    /// Records an update; `ours` says that it belongs to the current turn.
    pub(super) fn update(&mut self, update: &TokenUsageUpdate, ours: bool) -> UsageChange {
        let window = update.model_context_window.map(|size| (update.last.total_tokens, size));
        let window = window.filter(|window| self.window != Some(*window)).inspect(|window| self.window = Some(*window));
        self.total = Some(update.total);
        if !ours {
            // A resumed conversation first reports its total, which may arrive after a turn was already requested.
            self.base = Some(update.total);
            return UsageChange { usage: None, window };
        }
        let base = *self.base.get_or_insert_with(|| update.total.since(&update.last));
        let count = update.total.since(&base);
        // A failed request repeats the count of the request before it.
        let usage = Some(count.usage()).filter(|usage| count != TokenCount::default() && self.reported != Some(*usage));
        self.reported = usage.or(self.reported);
        UsageChange { usage, window }
    }

    /// Returns the usage of the turn, if Codex reported it.
    pub(super) fn of_turn(&self) -> Option<Box<Usage>> {
        self.reported.map(Box::new)
    }
}

/// What is kept of how far the account's limits are used: of each window its share and its reset.
pub(super) fn limits(said: &Value) -> Value {
    let window = |key: &str| json!({ "usedPercent": said[key]["usedPercent"].as_f64(), "resetsAt": said[key]["resetsAt"].as_u64() });
    json!([window("primary"), window("secondary")])
}

/// When the limits that are used up are all reset, in milliseconds since 1970.
pub(super) fn resets_at(limits: &Value) -> Option<u64> {
    let windows = limits.as_array()?.iter();
    let used_up = windows.filter(|window| window["usedPercent"].as_f64().is_some_and(|used| used >= 100.0));
    used_up.filter_map(|window| window["resetsAt"].as_u64()).max().map(|seconds| seconds.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(total: u64, last: u64) -> TokenUsageUpdate {
        let count = |tokens| TokenCount { total_tokens: tokens, input_tokens: tokens, ..TokenCount::default() };
        TokenUsageUpdate { total: count(total), last: count(last), model_context_window: Some(1000) }
    }

    fn input(news: &UsageChange) -> Option<u64> {
        news.usage.and_then(|usage| usage.input_tokens)
    }

    #[test]
    fn a_turn_takes_what_the_total_grows_by() {
        let mut tokens = ThreadTokens::of_new();
        tokens.begin();
        assert_eq!(input(&tokens.update(&update(100, 100), true)), Some(100));
        assert_eq!(input(&tokens.update(&update(250, 150), true)), Some(250));
        tokens.begin();
        assert_eq!(tokens.update(&update(250, 150), true), UsageChange::default(), "nothing new");
        assert_eq!(tokens.of_turn(), None);
        assert_eq!(input(&tokens.update(&update(300, 50), true)), Some(50));
        assert_eq!(tokens.of_turn().and_then(|usage| usage.input_tokens), Some(50));
    }

    #[test]
    fn a_resumed_conversation_begins_where_it_stood() {
        let mut told = ThreadTokens::default();
        told.begin();
        assert_eq!(told.update(&update(900, 100), false), UsageChange { usage: None, window: Some((100, 1000)) });
        assert_eq!(input(&told.update(&update(950, 50), true)), Some(50));
        // A fork reports no total before its first turn.
        let mut fork = ThreadTokens::default();
        fork.begin();
        assert_eq!(input(&fork.update(&update(950, 50), true)), Some(50));
    }

    #[test]
    fn a_limit_is_reset_when_all_windows_that_are_used_up_are() {
        let said = json!({
            "limitId": "codex", "primary": { "usedPercent": 100, "windowDurationMins": 300, "resetsAt": 1_795_449_201 },
            "secondary": { "usedPercent": 42.5, "resetsAt": 1_795_900_000 },
        });
        assert_eq!(resets_at(&limits(&said)), Some(1_795_449_201_000));
        assert_eq!(resets_at(&limits(&json!({ "primary": null, "secondary": null }))), None);
        assert_eq!(resets_at(&Value::Null), None);
    }
}
