// Code with colours: strings, comments, numbers and keywords, which is what an eye looks for. No grammar of any language.
import { html, Component, Copy } from "./ui.js";
import { safe } from "./text.js";

/** Longest code that gets colours, in characters. */
const MAX_COLOURED = 16_000;

const KEYWORDS = new Set(("abstract and as assert async await begin bool break case catch char class const constexpr continue crate def default defer del delete " +
  "do done double dyn elif else elsif end enum esac except export extends extern false fi final finally float fn for foreach from func function global go goto " +
  "guard if impl implements import in inline instanceof int interface is lambda let local long loop map match mod module move mut namespace new nil none None not null " +
  "nullptr of operator or override package pass private protected pub public raise readonly ref return self Self short signed sizeof static str string struct super " +
  "switch template then this throw throws trait true True False try type typedef typeof undefined union unless unsafe unsigned until use using var virtual void volatile " +
  "when where while with yield SELECT FROM WHERE INSERT INTO UPDATE SET DELETE CREATE TABLE JOIN ON GROUP ORDER BY AND OR NOT NULL").split(" "));

const STRING = String.raw`"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|` + "`(?:\\\\.|[^`\\\\])*`";
const REST = String.raw`(?<number>\b(?:0x[\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)\b)|(?<word>[A-Za-z_$][\w$]*)`;
const slash = new RegExp(String.raw`(?<comment>\/\/[^\n]*|\/\*[^]*?(?:\*\/|$))|(?<string>${STRING})|${REST}`, "g");
const hash = new RegExp(String.raw`(?<comment>(?<![\w$])#[^\n]*)|(?<string>"""[^]*?"""|'''[^]*?'''|${STRING})|${REST}`, "g");
const dash = new RegExp(String.raw`(?<comment>--[^\n]*)|(?<string>${STRING})|${REST}`, "g");
const markup = /(?<comment><!--[^]*?(?:-->|$))|(?<string>"[^"\n]*"|'[^'\n]*')|(?<word><\/?[\w:-]+|\/?>)/g;

function grammar(lang) {
  switch (lang) {
    case "": case "text": case "txt": case "plain": case "output": return null;
    case "py": case "python": case "sh": case "bash": case "zsh": case "shell": case "console": case "yaml": case "yml": case "toml": case "ruby": case "rb":
    case "make": case "makefile": case "dockerfile": case "ini": case "perl": case "r": return hash;
    case "sql": case "lua": case "haskell": case "hs": case "ada": return dash;
    case "html": case "xml": case "svg": case "vue": return markup;
    default: return slash;
  }
}

/** Draws code, the parts with their colours. */
export function coloured(text, lang) {
  const rule = grammar(lang);
  const value = safe(text);
  if (!rule || value.length > MAX_COLOURED) return value;
  const out = [];
  let at = 0;
  for (const found of value.matchAll(rule)) {
    const { comment, string, number, word } = found.groups;
    const name = comment ? "tok-comment" : string ? "tok-string" : number ? "tok-number" : word && (rule === markup || KEYWORDS.has(word)) ? "tok-keyword" : null;
    if (!name) continue;
    if (found.index > at) out.push(value.slice(at, found.index));
    out.push(html`<span class=${name}>${found[0]}</span>`);
    at = found.index + found[0].length;
  }
  out.push(value.slice(at));
  return out;
}

/** Lines after which code is folded. */
const FOLD = 400;

/** Block of code with its language and a button to copy it. */
export class Code extends Component {
  render({ lang, text }, { all }) {
    const name = safe(lang, 24).toLowerCase();
    let shown = text;
    let lines = 0;
    if (!all) {
      let at = -1;
      while (lines <= FOLD && (at = text.indexOf("\n", at + 1)) >= 0) lines++;
      if (lines > FOLD) shown = text.slice(0, at);
    }
    return html`<figure class="code"><figcaption><span>${name || "code"}</span><${Copy} text=${text} label="Copy code"/></figcaption>
      <pre tabindex="0" aria-label=${`Code${name ? `, ${name}` : ""}`}><code dir="ltr">${coloured(shown, name)}</code></pre>
      ${shown.length < text.length && html`<button type="button" class="quiet small" onClick=${() => this.setState({ all: true })}>Show all of it</button>`}</figure>`;
  }
}
