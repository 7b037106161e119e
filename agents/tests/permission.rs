//! What a session's rules and mode say to permission requests.

use agents::permission::{CompiledPolicy, PolicyError, PolicyVerdict, check};
use ipc_protocol::{
    Json, PermissionMode, PermissionPolicy, PermissionRequest, PermissionRule, ResolvedBy,
    RuleDecision::{self, Allow, Ask, Deny},
};
use proptest::{collection::vec, prelude::*};

const MODES: [PermissionMode; 4] =
    [PermissionMode::Ask, PermissionMode::Allow, PermissionMode::Deny, PermissionMode::ReadOnly];

fn request(tool: &str, kind: &str, command: Option<&str>, paths: &[&str]) -> PermissionRequest {
    PermissionRequest {
        id: "1".into(),
        tool_call_id: None,
        title: "may I?".into(),
        tool: tool.into(),
        kind: kind.into(),
        command: command.map(str::to_owned),
        paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        input: Json::null(),
        options: Vec::new(),
        parent: None,
    }
}

fn runs(command: &str) -> PermissionRequest {
    request("Bash", "execute", Some(command), &[])
}

fn edits(path: &str) -> PermissionRequest {
    request("Edit", "edit", None, &[path])
}

/// `tool`, `command` and `path` of a rule; empty for none.
fn rule(tool: &str, command: &str, path: &str, decision: RuleDecision) -> PermissionRule {
    let glob = |glob: &str| (!glob.is_empty()).then(|| glob.to_owned());
    PermissionRule { tool: glob(tool), command: glob(command), path: glob(path), decision }
}

fn policy(rules: &[PermissionRule], mode: PermissionMode) -> CompiledPolicy {
    let policy = PermissionPolicy { rules: rules.to_vec(), ..PermissionPolicy::default() };
    CompiledPolicy::new(&policy, mode, "/work").expect("a policy")
}

/// The decision alone.
fn decision(policy: &CompiledPolicy, request: &PermissionRequest) -> RuleDecision {
    match policy.decide(request) {
        PolicyVerdict::Ask => Ask,
        PolicyVerdict::Allow(_) => Allow,
        PolicyVerdict::Deny(_) => Deny,
    }
}

#[test]
fn the_mode_decides_where_no_rule_does() {
    let (read, edit, run) = (request("Read", "read", None, &["/a"]), edits("/a"), runs("ls"));
    let question = request("AskUserQuestion", "question", None, &[]);
    for (mode, decisions) in [
        (PermissionMode::Ask, [Ask, Ask, Ask, Ask]),
        (PermissionMode::Allow, [Allow, Allow, Allow, Ask]),
        (PermissionMode::Deny, [Deny, Deny, Deny, Deny]),
        (PermissionMode::ReadOnly, [Allow, Deny, Deny, Ask]),
    ] {
        let policy = policy(&[], mode);
        assert_eq!([&read, &edit, &run, &question].map(|request| decision(&policy, request)), decisions, "{mode:?}");
    }
    let by_mode = policy(&[], PermissionMode::Deny).decide(&read);
    assert_eq!(by_mode, PolicyVerdict::Deny(ResolvedBy::Mode(PermissionMode::Deny)));
}

/// Some agents say `read` of a shell command that looks as if it did.
#[test]
fn trap_a_command_that_calls_itself_reading_is_no_reading() {
    let cat = request("shell", "read", Some("cat a; rm b"), &["/work/a"]);
    assert_eq!(decision(&policy(&[], PermissionMode::ReadOnly), &cat), Deny);
    let rules = [rule("read", "", "", Allow)];
    assert_eq!(decision(&policy(&rules, PermissionMode::Deny), &cat), Deny);
    for kind in ["read", "execute"] {
        assert_eq!(decision(&policy(&[rule(kind, "", "", Deny)], PermissionMode::Allow), &cat), Deny, "{kind}");
    }
    assert_eq!(decision(&policy(&[rule("execute", "", "", Allow)], PermissionMode::Deny), &cat), Allow);
}

#[test]
fn the_first_rule_that_matches_decides_and_is_named() {
    let rules = [
        rule("Bash", "git push *", "", Ask),
        rule("Bash", "git *", "", Allow),
        rule("execute", "", "", Deny),
        rule("{Edit,Write}", "", "src/**", Allow),
        rule("mcp__*", "", "", Ask),
        rule("", "", "", Deny),
    ];
    for mode in MODES {
        let policy = policy(&rules, mode);
        assert_eq!(policy.decide(&runs("git push origin")), PolicyVerdict::Ask);
        assert_eq!(policy.decide(&runs("git log")), PolicyVerdict::Allow(ResolvedBy::Rule { index: 1 }));
        assert_eq!(policy.decide(&runs("make")), PolicyVerdict::Deny(ResolvedBy::Rule { index: 2 }));
        assert_eq!(policy.decide(&edits("/work/src/a.rs")), PolicyVerdict::Allow(ResolvedBy::Rule { index: 3 }));
        assert_eq!(policy.decide(&edits("/work/a.rs")), PolicyVerdict::Deny(ResolvedBy::Rule { index: 5 }));
        assert_eq!(policy.decide(&request("mcp__files__read", "other", None, &[])), PolicyVerdict::Ask);
    }
}

#[test]
fn a_rule_needs_what_it_speaks_of() {
    let rules = [rule("", "*", "", Allow), rule("", "", "/**", Allow)];
    let policy = policy(&rules, PermissionMode::Deny);
    assert_eq!(decision(&policy, &request("Fetch", "fetch", None, &[])), Deny);
    let both = request("Edit", "edit", None, &["/work/a", "~/b"]);
    assert_eq!(decision(&policy, &both), Deny, "not all of its paths are known");
    assert_eq!(decision(&policy, &request("Edit", "edit", None, &["/work/a", "b"])), Allow);
}

/// A path that is said beside a command is no word on what the command does.
#[test]
fn a_path_alone_allows_no_command() {
    let run = |kind: &str, command| request("bash", kind, command, &["/work/src/x"]);
    for tool in ["", "bash"] {
        let by_path = policy(&[rule(tool, "", "src/**", Allow)], PermissionMode::Deny);
        for request in [run("execute", Some("rm -rf ~")), run("read", Some("rm -rf ~")), run("execute", None)] {
            assert_eq!(decision(&by_path, &request), Deny, "{request:?}");
        }
        assert_eq!(decision(&by_path, &request("bash", "edit", None, &["src/x"])), Allow);
    }
    let both = policy(&[rule("", "ls *", "src/**", Allow)], PermissionMode::Deny);
    assert_eq!(decision(&both, &run("execute", Some("ls src/x"))), Allow);
    let deny = policy(&[rule("", "", "src/**", Deny)], PermissionMode::Allow);
    assert_eq!(decision(&deny, &run("execute", Some("ls"))), Deny, "a rule that denies is about all that is said");
}

/// One answer is for all of it.
#[test]
fn what_asks_for_several_things_is_allowed_where_each_is_and_denied_where_one_is() {
    let files = request("requestPermissions", "fetch+other", None, &["/etc", "unknown://network"]);
    let command = request("network", "fetch+execute", Some("curl a"), &[]);
    let allowed = |rules: &[PermissionRule], request| decision(&policy(rules, PermissionMode::Ask), request);
    for (request, rules, expected) in [
        (&files, vec![rule("fetch", "", "", Allow)], Ask),
        (&files, vec![rule("other", "", "", Allow)], Ask),
        (&files, vec![rule("fetch", "", "", Allow), rule("other", "", "/etc", Allow)], Ask),
        (&files, vec![rule("fetch", "", "", Allow), rule("other", "", "", Allow)], Allow),
        (&files, vec![rule("requestPermissions", "", "", Allow)], Allow),
        (&files, vec![rule("fetch", "", "", Allow), rule("other", "", "", Deny)], Deny),
        (&files, vec![rule("other", "", "", Allow), rule("fetch", "", "", Deny)], Deny),
        (&command, vec![rule("fetch", "", "", Allow)], Ask),
        (&command, vec![rule("execute", "", "", Allow)], Ask),
        (&command, vec![rule("", "curl *", "", Allow)], Ask),
        (&command, vec![rule("fetch", "", "", Allow), rule("", "curl *", "", Allow)], Allow),
        (&command, vec![rule("fetch", "", "", Allow), rule("", "curl *", "", Deny)], Deny),
        (&command, vec![rule("execute", "", "", Allow), rule("fetch", "", "", Deny)], Deny),
        (&command, vec![rule("fetch", "curl *", "", Deny), rule("*", "", "", Allow)], Deny),
        (&command, vec![rule("execute", "curl *", "", Deny), rule("*", "", "", Allow)], Deny),
        (&command, vec![rule("fetch", "curl *", "", Ask), rule("*", "", "", Allow)], Ask),
        (&command, vec![rule("fetch", "wget *", "", Deny), rule("network", "", "", Allow)], Allow),
    ] {
        assert_eq!(allowed(&rules, request), expected, "{rules:?}");
    }
    for mode in MODES {
        let policy = policy(&[rule("fetch", "", "", Allow)], mode);
        let expected = decision(&policy, &request("x", "execute", Some("curl a"), &[]));
        assert_eq!(decision(&policy, &command), expected, "{mode:?}");
    }
}

#[test]
fn a_question_is_never_allowed_unseen() {
    let question = request("AskUserQuestion", "question", None, &[]);
    assert_eq!(decision(&policy(&[rule("*", "", "", Allow)], PermissionMode::Deny), &question), Ask);
    assert_eq!(decision(&policy(&[rule("question", "", "", Deny)], PermissionMode::Allow), &question), Deny);
    let generous = PermissionPolicy { allow_at_deadline: true, ..PermissionPolicy::default() };
    assert_eq!(CompiledPolicy::at_deadline(&generous, &question), PolicyVerdict::Deny(ResolvedBy::Deadline));
    assert_eq!(CompiledPolicy::at_deadline(&generous, &runs("ls")), PolicyVerdict::Allow(ResolvedBy::Deadline));
    assert_eq!(
        CompiledPolicy::at_deadline(&PermissionPolicy::default(), &runs("ls")),
        PolicyVerdict::Deny(ResolvedBy::Deadline)
    );
}

#[test]
fn what_cannot_be_followed_is_refused_with_its_place() {
    let check = |rules: Vec<PermissionRule>| check(&PermissionPolicy { rules, ..PermissionPolicy::default() });
    assert_eq!(check(vec![rule("*", "git *", "/a/**", Allow)]), Ok(()));
    for (bad, field) in [
        (rule("[", "", "", Deny), "tool"),
        (rule("", " ", "", Deny), "command"),
        (rule("", "", "/a/{b", Deny), "path"),
        (rule("", "", "../a", Deny), "path"),
        (rule("", &"x".repeat(2000), "", Deny), "command"),
    ] {
        let error = check(vec![rule("", "", "", Ask), bad]).expect_err("refused");
        assert!(matches!(&error, PolicyError::Glob { rule: 1, field: of, .. } if *of == field), "{error}");
        assert!(error.to_string().contains("rule 1"), "{error}");
    }
    assert_eq!(check(vec![rule("", "", "", Ask); 257]), Err(PolicyError::Rules { rules: 257 }));
}

/// What a shell takes a line apart at.
const DIVIDERS: [&str; 12] = [";", "&", "&&", "|", "||", "\n", ">", "<", "$(", "`", "\r", "<("];

fn word() -> impl Strategy<Value = String> {
    "[a-z0-9./=-]{1,8}"
}

/// A plain command: words alone.
fn command() -> impl Strategy<Value = String> {
    vec(word(), 1..5).prop_map(|words| words.join(" "))
}

/// A glob that matches `command`: some of its words are stars.
fn glob_for(command: &str, stars: &[bool]) -> String {
    let words = command.split(' ').zip(stars.iter().chain(std::iter::repeat(&false)));
    words.map(|(word, star)| if *star { "*" } else { word }).collect::<Vec<_>>().join(" ")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anything_added_to_an_allowed_command_is_not_allowed(
        command in command(), stars in vec(any::<bool>(), 5), divider in prop::sample::select(DIVIDERS.to_vec()),
        more in "\\PC{0,6}[a-z]\\PC{0,6}", space in "[ \t]{0,2}", before in any::<bool>(),
    ) {
        let policy = policy(&[rule("", &glob_for(&command, &stars), "", Allow)], PermissionMode::Deny);
        prop_assert_eq!(decision(&policy, &runs(&command)), Allow);
        let longer = if before {
            format!("{more}{space}{divider}{space}{command}")
        } else {
            format!("{command}{space}{divider}{space}{more}")
        };
        prop_assert_eq!(decision(&policy, &runs(&longer)), Deny, "{}", longer);
    }

    #[test]
    fn a_denied_command_is_denied_in_any_company(
        command in command(), stars in vec(any::<bool>(), 5), before in command(), after in command(),
        divider in prop::sample::select(DIVIDERS.to_vec()), space in "[ \t]{0,3}", shape in 0..8,
    ) {
        let glob = glob_for(&command, &stars);
        let policy = policy(&[rule("", &glob, "", Deny)], PermissionMode::Allow);
        prop_assert_eq!(decision(&policy, &runs(&command)), Deny);
        let line = match shape {
            0 => format!("{before}{space}{divider}{space}{command}"),
            1 => format!("{command}{space}{divider}{space}{after}"),
            2 => format!("{before}{divider}{space}{command}{space}{divider}{after}"),
            3 => format!("{before} \"$({space}{command}{space})\""),
            4 => format!("({space}{command}{space})"),
            5 => format!("X='{after}' {command}"),
            6 => format!("{space}{}{space}", command.replace(' ', " \t ")),
            _ => command.split(' ').map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" "),
        };
        prop_assert_eq!(decision(&policy, &runs(&line)), Deny, "{} {}", glob, line);
    }

    #[test]
    fn no_spelling_of_a_path_gets_out_of_a_directory_or_around_a_rule(
        first in prop::sample::select(vec!["/work", ".", "..", "a", "secret"]),
        parts in vec(prop::sample::select(vec!["a", "b", ".", "..", "", "secret", "..."]), 0..10),
    ) {
        let path = format!("{first}/{}", parts.join("/"));
        // What the path is, by another way.
        let mut real = vec!["work"];
        for part in [&first].into_iter().chain(&parts).filter(|part| **part != "/work") {
            match *part {
                ".." => drop(real.pop()),
                "" | "." => {}
                part => real.push(part),
            }
        }
        let inside = real.len() > 1 && real[0] == "work";
        let allow = policy(&[rule("", "", "/work/**", Allow)], PermissionMode::Deny);
        prop_assert_eq!(decision(&allow, &edits(&path)) == Allow, inside, "{}", path);
        let hidden = real.len() > 1 && real[..2] == ["work", "secret"];
        let deny = policy(&[rule("", "", "secret/**", Deny)], PermissionMode::Allow);
        prop_assert_eq!(decision(&deny, &edits(&path)) == Deny, hidden, "{}", path);
    }

    #[test]
    fn any_policy_and_any_request_have_a_verdict(
        globs in vec(("\\PC{0,12}", "[a*?\\[{};|\"\\\\ ]{0,12}", "[a*?/.\\[{}]{0,12}"), 0..4), text in "\\PC{0,40}",
        command in prop::option::of("[a*;|&\"' \\\\\n$()]{0,40}"), paths in vec("[a/.~]{0,12}", 0..3), mode in 0..4_usize,
    ) {
        let rules = globs.iter().map(|(tool, command, path)| rule(tool, command, path, Allow)).collect();
        let rules = PermissionPolicy { rules, ..PermissionPolicy::default() };
        if let Ok(policy) = CompiledPolicy::new(&rules, MODES[mode], "/work") {
            let paths: Vec<_> = paths.iter().map(String::as_str).collect();
            policy.decide(&request(&text, &text, command.as_deref(), &paths));
        }
    }
}
