//! Two hundred sessions at once, and nothing left of them. Alone in its file: it counts this process's descriptors.

use std::time::Instant;

use agent_proxy_tests::{
    sessions::{builder, shell, soon},
    system,
};
use proxy_manager::KillOptions;

const SESSIONS: usize = 200;

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("readable").count()
}

fn children() -> Vec<u32> {
    registry::own_children().expect("readable")
}

/// Files in the places where one of ours could be: the working directory, and the temporary one, where other tests have
/// theirs too: they have another process's number in their names.
fn our_files() -> Vec<std::path::PathBuf> {
    let own = std::process::id().to_string();
    let named_like_ours = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains("agent-proxy") && name.split(|c: char| !c.is_ascii_digit()).any(|number| number == own)
    };
    let in_temp = std::fs::read_dir(std::env::temp_dir()).expect("readable").flatten().map(|entry| entry.path());
    let here = std::fs::read_dir(".").expect("readable").flatten().map(|entry| entry.path());
    let mut files: Vec<_> = in_temp.filter(named_like_ours).chain(here).collect();
    files.sort();
    files
}

#[tokio::test]
async fn two_hundred_sessions_at_once() {
    // The runtime's own descriptors exist from here on, and the registry's view of /proc.
    let children_before = children();
    let before = (open_fds(), children_before);
    let files_before = our_files();

    let manager =
        builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")).build().await.expect("built");
    let seconds = system::unique_seconds();
    let began = Instant::now();
    let starts: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let manager = manager.clone();
            let config = shell(&format!("setsid sleep {seconds} & echo up; exec cat"));
            tokio::spawn(async move { manager.start_session(config).await })
        })
        .collect();
    let mut sessions = Vec::new();
    for start in starts {
        sessions.push(soon("a start", start).await.expect("no panic").expect("started"));
    }
    println!("{SESSIONS} sessions started in {:?}", began.elapsed());
    assert_eq!(manager.list_sessions().len(), SESSIONS);
    system::until("all of them sleep", || (system::sleeping(&seconds).len() == SESSIONS).then_some(()));

    let began = Instant::now();
    let kills: Vec<_> = sessions
        .iter()
        .cloned()
        .map(|session| tokio::spawn(async move { session.kill(KillOptions::default()).await }))
        .collect();
    for kill in kills {
        let receipt = soon("a kill", kill).await.expect("no panic").expect("killed");
        assert!(receipt.is_empty(), "{receipt:?}");
        let sleeps = format!("sleep {seconds}");
        assert!(receipt.processes.iter().any(|e| e.command.as_deref() == Some(&sleeps)), "{receipt:?}");
    }
    println!("{SESSIONS} sessions killed in {:?}", began.elapsed());
    assert!(system::sleeping(&seconds).is_empty());
    for session in &sessions {
        assert!(session.processes().await.expect("a list").is_empty());
    }

    assert!(manager.shutdown().await.is_empty(), "none was left to shut down");
    drop((sessions, manager));
    soon("the last descriptors are closed", async {
        while open_fds() > before.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(children(), before.1, "processes left behind");
    assert_eq!(our_files(), files_before, "files left behind");
}
