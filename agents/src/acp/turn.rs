//! Turns: their prompts, their cost and their end.

use agent_client_protocol_schema::v1::{
    self, ContentBlock, ImageContent, PromptCapabilities, PromptResponse, ResourceLink, UsageUpdate,
};
use ipc_protocol::{Prompt, PromptPart, StopReason, Usage};
use serde_json::Value;

use crate::uri;

/// Most prompts that steer a turn.
pub(super) const MAX_STEERS: usize = 64;

/// Turn in progress.
#[derive(Debug, Default)]
pub(super) struct AcpTurn {
    /// Number of prompts that have steered the turn. The turn ends when the last of its prompts is answered.
    pub(super) steers: usize,
    pub(super) cancelled: bool,
    /// True if a permission request was cancelled with the turn.
    pub(super) refused: bool,
    /// Stop reason in the last answer.
    pub(super) stop_reason: Option<StopReason>,
    /// Maximum over the answers. For two prompts in one turn, one agent counts everything for one of them, and another agent sends
    /// the same numbers for both.
    pub(super) usage: Option<Usage>,
}

impl AcpTurn {
    /// Adds the usage of one call of the model, of an agent that sends no sum.
    pub(super) fn add_call(&mut self, call: Usage) {
        let sum = self.usage.get_or_insert_default();
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            *sum = more.map(|more| sum.unwrap_or_default().saturating_add(more)).or(*sum);
        };
        add(&mut sum.input_tokens, call.input_tokens);
        add(&mut sum.output_tokens, call.output_tokens);
        add(&mut sum.cache_read_tokens, call.cache_read_tokens);
    }

    /// Records the answer to a prompt.
    pub(super) fn record_answer(&mut self, (stop_reason, usage): (StopReason, Option<Usage>)) {
        self.stop_reason = Some(stop_reason);
        if let Some(usage) = usage {
            let most = self.usage.get_or_insert_default();
            most.input_tokens = most.input_tokens.max(usage.input_tokens);
            most.output_tokens = most.output_tokens.max(usage.output_tokens);
            most.cache_read_tokens = most.cache_read_tokens.max(usage.cache_read_tokens);
            most.cache_write_tokens = most.cache_write_tokens.max(usage.cache_write_tokens);
        }
    }
}

/// Cost of the conversation, in US dollars. Agents report the sum of all turns.
#[derive(Debug, Default)]
pub(super) struct ConversationCost {
    /// Sum so far; unknown for a continued conversation until the agent reports it.
    total: Option<f64>,
    /// Sum when the turn started.
    before: Option<f64>,
    /// True if the agent reported the sum in this turn.
    is_reported: bool,
}

impl ConversationCost {
    /// Makes the cost of a new or of a continued conversation.
    pub(super) fn of(is_new: bool) -> Self {
        Self { total: is_new.then_some(0.0), ..Self::default() }
    }

    pub(super) fn begin_turn(&mut self) {
        self.before = self.total;
        self.is_reported = false;
    }

    /// Records a reported sum. Returns whether the turn's cost is now known.
    pub(super) fn record(&mut self, update: &UsageUpdate) -> bool {
        let Some(cost) = update.cost.as_ref().filter(|cost| cost.currency == "USD" && cost.amount.is_finite()) else {
            return false;
        };
        self.total = Some(cost.amount);
        self.is_reported = true;
        self.before.is_some()
    }

    /// Returns the cost of the turn, as far as the agent reports it.
    pub(super) fn of_turn(&self) -> Option<f64> {
        // A model without a price costs nothing.
        let total = self.total.filter(|total| self.is_reported && *total > 0.0)?;
        let before = self.before?;
        Some((total - before).max(0.0))
    }
}

/// Converts a prompt to the protocol's content blocks.
///
/// # Errors
/// The ability that the agent lacks.
pub(super) fn blocks(prompt: &Prompt, cwd: &str, can: &PromptCapabilities) -> Result<Vec<ContentBlock>, &'static str> {
    let block = |part: &PromptPart| match part {
        PromptPart::Text(text) => Ok(text.clone().into()),
        PromptPart::Image { mime_type, data } if can.image => {
            Ok(ContentBlock::Image(ImageContent::new(data.clone(), mime_type.clone())))
        }
        PromptPart::Image { .. } => Err("take pictures"),
        PromptPart::File { path } => {
            let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
            Ok(ContentBlock::ResourceLink(ResourceLink::new(name, uri::file(path, cwd))))
        }
    };
    prompt.parts.iter().map(block).collect()
}

/// Returns the usage of one call of the model, which Qwen Code sends with an empty text. Cached tokens are part of its input.
pub(super) fn usage_of_call(chunk: &v1::ContentChunk) -> Option<Usage> {
    let count = chunk.meta.as_ref()?.get("usage")?;
    let number = |name: &str| count.get(name).and_then(Value::as_u64);
    let is_empty = matches!(&chunk.content, v1::ContentBlock::Text(text) if text.text.is_empty());
    is_empty.then(|| Usage {
        input_tokens: number("inputTokens"),
        output_tokens: number("outputTokens"),
        cache_read_tokens: number("cachedReadTokens"),
        ..Usage::default()
    })
}

/// Returns the usage of a turn. The protocol leaves open whether cached tokens are part of the input: the total says it.
fn usage_of_turn(count: &v1::Usage) -> Usage {
    let thought = count.thought_tokens.unwrap_or_default();
    let cached =
        [count.cached_read_tokens, count.cached_write_tokens].into_iter().flatten().fold(0, u64::saturating_add);
    // Thinking is output too; an agent that counts it counts it separately.
    let output = count.output_tokens.saturating_add(thought);
    let usage = Usage {
        input_tokens: Some(count.input_tokens),
        output_tokens: Some(output),
        cache_read_tokens: count.cached_read_tokens,
        cache_write_tokens: count.cached_write_tokens,
        ..Usage::default()
    };
    let is_beside =
        cached > 0 && count.total_tokens >= count.input_tokens.saturating_add(output).saturating_add(cached);
    if is_beside { usage.with_cache_in_input() } else { usage }
}

/// Parses the answer to a prompt: stop reason and usage.
pub(super) fn complete(result: &str) -> Result<(StopReason, Option<Usage>), v1::Error> {
    let response = match serde_json::from_str::<PromptResponse>(result) {
        Ok(response) => response,
        Err(error) => {
            let value: Value = serde_json::from_str(result).unwrap_or_default();
            let reason = value.get("stopReason").and_then(Value::as_str).ok_or(error)?;
            return Ok((StopReason::Other(reason.chars().take(200).collect()), None));
        }
    };
    let reason = match response.stop_reason {
        v1::StopReason::EndTurn => StopReason::EndTurn,
        v1::StopReason::Cancelled => StopReason::Cancelled,
        v1::StopReason::Refusal => StopReason::Refusal,
        v1::StopReason::MaxTokens => StopReason::MaxTokens,
        v1::StopReason::MaxTurnRequests => StopReason::MaxRequests,
        other => StopReason::Other(format!("{other:?}")),
    };
    let usage = match (response.usage, response.meta) {
        (Some(usage), _) => Some(usage_of_turn(&usage)),
        // Gemini's own field; cached tokens are part of its input.
        (None, Some(meta)) => meta.get("quota").and_then(|quota| quota.get("token_count")).map(|count| Usage {
            input_tokens: count.get("input_tokens").and_then(Value::as_u64),
            output_tokens: count.get("output_tokens").and_then(Value::as_u64),
            ..Usage::default()
        }),
        (None, None) => None,
    };
    Ok((reason, usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_costs_what_was_added_in_it() {
        let update = |amount: f64| -> UsageUpdate {
            let update = serde_json::json!({"used": 1, "size": 2, "cost": {"amount": amount, "currency": "USD"}});
            serde_json::from_value(update).expect("an update")
        };
        let mut cost = ConversationCost::of(true);
        cost.begin_turn();
        assert!(cost.record(&update(0.5)) && cost.record(&update(1.5)));
        assert_eq!(cost.of_turn(), Some(1.5));
        cost.begin_turn();
        assert_eq!(cost.of_turn(), None, "nothing was said");
        assert!(cost.record(&update(2.0)));
        assert_eq!(cost.of_turn(), Some(0.5));
        let mut cost = ConversationCost::of(false);
        cost.begin_turn();
        assert!(!cost.record(&update(7.0)));
        assert_eq!(cost.of_turn(), None, "what earlier turns have cost is not known");
        cost.begin_turn();
        assert!(cost.record(&update(7.25)));
        assert_eq!(cost.of_turn(), Some(0.25));
    }
}
