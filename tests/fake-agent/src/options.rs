//! The command line: how the handshake goes.

/// What the arguments say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Never answer `initialize`.
    pub(crate) no_handshake: bool,
    /// Answer `initialize` with an error.
    pub(crate) bad_handshake: bool,
    /// Exit with this code before anything else.
    pub(crate) exit_at_start: Option<i32>,
    /// Answer `initialize` with this version in place of 1.
    pub(crate) protocol_version: Option<u16>,
    /// A line for standard output before anything else: no agent may, many do.
    pub(crate) banner: Option<String>,
    /// How the model can be set.
    pub(crate) models: Models,
    /// Where conversations are kept: then they can be loaded and listed, and each has an id of its own.
    pub(crate) store: Option<String>,
    /// Destroy a conversation that is to be loaded, and say that it cannot be.
    pub(crate) destructive_load: bool,
    /// Offer the modes `build` and `plan`, and levels of thinking.
    pub(crate) modes: bool,
}

/// How the model can be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Models {
    /// Through a configuration option of category `model`.
    #[default]
    ConfigOption,
    /// Through `session/set_model`.
    SetModel,
    /// Not at all.
    None,
}

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// A sentence about the first that is not known, or lacks its value.
    pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            let number = |text: String| text.parse::<i32>().map_err(|_| format!("{arg} needs a number, not {text:?}"));
            match arg.as_str() {
                "--no-handshake" => options.no_handshake = true,
                "--bad-handshake" => options.bad_handshake = true,
                "--exit-at-start" => options.exit_at_start = Some(number(value()?)?),
                "--protocol-version" => {
                    let version = number(value()?)?;
                    options.protocol_version = Some(u16::try_from(version).map_err(|_| "no such version".to_owned())?);
                }
                "--banner" => options.banner = Some(value()?),
                "--set-model" => options.models = Models::SetModel,
                "--no-model" => options.models = Models::None,
                "--store" => options.store = Some(value()?),
                "--destructive-load" => options.destructive_load = true,
                "--modes" => options.modes = true,
                _ => return Err(format!("unknown argument {arg:?}")),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn flags_are_read_and_unknown_ones_refused() {
        let options =
            parse("--no-handshake --exit-at-start 3 --protocol-version 2 --banner hi --set-model").expect("known");
        assert_eq!((options.no_handshake, options.exit_at_start, options.protocol_version), (true, Some(3), Some(2)));
        assert_eq!((options.banner.as_deref(), options.models), (Some("hi"), Models::SetModel));
        let options = parse("--store chats --destructive-load --modes").expect("known");
        assert_eq!((options.store.as_deref(), options.destructive_load, options.modes), (Some("chats"), true, true));
        assert!(parse("--bogus").expect_err("unknown").contains("--bogus"));
        assert!(parse("--exit-at-start").expect_err("no value").contains("needs a value"));
        assert!(parse("--exit-at-start x").expect_err("no number").contains("number"));
    }
}
