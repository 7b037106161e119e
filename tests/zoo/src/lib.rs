//! Programs that try to get away from whoever started them: one C program, [`PROGRAM`], with many members.
//!
//! `PROGRAM MEMBER DIR stay|exit` is an agent that says `settled` once all of the member's processes are there, and then
//! stays or exits. `DIR` holds `zoo`, a copy of the program that nothing else runs, and `mark`, a file of at least a page
//! that each process maps. Where the machine does not offer what a member needs, it says `unavailable: ` and why. It is
//! bounded by itself: at most 200 processes, storms of 15 s and 5000 processes, and no process lives longer than a minute.
//!
//! `PROGRAM :without WHAT OTHER ARGUMENTS…` becomes the program OTHER, where the kernel lacks something for it and all that it
//! starts: `clone3-unknown`, `clone3-refused` (with EPERM), `landlock`, or `connector`, which then says nothing.

/// The program's path.
pub const PROGRAM: &str = env!("ZOO");

/// Path of the program whose members try to get out of a sandbox; see `c/escapes.c`.
pub const ESCAPES: &str = env!("ESCAPES");

/// Names of the members of [`ESCAPES`].
pub fn escapes() -> Vec<String> {
    let source = include_str!("../c/escapes.c");
    let table = source.split_once("members[] = {").map_or("", |(_, table)| table);
    let table = table.split_once("};").map_or("", |(table, _)| table);
    table.split("{\"").skip(1).filter_map(|entry| Some(entry.split_once('"')?.0.to_owned())).collect()
}

/// What a member does to its proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Nothing.
    None,
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Stop,
}

/// Whom a machine may refuse what a member needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody: every machine has it.
    Never,
    /// Everybody but root, and a root who may not make groups or become others: that of many containers.
    Users,
    /// Root too: not every kernel has it.
    Anybody,
}

/// One member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: &'static str,
    /// Processes besides the agent, at least, once it has settled.
    pub least: usize,
    /// Whether its processes are the same from when it has settled until they are killed.
    pub is_still: bool,
    /// What it does to its proxy.
    pub attack: Attack,
    /// Whom the machine may refuse it.
    pub refusal: Refusal,
}

const fn still(name: &'static str, least: usize) -> Member {
    Member { name, least, is_still: true, attack: Attack::None, refusal: Refusal::Never }
}

const fn moving(name: &'static str, least: usize) -> Member {
    Member { is_still: false, ..still(name, least) }
}

const fn attacking(name: &'static str, least: usize, attack: Attack) -> Member {
    Member { attack, ..still(name, least) }
}

const fn rooted(name: &'static str, least: usize) -> Member {
    Member { refusal: Refusal::Users, ..still(name, least) }
}

const fn optional(name: &'static str, least: usize) -> Member {
    Member { refusal: Refusal::Anybody, ..still(name, least) }
}

impl Member {
    /// Whether SIGKILL waits for a thaw, so that even the kernel ends it only with somebody's help.
    pub fn needs_a_thaw(&self) -> bool {
        self.name == "frozen-group-v1"
    }
}

/// All members, in the program's order.
pub const MEMBERS: &[Member] = &[
    still("plain", 2),
    still("shell-job", 2),
    still("shell-monitor", 2),
    still("shell-orphan", 2),
    still("nohup", 1),
    still("setsid", 2),
    still("daemon", 2),
    still("many-daemons", 100),
    still("deep", 100),
    still("subreaper", 6),
    still("clone-parent", 3),
    still("vfork", 2),
    still("no-exit-signal", 2),
    still("shared-memory", 4),
    still("dead-leader", 1),
    still("dead-leader-children", 2),
    still("threads-children", 5),
    still("many-threads", 1),
    still("exec-by-thread", 1),
    still("never-reaps", 2),
    still("short-lived", 1),
    still("trace-stopped", 2),
    still("trace-exit", 2),
    moving("storm", 1),
    moving("storms-16", 1),
    moving("fork-storm", 1),
    moving("fork-storms-8", 1),
    moving("leaving-storm", 1),
    still("fork-bomb", 64),
    still("exec-loop", 4),
    still("pair", 2),
    moving("late-forker", 1),
    still("forks-on-term", 1),
    still("forks-on-child", 4),
    still("parent-death-signal", 6),
    still("flood", 2),
    still("ignores-all", 1),
    still("stopped", 2),
    still("wakes-the-other", 2),
    attacking("kills-its-proxy", 2, Attack::Kill),
    attacking("stops-its-proxy", 2, Attack::Stop),
    rooted("terminal", 3),
    still("holds-the-streams", 1),
    still("disguised", 1),
    still("mimic", 1),
    still("lying-name", 2),
    optional("memory-file", 1),
    still("deleted-file", 1),
    still("undumpable", 1),
    rooted("another-user", 2),
    rooted("another-root", 2),
    optional("pid-namespace", 3),
    optional("user-pid-namespace", 3),
    optional("nested-pid-namespaces", 5),
    optional("enters-a-namespace", 3),
    optional("hidden-proc", 2),
    optional("every-namespace", 4),
    rooted("leaves-its-group", 2),
    optional("frozen-group", 2),
    optional("frozen-group-v1", 2),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a plain program that ends at once")]
    fn program_and_table_name_the_same_members() {
        let output = std::process::Command::new(PROGRAM).arg(":members").output().expect("started");
        let text = String::from_utf8(output.stdout).expect("text");
        let names: Vec<_> = MEMBERS.iter().map(|member| member.name).collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), names);
    }
}
