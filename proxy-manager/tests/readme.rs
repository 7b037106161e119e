//! The README shows the example that is compiled and run.

#[test]
fn the_readme_shows_the_example() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let readme = std::fs::read_to_string(format!("{root}/README.md")).expect("the README");
    let example = include_str!("../examples/embed.rs");
    assert!(readme.contains(&format!("```rust\n{example}```\n")), "copy examples/embed.rs into the README");
}
