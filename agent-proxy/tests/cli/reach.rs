//! What an agent of a daemon on the network can reach: nothing that would make it an operator.

use std::{fs, io::Read as _, os::unix::fs::PermissionsExt as _, path::Path, sync::mpsc, thread};

use ipc_protocol::Event;
use nix::{sys::stat::Mode, unistd::mkfifo};

use crate::harness::{DEADLINE, PROGRAM, Place, not_run};

/// Nobody.
const ORDINARY: u32 = 65534;

/// Prints every string that looks like a token in whatever this user can read: the daemon's directories by name and through every
/// process, and their environments, arguments, working directories and open files.
const SEARCH: &str = r#"
search() {
    pattern='agent_proxy_[A-Za-z0-9_-]{40,}'
    grep -rhoaE "$pattern" "$PLACE/config" "$PLACE/state" "$PLACE/run" "$HOME"
    for process in /proc/[0-9]*; do
        grep -rhoaE "$pattern" "$process/environ" "$process/cmdline" "$process/root$PLACE/config" "$process/root$PLACE/state"
    done
    find -L /proc/[0-9]*/fd /proc/[0-9]*/cwd -maxdepth 1 -type f -size -1000k -exec grep -hoaE "$pattern" {} +
    cat "$PLACE/state/log.sqlite" | head -c 15 | grep -a SQLite
}
"#;

/// Reads all that it can, and answers its own permission request with every token that it found and by the local socket.
const THIEF: &str = r#"
exec 2>/dev/null
read -r request port < "$PLACE/work/go"
search | sort -u > "$PLACE/work/found"
answer='{"answer":{"option":"allow-once"}}'
for token in none $(cat "$PLACE/work/found"); do
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf 'POST /v1/sessions/s/permissions/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' \
        "$request" "$token" "${#answer}" "$answer" >&3
    head -n 1 <&3 >> "$PLACE/work/tried"
    exec 3>&-
done
"$PROGRAM" --socket "$PLACE/run/daemon.sock" permit s "$request" allow-once
echo "local $?" >> "$PLACE/work/tried"
echo done > "$PLACE/work/done"
"#;

#[test]
fn an_agent_that_reads_all_it_can_does_not_answer_its_own_request() {
    is_kept_out(Place::new(), &[]);
}

#[test]
fn nor_does_one_in_a_namespace_of_its_own() {
    match registry::strict_is_available() {
        Ok(()) => is_kept_out(Place::new(), &["--containment", "strict"]),
        Err(why) => not_run(why),
    }
}

#[test]
fn nor_does_one_of_an_ordinary_user() {
    match nix::unistd::geteuid().is_root() {
        true => is_kept_out(Place::of_user(ORDINARY), &[]),
        false => not_run("takes root to become another user; the test above runs as an ordinary one already"),
    }
}

/// Becomes an ordinary user in a user namespace in which nobody can make another one.
const ORDINARY_ALONE: [&str; 9] = [
    "/usr/bin/unshare",
    "--user",
    "--map-user=1000",
    "--map-group=1000",
    "--keep-caps",
    "/bin/sh",
    "-c",
    "echo 0 >/proc/sys/user/max_user_namespaces && exec /usr/bin/setpriv --inh-caps -all --ambient-caps -all \"$@\"",
    "sh",
];

#[test]
fn nor_does_one_where_there_are_no_namespaces() {
    let is_there = |argv: &[&str]| {
        let place = Place::new();
        argv.iter().filter(|word| word.starts_with('/')).all(|tool| tool.contains(' ') || Path::new(tool).exists())
            && place.run_as(&[argv, &["/bin/true"]].concat()).status.success()
    };
    if !Path::new("/usr/bin/unshare").exists() || !is_there(&ORDINARY_ALONE) {
        return not_run("reach: takes unshare, setpriv and user namespaces");
    }
    is_kept_out(Place::behind(&ORDINARY_ALONE), &[]);
}

#[test]
fn nor_does_one_of_a_root_without_namespaces() {
    let setpriv = "/usr/bin/setpriv";
    if !nix::unistd::geteuid().is_root() || !Path::new(setpriv).exists() {
        return not_run("reach: takes root, and setpriv");
    }
    is_kept_out(Place::behind(&[setpriv, "--bounding-set", "-all", "--inh-caps", "-all"]), &[]);
}

#[track_caller]
fn is_kept_out(place: Place, flags: &[&str]) {
    if !Path::new("/bin/bash").exists() {
        return not_run("reach: no /bin/bash");
    }
    let state = place.directory.join("state");
    let work = place.directory.join("work");
    let own = |path: &Path| {
        let owner =
            fs::metadata(&place.directory).map(|found| std::os::unix::fs::MetadataExt::uid(&found)).expect("there");
        std::os::unix::fs::chown(path, Some(owner), Some(owner)).expect("handed over");
    };
    fs::create_dir(&work).expect("made");
    own(&work);
    for fifo in ["go", "done"] {
        mkfifo(&work.join(fifo), Mode::from_bits_truncate(0o600)).expect("made");
        own(&work.join(fifo));
    }
    let thief = work.join("thief");
    let variables =
        format!("PLACE={}\nPROGRAM={PROGRAM}\nexport HOME=$PLACE/home\n", place.directory.to_str().expect("UTF-8"));
    fs::write(&thief, format!("#!/bin/bash\n{variables}{SEARCH}{THIEF}")).expect("written");
    fs::set_permissions(&thief, fs::Permissions::from_mode(0o755)).expect("set");
    own(&thief);

    let (daemon, address) = place.serve_network(&["--state-dir", state.to_str().expect("UTF-8")]);
    let start = ["start", "--id", "s", "--agent", "acp", "--cwd", work.to_str().expect("UTF-8")];
    daemon.run(&[&start, flags, &["--", PROGRAM, "fake-agent"]].concat()).exits(0);
    let mut events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    daemon.run(&["prompt", "s", "--no-wait", &format!("setsid {}\nask deploy", thief.display())]).exits(0);
    let request = events.until(|envelope| match &envelope.event {
        Event::PermissionRequested(request) => Some(request.id.clone()),
        _ => None,
    });
    let (sender, done) = mpsc::channel();
    let fifo = work.clone();
    thread::spawn(move || {
        fs::write(fifo.join("go"), format!("{request} {}\n", address.port())).expect("told");
        let mut text = String::new();
        fs::File::open(fifo.join("done")).and_then(|mut file| file.read_to_string(&mut text)).expect("read");
        sender.send(text)
    });
    done.recv_timeout(DEADLINE).expect("the thief is done");
    let read = |name: &str| fs::read_to_string(work.join(name)).expect("readable");
    assert_eq!(read("found"), "", "it has found this");
    let tried = read("tried");
    let lines: Vec<&str> = tried.lines().map(str::trim_end).collect();
    assert!(lines[0].starts_with("HTTP/1.1 403") && lines.len() == 2, "{lines:?}");
    assert!(lines[1].starts_with("local ") && lines[1] != "local 0", "{lines:?}");
    let open = daemon.run(&["permit", "s", "--json"]).exits(0).json();
    assert_eq!(open.as_array().expect("requests").len(), 1, "nobody has answered it: {open}");

    // The same search outside of a session finds the first token, and the log: what it did not find was hidden.
    let script = format!("{variables}{SEARCH}\nsearch 2>/dev/null | sort -u");
    let outside = place.run_as(&["/bin/bash", "-c", &script]).stdout;
    let token = fs::read_to_string(place.config().join("token")).expect("the first token");
    assert!(outside.contains(token.trim()) && outside.contains("SQLite format"), "{outside}");
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}
