//! Puts the files of the page (`page/`) into the program: each as it is, and compressed.

use std::{
    collections::hash_map::DefaultHasher,
    env, fs,
    hash::{Hash, Hasher},
    io::{self, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};

/// Media types of the files, by the end of their names. Others are no files of the page.
const TYPES: [(&str, &str); 6] = [
    (".html", "text/html; charset=utf-8"),
    (".css", "text/css; charset=utf-8"),
    (".js", "text/javascript; charset=utf-8"),
    (".mjs", "text/javascript; charset=utf-8"),
    (".svg", "image/svg+xml"),
    (".txt", "text/plain; charset=utf-8"),
];

fn main() -> io::Result<()> {
    let folder =
        |name| env::var_os(name).map(PathBuf::from).ok_or_else(|| io::Error::other(format!("{name} is not set")));
    let (root, out) = (folder("CARGO_MANIFEST_DIR")?.join("page"), folder("OUT_DIR")?);
    println!("cargo::rerun-if-changed=page");
    println!("cargo::rerun-if-changed=build.rs");
    let mut paths = Vec::new();
    collect(&root, &mut paths)?;
    paths.sort();
    let (mut table, mut whole) = (String::from("&[\n"), DefaultHasher::new());
    for (number, path) in paths.iter().enumerate() {
        let name = path.strip_prefix(&root).map_err(io::Error::other)?.to_string_lossy().into_owned();
        let Some((_, media_type)) = TYPES.iter().find(|(end, _)| name.ends_with(end)) else { continue };
        let bytes = fs::read(path)?;
        (&name, &bytes).hash(&mut whole);
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let compressed = out.join(format!("page-{number}.gz"));
        let mut encoder = GzEncoder::new(fs::File::create(&compressed)?, Compression::best());
        encoder.write_all(&bytes)?;
        encoder.finish()?;
        table += &format!(
            "PageFile {{ name: {name:?}, media_type: {media_type:?}, tag: \"\\\"{:016x}\\\"\", plain: include_bytes!({path:?}), compressed: include_bytes!({compressed:?}) }},\n",
            hasher.finish(),
        );
    }
    table += "]";
    fs::write(out.join("page_files.rs"), table)?;
    fs::write(out.join("page_version.txt"), format!("{:012x}", whole.finish() >> 16))
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}
