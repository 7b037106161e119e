//! What the agent shows when it is asked to show something: a text with all of Markdown, a picture, texts that mean harm.

/// A picture: PNG, 48 by 48, in base64.
pub(crate) const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAADAAAAAwCAIAAADYYG7QAAAJeklEQVR42p3WQecCb7/H8f/DOYsWLVq0aNGixVm0aNEiKYaSE0P5KYaSYuhIMZQUQ0kxlBRDSTGUvGMoKYaSYmh7Nvf+3A/gXC0O1/Lt8lp9fP/517/+5/98/xknHCcSJxonFicRR4qTjiPq/ztOM44WpxOnF0ePM4wzFvfEseNc4tziOHGecd5x3Dj/CEFJwkkiSaJJYkkSSaQk6aQYlKSZREvSSdJLoicZJhmLe5LYSS5JbkmcJM8k7yRu8gdIIiwRkYhKxCQSEpJEWhKDJJoSmkRHoiehSwwlxuIeCVviInGTcCSeEm8JV/oBShFOEUkRTRFLkUghpUinxKAUzRRaik6KXgo9xTDFWNyTwk5xSXFL4aR4pnincFM/QBnCGSIZohliGRIZpAzpjBiUoZlBy9DJ0MugZxhmGIt7MtgZLhluGZwMzwzvDG7mByhLOEskSzRLLEsii5QlnRWDsjSzaFk6WXpZ9CzDLGNxTxY7yyXLLYuT5ZnlncXN/gDJhGUiMlGZmExCRpJJy2KQTFNGk+nI9GR0maHMWNwjY8tcZG4yjsxT5i3jyj9AOcI5IjmiOWI5EjmkHOmcGJSjmUPL0cnRy6HnGOYYi3ty2DkuOW45nBzPHO8cbo5//uMPzx/eP3x/+P8I/BH8I/Qn/Oi//pD/yP9R+EP5o/xH9Q9V3Bt/zP5Y/GH+sf5j+4f1x0Hc//MfRTxFvEV8RfxFAkWCRUJFMaiIXCRfpFBEKVIuUi2iinujyKzIoohZZF1kW8Qqcij+ACl4FLwKPgW/QkAhqBBSxCAFWSGvUFBQFMoKVQVV3BsKM4WFgqmwVtgqWAoH5QeohKeEt4SvhL9EoESwRKgkBpWQS+RLFEooJcolqiVUcW+UmJVYlDBLrEtsS1glDqUfoAqeCt4Kvgr+CoEKwQqhihhUQa6Qr1CooFQoV6hWUMW9UWFWYVHBrLCusK1gVThUfoBqeGp4a/hq+GsEagRrhGpiUA25Rr5GoYZSo1yjWkMV90aNWY1FDbPGusa2hlXjUPsBUvGoeFV8Kn6VgEpQJaSKQSqySl6loKKolFWqKqq4N1RmKgsVU2WtslWxVA7qD1AdTx1vHV8df51AnWCdUF0MqiPXydcp1FHqlOtU66ji3qgzq7OoY9ZZ19nWseocxL14GBuEG0QaRBvEGiQaSA3SDfEwNmg20Bp0GvQa6A2GDcbingZ2g0uDWwOnwbPBu4Hb+LHULcItIi2iLWItEi2kFumWGNSi2UJr0WnRa6G3GLYYi3ta2C0uLW4tnBbPFu8WbusHSCOsEdGIasQ0EhqSRloTgzSaGppGR6OnoWsMNcbiHg1b46Jx03A0nhpvDVf7AWoTbhNpE20Ta5NoI7VJt8WgNs02WptOm14bvc2wzVjc08Zuc2lza+O0ebZ5t3HbP0Bdwl0iXaJdYl0SXaQu6a4Y1KXZRevS6dLroncZdhmLe7rYXS5dbl2cLs8u7y5u9weoT7hPpE+0T6xPoo/UJ90Xg/o0+2h9On16ffQ+wz5jcU8fu8+lz62P0+fZ593H7f8A6YR1IjpRnZhOQkfSSetikE5TR9Pp6PR0dJ2hzljco2PrXHRuOo7OU+et4+o/QAPCAyIDogNiAxIDpAHpgRg0oDlAG9AZ0BugDxgOGIt7BtgDLgNuA5wBzwHvAe7g3/fQCM8I7wjfCP+IwIjgiNBIPIwj5BH5EYURyojyiOoIVdwbI2YjFiPMEesR2xHWiMPox1JP8EzwTvBN8E8ITAhOCE3EoAnyhPyEwgRlQnlCdYIq7o0JswmLCeaE9YTtBGvCYfIDZOAx8Br4DPwGAYOgQcgQgwxkg7xBwUAxKBtUDVRxbxjMDBYGpsHaYGtgGRyMH6ApnineKb4p/imBKcEpoakYNEWekp9SmKJMKU+pTlHFvTFlNmUxxZyynrKdYk05TH+A5njmeOf45vjnBOYE54TmYtAceU5+TmGOMqc8pzpHFffGnNmcxRxzznrOdo415zD/AVriWeJd4lviXxJYElwSWopBS+Ql+SWFJcqS8pLqElXcG0tmSxZLzCXrJdsl1pLD8gfIxGPiNfGZ+E0CJkGTkCkGmcgmeZOCiWJSNqmaqOLeMJmZLExMk7XJ1sQyOZg/QCs8K7wrfCv8KwIrgitCKzFohbwiv6KwQllRXlFdoYp7Y8VsxWKFuWK9YrvCWnFY/T/uoQ3hDZEN0Q2xDYkN0ob0RjyMG5obtA2dDb0N+obhhrG4Z4O94bLhtsHZ8Nzw3uBufiz1jvCOyI7ojtiOxA5pR3onBu1o7tB2dHb0dug7hjvG4p4d9o7LjtsOZ8dzx3uHu/sBsghbRCyiFjGLhIVkkbbEIIumhWbRsehZ6BZDi7G4x8K2uFjcLByLp8XbwrV+gPaE90T2RPfE9iT2SHvSezFoT3OPtqezp7dH3zPcMxb37LH3XPbc9jh7nnvee9z9D9CR8JHIkeiR2JHEEelI+igGHWke0Y50jvSO6EeGR8biniP2kcuR2xHnyPPI+4h7/AE6ET4RORE9ETuROCGdSJ/EoBPNE9qJzoneCf3E8MRY3HPCPnE5cTvhnHieeJ9wTz9ANmGbiE3UJmaTsJFs0rYYZNO00Ww6Nj0b3WZoMxb32Ng2F5ubjWPztHnbuPYP0JnwmciZ6JnYmcQZ6Uz6LAadaZ7RznTO9M7oZ4ZnxuKeM/aZy5nbGefM88z7jHv+9z10xXPFe8V3xX8lcCV4JXQVD+MV+Ur+SuGKcqV8pXpFFffGldmVxRXzyvrK9op15XD9sdR3PHe8d3x3/HcCd4J3Qncx6I58J3+ncEe5U75TvaOKe+PO7M7ijnlnfWd7x7pzuP8AOXgcvA4+B79DwCHoEHLEIAfZIe9QcFAcyg5VB1XcGw4zh4WD6bB22DpYDgfnB+iB54H3ge+B/0HgQfBB6CEGPZAf5B8UHigPyg+qD1RxbzyYPVg8MB+sH2wfWA8Ojx+gF54X3he+F/4XgRfBF6GXGPRCfpF/UXihvCi/qL5Qxb3xYvZi8cJ8sX6xfWG9OLx+gD54Png/+D74PwQ+BD+EPmLQB/lD/kPhg/Kh/KH6QRX3xofZh8UH88P6w/aD9eHw+QFy8bh4XXwufpeAS9Al5IpBLrJL3qXgoriUXaouqrg3XGYuCxfTZe2ydbFcDu4P0BfPF+8X3xf/l8CX4JfQVwz6In/Jfyl8Ub6Uv1S/qOLe+DL7svhifll/2X6xvhzE/f8ChYaHfMKQm+cAAAAASUVORK5CYII=";

/// Text of a file before an edit, and after it.
pub(crate) const BEFORE: &str = r#"//! Greets.

use std::env;

fn name() -> String {
    env::args().nth(1).unwrap_or_default()
}

fn greet(name: &str) {
    println!("hello {name}");
}

fn main() {
    greet(&name());
}
"#;
pub(crate) const AFTER: &str = r#"//! Greets.

use std::env;

fn name() -> String {
    env::args().nth(1).unwrap_or_else(|| "world".to_owned())
}

/// Greets politely.
fn greet(name: &str) {
    println!("Hello, {name}!");
}

fn main() {
    greet(&name());
}
"#;

/// A text with all of Markdown.
pub(crate) const MARKDOWN: &str = r#"# The login page

The form sends its **password** in a *query string*, see [the specification](https://example.org/spec#forms "forms"). It
has to be `POST`:

```rust
/// Sends the form.
async fn login(client: &Client, form: &Form) -> Result<Session, Error> {
    let answer = client.post("/login").json(form).send().await?;
    // 200 and a cookie, or 401.
    Ok(answer.error_for_status()?.json().await?)
}
```

## What is left to do

1. The server
   - reads the body, at most 4 KiB
   - compares in constant time
2. The page
   - [x] labels of the fields
   - [ ] ~~a captcha~~ a limit of attempts

| browser | version | passes |
|---|---:|:---:|
| Firefox | 128 | yes |
| Chromium | 130 | no, see `#12` |
| a browser whose name is so long that its cell does not fit on a telephone | 1 | yes |

> Nobody reads quotes.
>
> > But they may be nested.

```diff
-<form method="get" action="/login">
+<form method="post" action="/login">
```

```
plain text, with a line that is much longer than the page is wide, so that it has to be scrolled sideways and not wrapped: 0123456789 0123456789 0123456789 0123456789
```

Inline HTML such as <b>this</b> is text. A rule follows.

---

Ünïcödé, 漢字, עברית, emoji 👩‍👩‍👧 and `a  b`.
"#;

/// Texts that do harm where they are taken for anything but text. One a line; a title or a path takes one of them.
pub(crate) const HOSTILE: [&str; 14] = [
    "<script>window.hostile = 1</script>",
    "<img src=x onerror=\"window.hostile = 2\">",
    "<iframe srcdoc=\"<script>parent.hostile = 3</script>\"></iframe>",
    "<svg onload=\"window.hostile = 4\"><style>*{display:none}</style></svg>",
    "[click](javascript:window.hostile=5) [click](JaVa\u{1}ScRiPt:window.hostile=6) [click](data:text/html,<script>hostile</script>)",
    "![picture](javascript:window.hostile=7) ![picture](https://example.org/tracking.png)",
    "`</code><script>window.hostile = 8</script>`",
    "\u{1b}[2J\u{1b}[31mred\u{1b}[0m \u{1b}]8;;javascript:hostile\u{7}link\u{1b}]8;;\u{7} \u{1b}]0;title\u{7}",
    "file\u{202e}txt.exe \u{2066}isolate\u{2069} \u{200f}\u{05e2}\u{05d1}\u{05e8}\u{05d9}\u{05ea}",
    "zero\u{200b}width\u{200d}joiner\u{feff} p\u{0430}ypal.com",
    "{{constructor.constructor('hostile')()}} ${hostile} %00 \\u003cscript\\u003e",
    "</textarea></title></style><script>window.hostile = 9</script>",
    "a\u{0300}\u{0301}\u{0302}\u{0303}\u{0304}\u{0305}\u{0306}\u{0307}\u{0308}\u{0309}\u{030a}\u{030b}\u{030c}\u{030d}\u{030e}\u{030f}\u{0310}\u{0311}\u{0312}",
    "<a href=\"https://example.org\" onclick=\"window.hostile = 10\" style=\"position:fixed;inset:0\">all of the page</a>",
];
