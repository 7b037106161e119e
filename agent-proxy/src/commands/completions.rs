//! Command `completions`.

use std::path::{Path, absolute};

use api_types::ProblemDetails;
use clap_complete::env::Shells;

use crate::{args::CompletionsArgs, command_failure::CommandFailure, completion::VARIABLE, term};

/// Name of the program that is completed.
const NAME: &str = "agent-proxy";

/// Addition for bash, which splits words at `=` and `:` although `--agent=pi` and `stream:text` are one value: they
/// are joined before the program is asked, and the part that bash does not replace is removed from the answers.
const BASH_WORDS: &str = r#"
_agent_proxy_words() {
    local rest=${COMP_LINE:0:COMP_POINT} words=() piece i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        piece=${COMP_WORDS[i]}
        if ((i == 0)) || [[ $rest == [[:blank:]]* ]]; then
            words+=("")
        fi
        rest=${rest#"${rest%%[![:blank:]]*}"}
        # The cursor may be within the last one.
        [[ $rest == "$piece"* ]] || piece=$rest
        words[${#words[@]} - 1]+=$piece
        rest=${rest#"$piece"}
    done
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
    local word=${COMP_WORDS[COMP_CWORD]}
    _clap_complete_agent_proxy "$1" "$word" "$3"
    COMPREPLY=("${COMPREPLY[@]#"${word%"$2"}"}")
}
complete -o nospace -o bashdefault -F _agent_proxy_words agent-proxy
if ((BASH_VERSINFO[0] > 4 || BASH_VERSINFO[0] == 4 && BASH_VERSINFO[1] >= 4)); then
    complete -o nospace -o bashdefault -o nosort -F _agent_proxy_words agent-proxy
fi
"#;

/// Addition for zsh, which runs the file once as the function itself where it finds it in `fpath`.
const ZSH_AUTOLOAD: &str = r#"
if [[ ${funcstack[1]} == _agent-proxy ]]; then
    _clap_dynamic_completer_agent_proxy "$@"
fi
"#;

/// Prints a script that has the shell ask this program for completions.
pub(super) fn run(args: &CompletionsArgs) -> Result<(), CommandFailure> {
    let failed = |error: &dyn std::fmt::Display| ProblemDetails::failed(format!("writing the script failed: {error}"));
    let (shell, shells) = (args.shell.to_string(), Shells::builtins());
    let shell = shells.completer(&shell).ok_or_else(|| failed(&format_args!("no script for {shell}")))?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, NAME, NAME, &program(), &mut script).map_err(|error| failed(&error))?;
    let addition = match shell.name() {
        "bash" => BASH_WORDS,
        "zsh" => ZSH_AUTOLOAD,
        _ => "",
    };
    term::out(format_args!("{}{addition}", String::from_utf8_lossy(&script)))
}

/// Returns this program as it was called: a name in `PATH` remains one, so that the script outlives an update.
fn program() -> String {
    let called = std::env::args().next().unwrap_or_else(|| NAME.to_owned());
    if !called.contains('/') {
        return called;
    }
    absolute(Path::new(&called)).map_or(called, |path| path.display().to_string())
}
