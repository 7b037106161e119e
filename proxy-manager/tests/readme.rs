//! The README and the book show the examples that are compiled and run.

#[track_caller]
fn shows(page: &str, example: &str, name: &str) {
    let path = format!("{}/../{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the page");
    let lines: Vec<&str> = example.lines().skip_while(|line| !line.starts_with("use ")).collect();
    let body = lines.join("\n");
    let body = if name == "hello" { &body } else { example.trim_end() };
    assert!(text.contains(body), "copy the example {name} into {page}");
}

#[test]
fn the_readme_shows_the_smallest_example() {
    shows("README.md", include_str!("../../sdk/examples/hello.rs"), "hello");
}

#[test]
fn the_book_shows_the_example() {
    shows("docs/embedding.md", include_str!("../../sdk/examples/embed.rs"), "embed");
}
