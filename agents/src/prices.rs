//! Prices of models, as a user states them: what a turn has cost where its agent does not tell. There are none built in.
//!
//! ```toml
//! currency = "USD"             # the only one
//!
//! [models."claude-opus-4-5"]   # US dollars for a million tokens
//! input = 5
//! cached_input = 0.5           # as `input` where it is left out, and so is the next
//! cache_write = 6.25
//! output = 25
//! ```

use std::{collections::BTreeMap, fmt};

use ipc_protocol::Usage;
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

/// Tokens that a price is for.
const PER: f64 = 1e6;
/// Parts of a dollar that a cost is rounded to.
const PARTS: f64 = 1e9;

/// Price of a million tokens in US dollars: finite, and 0 or more.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TokenPrice(f64);

struct TokenPriceVisitor;

impl Visitor<'_> for TokenPriceVisitor {
    type Value = TokenPrice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a price: US dollars for a million tokens, 0 or more")
    }

    fn visit_f64<E: de::Error>(self, price: f64) -> Result<TokenPrice, E> {
        if price.is_finite() && price >= 0.0 {
            return Ok(TokenPrice(price));
        }
        Err(E::invalid_value(de::Unexpected::Float(price), &self))
    }

    #[expect(clippy::cast_precision_loss, reason = "no price has that many digits")]
    fn visit_i64<E: de::Error>(self, price: i64) -> Result<TokenPrice, E> {
        self.visit_f64(price as f64)
    }
}

impl<'de> Deserialize<'de> for TokenPrice {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(TokenPriceVisitor)
    }
}

/// Prices of a model, for a million tokens each, in US dollars.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    input: TokenPrice,
    /// Input that came from a cache.
    cached_input: Option<TokenPrice>,
    /// Input that was put into a cache.
    cache_write: Option<TokenPrice>,
    output: TokenPrice,
}

impl ModelPrice {
    /// Returns the cost of `usage` in US dollars; `None` if input or output is not known.
    #[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^52")]
    pub fn cost(&self, usage: &Usage) -> Option<f64> {
        let (input, output) = (usage.input_tokens?, usage.output_tokens?);
        // The parts are counted in the input.
        let cached = usage.cache_read_tokens.unwrap_or_default().min(input);
        let written = usage.cache_write_tokens.unwrap_or_default().min(input - cached);
        let parts = [
            (input - cached - written, self.input),
            (cached, self.cached_input.unwrap_or(self.input)),
            (written, self.cache_write.unwrap_or(self.input)),
            (output, self.output),
        ];
        let cost: f64 = parts.iter().map(|(tokens, price)| *tokens as f64 * price.0 / PER).sum();
        // Sums of binary fractions are a little off.
        Some((cost * PARTS).round() / PARTS)
    }
}

/// Error in a file of prices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, {key}: {reason}")]
pub struct PriceError {
    /// Line of the file; the first is 1.
    pub line: usize,
    /// Key, as in `models.NAME.input`.
    pub key: String,
    /// What is wrong.
    pub reason: String,
}

/// Currency of all prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum PriceCurrency {
    #[default]
    #[serde(rename = "USD")]
    UsDollar,
}

/// Prices by model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PriceTable {
    #[serde(rename = "currency")]
    _currency: PriceCurrency,
    models: BTreeMap<String, ModelPrice>,
}

impl PriceTable {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// Line and key of what is wrong.
    pub fn parse(text: &str) -> Result<Self, PriceError> {
        let wrong = |key: String, error: &toml::de::Error| {
            let before = error.span().and_then(|place| text.get(..place.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            PriceError { line, key, reason: error.message().to_owned() }
        };
        let parsed = toml::de::Deserializer::parse(text).map_err(|error| wrong("(syntax)".to_owned(), &error))?;
        serde_path_to_error::deserialize(parsed).map_err(|error: serde_path_to_error::Error<toml::de::Error>| {
            let key = error.path().to_string();
            let key = if key == "." { "(file)".to_owned() } else { key };
            wrong(key, error.inner())
        })
    }

    /// Returns whether there is no price at all.
    pub fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// Returns the price of `model`: by its whole name, else by the part behind its provider's, as in `openai/gpt-5`.
    pub fn price(&self, model: &str) -> Option<&ModelPrice> {
        let bare = || self.models.get(model.rsplit_once('/')?.1);
        self.models.get(model).or_else(bare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "currency = \"USD\"\n\n[models.\"opus\"]\ninput = 5\ncached_input = 0.5\ncache_write = 6.25\noutput = 25.0\n\n[models.plain]\ninput = 1\noutput = 2\n";

    fn parse(text: &str) -> Result<PriceTable, String> {
        PriceTable::parse(text).map_err(|error| error.to_string())
    }

    fn usage(input: u64, cached: u64, written: u64, output: u64) -> Usage {
        Usage {
            input_tokens: Some(input),
            output_tokens: Some(output),
            cache_read_tokens: Some(cached),
            cache_write_tokens: Some(written),
            ..Usage::default()
        }
    }

    #[test]
    fn a_cost_has_each_part_at_its_price() {
        let table = parse(TABLE).expect("prices");
        let opus = table.price("opus").expect("a price");
        // 100,000 at 5, 800,000 at 0.5, 100,000 at 6.25, 10,000 at 25.
        assert_eq!(opus.cost(&usage(1_000_000, 800_000, 100_000, 10_000)), Some(0.5 + 0.4 + 0.625 + 0.25));
        let plain = table.price("plain").expect("a price");
        assert_eq!(plain.cost(&usage(1_000_000, 800_000, 100_000, 1_000_000)), Some(3.0), "one price for all input");
        assert_eq!(plain.cost(&usage(10, 800, 100, 0)), Some(0.000_01), "no part is more than the whole");
        assert_eq!(plain.cost(&Usage { output_tokens: None, ..usage(1, 0, 0, 1) }), None);
        assert_eq!(plain.cost(&Usage { input_tokens: None, ..usage(1, 0, 0, 1) }), None);
    }

    #[test]
    fn a_model_is_found_with_its_provider_and_without() {
        let table =
            parse("[models.m]\ninput = 1\noutput = 1\n[models.\"p/m\"]\ninput = 2\noutput = 2\n").expect("prices");
        let input = |model: &str| table.price(model).map(|price| price.input.0);
        assert_eq!(
            (input("m"), input("p/m"), input("q/m"), input("a/b/m")),
            (Some(1.0), Some(2.0), Some(1.0), Some(1.0))
        );
        assert_eq!((input("p/n"), input("mm"), input("")), (None, None, None));
        assert!(parse("").expect("nothing").is_empty() && !table.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_key() {
        let price = "a price: US dollars for a million tokens, 0 or more";
        for (text, at, reason) in [
            ("[models.m]\ninput = -1\noutput = 2\n", "line 2, models.m.input: ", price),
            ("[models.m]\ninput = 1\noutput = nan\n", "line 3, models.m.output: ", price),
            ("[models.m]\ninput = 1\noutput = \"2\"\n", "line 3, models.m.output: ", price),
            ("[models.m]\ninput = 1\noutput = 2\nouptut = 2\n", "line 4, models.m.ouptut: ", "unknown field `ouptut`"),
            ("[models.m]\ninput = 1\n", "line 1, models.m: ", "missing field `output`"),
            ("currency = \"EUR\"\n", "line 1, currency: ", "unknown variant `EUR`, expected `USD`"),
            ("\n[model.m]\ninput = 1\n", "line 2, model: ", "unknown field `model`"),
            ("models = 7\n", "line 1, models: ", "invalid type"),
            ("[models.m]\ninput = \n", "line 2, (syntax): ", ""),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(at) && error.contains(reason), "{text:?}: {error}");
        }
    }
}
