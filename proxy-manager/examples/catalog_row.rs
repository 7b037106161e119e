//! A new agent as data: a row of the catalog, from a file.
//!
//! `cargo run -p agent-proxy-manager --example catalog_row`

#![expect(clippy::print_stdout, reason = "an example talks")]

use agents::{FileFormat, PROTOCOLS};
use proxy_manager::{AgentSessionConfig, Catalog, ChildProgram, Event, KillOptions, PromptMode, ProxyManager};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let token = proxy_child::run_if_child();
    tokio::runtime::Runtime::new()?.block_on(talk(ChildProgram::Current(token)))
}

async fn talk(child: ChildProgram) -> Result<(), Box<dyn std::error::Error>> {
    // The built-in rows, and ours. What does not fit is an error that names file, row and field.
    let mut catalog = Catalog::default();
    catalog.load(include_str!("catalog_row.toml"), FileFormat::Toml, &PROTOCOLS, "catalog_row.toml")?;
    // The library reads no environment: rows get the variables that they name from here.
    catalog.inherit(|name| std::env::var(name).ok());

    let manager = ProxyManager::builder(child)
        .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect())
        .catalog(catalog)
        .build()
        .await?;
    let session = manager.start_session(AgentSessionConfig::new("parrot")).await?;
    let mut events = session.subscribe();
    session.prompt("pieces of eight", PromptMode::Refuse).await?;
    while let Some(envelope) = events.next().await {
        if let Event::Text { text } = &envelope.event {
            print!("{text}");
            break;
        }
    }
    let receipt = session.kill(KillOptions::default()).await?;
    println!("{receipt}");
    assert!(receipt.is_empty());
    manager.shutdown().await;
    Ok(())
}
