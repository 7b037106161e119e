//! Splitting of byte streams into lines.

/// Longest piece that is passed on, in bytes. It bounds the memory for a line without an end.
pub(crate) const MAX_LINE: usize = 1024 * 1024;

/// Splitter of a stream into lines, each with its newline. A line longer than the limit is passed on in several pieces, of which only
/// the last has the newline: nothing is lost, and the buffer is bounded.
#[derive(Debug)]
pub struct LineSplitter {
    partial: Vec<u8>,
    limit: usize,
}

impl Default for LineSplitter {
    fn default() -> Self {
        Self::with_limit(MAX_LINE)
    }
}

impl LineSplitter {
    /// Makes a splitter with pieces of at most `limit` bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self { partial: Vec::new(), limit: limit.max(1) }
    }

    /// Adds `bytes` and calls `line` for each piece that they complete.
    pub fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            let room = self.limit - self.partial.len();
            let window = &bytes[..bytes.len().min(room)];
            let end = memchr::memchr(b'\n', window).map(|at| at + 1);
            let take = end.unwrap_or(window.len());
            let (head, rest) = bytes.split_at(take);
            bytes = rest;
            if end.is_none() && take < room {
                self.partial.extend_from_slice(head);
            } else if self.partial.is_empty() {
                line(head);
            } else {
                self.partial.extend_from_slice(head);
                line(&self.partial);
                self.partial.clear();
                self.partial.shrink_to(4096);
            }
        }
    }

    /// Calls `line` with the rest, which has no newline.
    pub fn finish(&mut self, line: impl FnOnce(&[u8])) {
        let rest = std::mem::take(&mut self.partial);
        if !rest.is_empty() {
            line(&rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(limit: usize, pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut lines = LineSplitter::with_limit(limit);
        let mut out = Vec::new();
        for piece in pieces {
            lines.push(piece, |line| out.push(line.to_vec()));
        }
        lines.finish(|line| out.push(line.to_vec()));
        out
    }

    #[test]
    fn lines_come_whole_however_they_arrive() {
        let text = b"one\n\ntwo three\nrest";
        let whole = split(100, &[text]);
        assert_eq!(whole, [&b"one\n"[..], b"\n", b"two three\n", b"rest"]);
        for at in 0..text.len() {
            let (a, b) = text.split_at(at);
            assert_eq!(split(100, &[a, b]), whole, "split at {at}");
        }
    }

    #[test]
    fn an_endless_line_is_cut_and_nothing_is_lost() {
        let out = split(4, &[b"abcdefghi\nj"]);
        assert_eq!(out, [&b"abcd"[..], b"efgh", b"i\n", b"j"]);
        assert_eq!(split(4, &[b"abc", b"d", b"\n"]), [&b"abcd"[..], b"\n"]);
    }
}
