//! Output whose throughput is measured: lines of text, and cases as those of vtebench.

use std::{
    fs::File,
    io::{BufWriter, Result, Write},
    path::Path,
};

/// Rows and columns that the cases fill.
const SIZE: (u64, u64) = (40, 120);
/// Text in several scripts: one and two cells wide, with combining characters and emoji.
const UNICODE: &str = "Grüße aus Łódź, Ελληνικά, Кириллица, 日本語のテキスト, 한국어, עברית, e\u{301}a\u{308}o\u{302}, ½ ≤ ∞ → ✓, 🦀🚀👍 ";

/// Kind of output.
pub(super) struct OutputCase {
    /// Name in JSON.
    pub(super) key: &'static str,
    /// Name for people.
    pub(super) title: &'static str,
    /// Size, in megabytes.
    pub(super) megabytes: u64,
    /// Writes one piece, of a few kilobytes at most; the number is random.
    piece: fn(&mut dyn Write, u64) -> Result<()>,
    /// Begins and ends the output.
    frame: (&'static str, &'static str),
}

pub(super) const CASES: [OutputCase; 6] = [
    OutputCase { key: "lines_mb_s", title: "lines of text", megabytes: 100, piece: lines, frame: ("", "") },
    OutputCase {
        key: "dense_mb_s",
        title: "dense cells, each of other colours",
        megabytes: 20,
        piece: dense,
        frame: ("\x1b[2J", "\x1b[m"),
    },
    OutputCase {
        key: "scrolling_mb_s",
        title: "short lines that scroll",
        megabytes: 20,
        piece: scrolling,
        frame: ("", ""),
    },
    OutputCase {
        key: "region_mb_s",
        title: "a region that scrolls",
        megabytes: 20,
        piece: scrolling,
        frame: ("\x1b[5;35r\x1b[35;1H", "\x1b[r\x1b[40;1H"),
    },
    OutputCase {
        key: "cursor_mb_s",
        title: "alternate screen, random cursor moves",
        megabytes: 20,
        piece: cursor,
        frame: ("\x1b[?1049h", "\x1b[m\x1b[?1049l"),
    },
    OutputCase { key: "unicode_mb_s", title: "Unicode", megabytes: 20, piece: unicode, frame: ("", "") },
];

impl OutputCase {
    /// Writes the output to a file. It is the same in each run. Returns its size.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(&self, path: &Path, megabytes: u64) -> Result<u64> {
        let mut file = CountedWrite { inner: BufWriter::new(File::create_new(path)?), written: 0 };
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        file.write_all(self.frame.0.as_bytes())?;
        while file.written < megabytes * 1_000_000 {
            // xorshift64
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (self.piece)(&mut file, random)?;
        }
        file.write_all(self.frame.1.as_bytes())?;
        file.inner.flush()?;
        Ok(file.written)
    }
}

struct CountedWrite {
    inner: BufWriter<File>,
    written: u64,
}

impl Write for CountedWrite {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let written = self.inner.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()
    }
}

fn lines(out: &mut dyn Write, random: u64) -> Result<()> {
    writeln!(out, "{random:020} the quick brown fox jumps over the lazy dog and runs away")
}

fn dense(out: &mut dyn Write, random: u64) -> Result<()> {
    let letter = char::from(b'A' + u8::try_from(random % 26).unwrap_or_default());
    write!(out, "\x1b[H")?;
    for cell in 0..SIZE.0 * SIZE.1 {
        let (foreground, background) = ((random + cell) % 156 + 100, 255 - (random + cell) % 156);
        write!(out, "\x1b[38;5;{foreground};48;5;{background};1;3;4m{letter}")?;
    }
    Ok(())
}

fn scrolling(out: &mut dyn Write, _: u64) -> Result<()> {
    out.write_all(b"y\n")
}

fn cursor(out: &mut dyn Write, random: u64) -> Result<()> {
    let (row, column) = (random % SIZE.0 + 1, (random >> 16) % SIZE.1 + 1);
    let letter = char::from(b'!' + u8::try_from((random >> 32) % 90).unwrap_or_default());
    write!(out, "\x1b[{row};{column}H\x1b[38;5;{}m{letter}", (random >> 48) % 256)
}

fn unicode(out: &mut dyn Write, random: u64) -> Result<()> {
    out.write_all(UNICODE.as_bytes())?;
    if random.is_multiple_of(8) { out.write_all(b"\n") } else { Ok(()) }
}
