//! Models of the server.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, de::IgnoredAny};

use super::wire::or_default;

/// Most models that are remembered.
const MAX_MODELS: usize = 4096;

/// Answer to `GET /config/providers`.
#[derive(Debug, Deserialize)]
struct ProviderListing {
    providers: Vec<ModelProvider>,
}

#[derive(Debug, Deserialize)]
struct ModelProvider {
    id: String,
    #[serde(default, deserialize_with = "or_default")]
    models: HashMap<String, ModelInfo>,
}

#[derive(Debug, Deserialize)]
struct ModelInfo {
    #[serde(default, deserialize_with = "or_default")]
    limit: ModelLimit,
    #[serde(default, deserialize_with = "or_default")]
    variants: BTreeMap<String, IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ModelLimit {
    #[serde(deserialize_with = "or_default")]
    context: f64,
}

#[derive(Debug)]
struct ProviderModel {
    context: f64,
    variants: Vec<String>,
}

/// Models by provider and name.
#[derive(Debug, Default)]
pub(super) struct ProviderModels(HashMap<(String, String), ProviderModel>);

impl ProviderModels {
    /// Parses the list of models.
    ///
    /// # Errors
    /// `body` is no list of models.
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        let listing: ProviderListing =
            serde_json::from_slice(body).map_err(|error| format!("no list of models: {error}"))?;
        let all = listing.providers.into_iter().flat_map(|provider| {
            provider.models.into_iter().map(move |(name, info)| {
                let variants = info.variants.into_keys().collect();
                ((provider.id.clone(), name), ProviderModel { context: info.limit.context, variants })
            })
        });
        Ok(Self(all.take(MAX_MODELS).collect()))
    }

    /// Returns the size of the model's context window in tokens, if the server knows it.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded just before")]
    pub(super) fn context(&self, model: &(String, String)) -> Option<u64> {
        let context = self.0.get(model)?.context.clamp(0.0, 1e15) as u64;
        (context > 0).then_some(context)
    }

    /// Checks that the server has the model.
    ///
    /// # Errors
    /// There is no such model; the text lists the models.
    pub(super) fn check(&self, model: &(String, String)) -> Result<(), String> {
        if self.0.contains_key(model) {
            return Ok(());
        }
        let mut known = self.names();
        known.truncate(20);
        Err(format!("there is no model {}/{}: there are {}", model.0, model.1, known.join(", ")))
    }

    /// Returns the names of all models, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.keys().map(|(provider, name)| format!("{provider}/{name}")).collect();
        names.sort();
        names
    }

    /// Returns the thinking levels of a model, as [`ProviderModels::thinking`] takes them.
    pub(super) fn levels(&self, model: &(String, String)) -> impl Iterator<Item = &str> {
        let variants = self.0.get(model).into_iter().flat_map(|model| &model.variants);
        variants.map(|variant| if variant == "none" { "off" } else { variant })
    }

    /// Returns the server's word for a thinking level, or `None` if the level needs none.
    ///
    /// # Errors
    /// The model does not have the level; the text lists its levels.
    pub(super) fn thinking(&self, model: &(String, String), level: &str) -> Result<Option<String>, String> {
        self.check(model)?;
        let variants = self.0.get(model).map_or(&[][..], |model| &model.variants);
        let has = |name: &str| variants.iter().any(|variant| variant == name);
        match level {
            "off" => Ok(Some("none".to_owned()).filter(|none| has(none))),
            level if has(level) => Ok(Some(level.to_owned())),
            level => {
                let known = if variants.is_empty() { "no levels".to_owned() } else { variants.join(", ") };
                Err(format!("model {}/{} cannot think {level:?}: it has {known}", model.0, model.1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_lists_is_known() {
        let body = br#"{"providers":[{"id":"p","models":{
            "m":{"limit":{"context":128000,"output":1},"variants":{"low":{},"high":{"x":[1]}}},"n":{}}}],"default":{"p":"m"}}"#;
        let models = ProviderModels::parse(body).expect("a listing");
        let m = ("p".to_owned(), "m".to_owned());
        let n = ("p".to_owned(), "n".to_owned());
        assert_eq!((models.context(&m), models.context(&n)), (Some(128_000), None));
        assert_eq!(models.thinking(&m, "high"), Ok(Some("high".into())));
        assert_eq!(models.thinking(&m, "off"), Ok(None));
        assert_eq!(models.thinking(&m, "max"), Err("model p/m cannot think \"max\": it has high, low".into()));
        assert_eq!(models.check(&("p".into(), "x".into())), Err("there is no model p/x: there are p/m, p/n".into()));
        assert!(ProviderModels::parse(b"{}").is_err());
    }
}
