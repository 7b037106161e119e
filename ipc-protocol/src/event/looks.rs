//! Payloads for people who look at a session: diffs, slash commands, usage.

use serde::{Deserialize, Serialize};

/// Kind of a file's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum FileChange {
    Created,
    Modified,
    Deleted,
    Moved,
}

/// Replaced part of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DiffHunk {
    /// Text before the change; `null` where there was none, or the agent does not tell it.
    pub old_text: Option<String>,
    /// Text after the change; `null` where there is none.
    pub new_text: Option<String>,
    /// Line of the file before the change in which `oldText` begins; the first is 1. `null` where it is not known.
    pub old_line: Option<u64>,
    /// Line of the file after the change in which `newText` begins. `null` where it is not known.
    pub new_line: Option<u64>,
}

/// Change of a file by a tool call: proposed while the call waits for permission, made once it has completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileDiff {
    /// Tool call that changes the file.
    pub tool_call_id: String,
    /// Path in the agent's form.
    pub path: String,
    /// Kind of the change; `null` where it is not known, or not yet.
    pub change: Option<FileChange>,
    /// New path of a file that was moved.
    pub moved_to: Option<String>,
    /// Replaced parts, in the order of the file.
    pub hunks: Vec<DiffHunk>,
    /// Bytes of the texts that are left out, at the end of each text that was too long; 0 if the hunks are complete.
    pub omitted_bytes: u64,
    /// Tool call of the sub-agent, if it is a sub-agent's change.
    pub parent: Option<String>,
}

impl FileDiff {
    /// Estimates the memory in bytes.
    pub(super) fn weight(&self) -> usize {
        let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let hunks = self.hunks.iter().map(|hunk| len(&hunk.old_text) + len(&hunk.new_text) + 80).sum::<usize>();
        self.tool_call_id.len() + self.path.len() + len(&self.moved_to) + len(&self.parent) + hunks + 160
    }
}

/// Picture of the agent's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ImageOutput {
    /// Type: `image/png`, …
    pub mime_type: String,
    /// Picture in base64; `null` if it is too large for an event.
    pub data: Option<String>,
    /// Size in bytes, without the base64.
    pub bytes: u64,
    /// Tool call whose output it is; `null` in an answer.
    pub tool_call_id: Option<String>,
    /// Tool call of the sub-agent, if it is a sub-agent's.
    pub parent: Option<String>,
}

/// Command that the agent offers in its prompt: `/name input`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SlashCommand {
    /// Name, without the slash.
    pub name: String,
    /// Description for people; `null` where the agent gives none.
    pub description: Option<String>,
    /// Hint at its argument; `null` where the agent gives none.
    pub argument_hint: Option<String>,
}

impl SlashCommand {
    /// Estimates the memory in bytes.
    pub(super) fn weight(&self) -> usize {
        let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.name.len() + len(&self.description) + len(&self.argument_hint) + 72
    }
}

/// Source of a title, a model, a mode or a thinking level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SettingSource {
    /// A caller: the session's configuration, an operation, a rename.
    Caller,
    /// The agent itself.
    Agent,
    /// Somebody at the agent's own screen, as far as that can be told.
    Terminal,
}

/// Source of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum CostSource {
    /// The agent reported it.
    Agent,
    /// It was computed, at least in part, with the user's prices.
    Prices,
}

/// Tokens (and cost) of a turn. `null` for what the agent does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(from = "UsageFields", into = "UsageFields")]
pub struct Usage {
    /// Tokens read: all of them, with those from a cache and those put into one.
    pub input_tokens: Option<u64>,
    /// Tokens written, with those of the thinking.
    pub output_tokens: Option<u64>,
    /// Part of the input that came from a cache. In JSON it is `cachedInputTokens`, and `cacheReadTokens` as before.
    pub cache_read_tokens: Option<u64>,
    /// Part of the input that was put into a cache.
    pub cache_write_tokens: Option<u64>,
    /// Cost in US dollars.
    pub cost_usd: Option<f64>,
    /// Source of the cost; `null` without one.
    pub cost_source: Option<CostSource>,
}

/// Tokens (and cost) of a turn. `null` for what the agent does not report.
#[derive(Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename = "Usage", rename_all = "camelCase", default)]
struct UsageFields {
    /// Tokens read: all of them, with those from a cache and those put into one.
    input_tokens: Option<u64>,
    /// Tokens written, with those of the thinking.
    output_tokens: Option<u64>,
    /// Part of the input that came from a cache.
    cached_input_tokens: Option<u64>,
    /// The same number, by its name in earlier releases.
    cache_read_tokens: Option<u64>,
    /// Part of the input that was put into a cache.
    cache_write_tokens: Option<u64>,
    /// Cost in US dollars: the agent's own, else by the user's prices; `null` if neither is known.
    cost_usd: Option<f64>,
    /// Source of the cost; `null` without one.
    cost_source: Option<CostSource>,
}

impl From<UsageFields> for Usage {
    fn from(fields: UsageFields) -> Self {
        let UsageFields { input_tokens, output_tokens, cache_write_tokens, cost_usd, .. } = fields;
        Self {
            input_tokens,
            output_tokens,
            cache_read_tokens: fields.cached_input_tokens.or(fields.cache_read_tokens),
            cache_write_tokens,
            cost_usd,
            // Earlier releases knew costs from agents alone.
            cost_source: fields.cost_source.or(cost_usd.map(|_| CostSource::Agent)),
        }
    }
}

impl From<Usage> for UsageFields {
    fn from(usage: Usage) -> Self {
        let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd, cost_source } = usage;
        Self {
            input_tokens,
            output_tokens,
            cached_input_tokens: cache_read_tokens,
            cache_read_tokens,
            cache_write_tokens,
            cost_usd,
            cost_source: cost_source.filter(|_| cost_usd.is_some()).or(cost_usd.map(|_| CostSource::Agent)),
        }
    }
}

impl Usage {
    /// Makes the usage of an agent that counts cached tokens beside its input, and not as part of it.
    #[must_use]
    pub fn with_cache_in_input(self) -> Self {
        let cached =
            [self.cache_read_tokens, self.cache_write_tokens].into_iter().flatten().fold(0, u64::saturating_add);
        Self { input_tokens: self.input_tokens.map(|input| input.saturating_add(cached)), ..self }
    }
}
