// Markdown as nodes: no text of an agent ever becomes markup. A text that grows is split into blocks once; only the last is drawn anew.
import { html, Component, Copy } from "./ui.js";
import { safe, link } from "./text.js";
import { Code } from "./highlight.js";

/** Longest block that is drawn as markdown, in characters. A longer one is cut in pieces. */
const MAX_BLOCK = 16_000;
/** Longest picture in a text, in characters: it is one line. */
const MAX_PICTURE = 6_000_000;
const PICTURE = /^\s*!\[[^\]\n]{0,200}\]\(data:image\//;

/** Most blocks, and characters in them, of one text that are drawn at once: its end. */
const MAX_BLOCKS = 300;
const MAX_DRAWN = 150_000;

/** Number of the first block that is drawn. */
function firstDrawn(blocks) {
  let at = blocks.length;
  let size = 0;
  while (at > 0 && blocks.length - at < MAX_BLOCKS && size < MAX_DRAWN) size += blocks[--at].text.length;
  return at;
}

/** Blocks of a text that grows. */
export class MarkdownSource {
  constructor(text = "") {
    this.done = [];
    this.lines = [];
    this.size = 0;
    this.rest = "";
    this.fence = null;
    this.length = 0;
    this.push(text);
  }

  /** Appends text. */
  push(text) {
    this.length += text.length;
    this.rest += text;
    let from = 0;
    for (;;) {
      let end = this.rest.indexOf("\n", from);
      if (end < 0) {
        const isPicture = !this.fence && PICTURE.test(this.rest.slice(from, from + 300));
        if (this.rest.length - from <= (isPicture ? MAX_PICTURE : MAX_BLOCK)) break;
        end = from + MAX_BLOCK;
        this.line(this.rest.slice(from, end));
        this.close(true);
        from = end;
        continue;
      }
      this.line(this.rest.slice(from, end));
      from = end + 1;
    }
    if (from) this.rest = this.rest.slice(from);
  }

  line(text) {
    const mark = /^\s*(```+|~~~+)(.*)$/.exec(text);
    if (this.fence) {
      if (mark && mark[1].startsWith(this.fence.mark) && !mark[2].trim()) { this.close(); this.fence = null; return; }
    } else if (mark) {
      this.close();
      this.fence = { mark: mark[1], lang: mark[2].trim().split(/\s/)[0] };
      this.open = true;
      return;
    } else if (!text.trim()) {
      this.close();
      return;
    }
    this.lines.push(text);
    this.size += text.length + 1;
    if (this.size > MAX_BLOCK) this.close(!PICTURE.test(text));
  }

  /** Ends the block. */
  close(isCut = false) {
    if (this.lines.length || (this.fence && this.open)) this.done.push(this.block(this.lines.join("\n")));
    this.lines = [];
    this.size = 0;
    if (this.fence) this.open = isCut;
  }

  block(text) {
    return this.fence ? { kind: "code", lang: this.fence.lang, text } : { kind: "text", text };
  }

  /** Last block, which is still growing; null if there is none. */
  tail() {
    const text = this.rest && !this.isFenceStart() ? [...this.lines, this.rest].join("\n") : this.lines.join("\n");
    if (!this.fence && this.rest.length > 300 && PICTURE.test(this.rest.slice(0, 300))) return this.block([...this.lines, "*a picture comes…*"].join("\n"));
    return text || (this.fence && this.open) ? this.block(text) : null;
  }

  isFenceStart() {
    return /^\s*(```|~~~|``?$|~~?$)/.test(this.rest);
  }
}

class Block extends Component {
  shouldComponentUpdate(next) {
    return next.block.text !== this.props.block.text || next.block.kind !== this.props.block.kind;
  }
  render({ block }) {
    return block.kind === "code" ? html`<${Code} lang=${block.lang} text=${block.text}/>` : html`${blocks(block.text)}`;
  }
}

/** Draws a growing text. */
export class Markdown extends Component {
  constructor() {
    super();
    this.state = { all: false };
  }
  render({ source }, { all }) {
    const { done } = source;
    const from = all ? 0 : firstDrawn(done);
    const tail = source.tail();
    return html`<div class="markdown" dir="auto">
      ${from > 0 && html`<button type="button" class="quiet small" onClick=${() => this.setState({ all: true })}>Show the ${from} blocks before</button>`}
      ${done.slice(from).map((block, at) => html`<${Block} key=${from + at} block=${block}/>`)}
      ${tail && html`<${Block} key=${done.length} block=${tail}/>`}
    </div>`;
  }
}

/** Draws a text that is whole. */
export function MarkdownText({ text }) {
  return html`<${Markdown} source=${new MarkdownSource(String(text ?? ""))}/>`;
}

function blocks(text) {
  const lines = text.split("\n");
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const heading = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (heading) {
      // Below the page's own. An agent's levels follow no order, which a heading has to.
      out.push(html`<div class=${`heading heading-${heading[1].length}`} role="heading" aria-level="2">${inline(heading[2])}</div>`);
      at++;
    } else if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      out.push(html`<hr/>`);
      at++;
    } else if (/^\s{0,3}>/.test(line)) {
      const quoted = take(lines, at, (line) => /^\s{0,3}>/.test(line));
      out.push(html`<blockquote>${blocks(quoted.map((line) => line.replace(/^\s{0,3}> ?/, "")).join("\n"))}</blockquote>`);
      at += quoted.length;
    } else if (LIST.test(line)) {
      const items = take(lines, at, (line, first) => first || LIST.test(line) || /^\s+/.test(line) || line.trim() !== "");
      out.push(list(items));
      at += items.length;
    } else if (line.includes("|") && /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/.test(lines[at + 1] ?? "")) {
      const rows = take(lines, at, (line) => line.includes("|"));
      out.push(table(rows));
      at += rows.length;
    } else {
      const words = take(lines, at, (line, first) => first || !/^\s{0,3}(#{1,6}\s|>|([-*_])(\s*\2){2,}\s*$)/.test(line) && !LIST.test(line));
      out.push(html`<p>${inline(words.join("\n"))}</p>`);
      at += words.length;
    }
  }
  return out;
}

const LIST = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

function take(lines, from, wanted) {
  let to = from;
  while (to < lines.length && wanted(lines[to], to === from)) to++;
  return lines.slice(from, to);
}

function list(lines) {
  const first = LIST.exec(lines[0]);
  const indent = first[1].length;
  const items = [];
  for (const line of lines) {
    const mark = LIST.exec(line);
    if (mark && mark[1].length <= indent + 1) items.push([mark[3]]);
    else items[items.length - 1].push(line.slice(Math.min(line.length - line.trimStart().length, indent + 2)));
  }
  const entries = items.map(([head, ...rest]) => {
    const box = /^\[([ xX])\]\s+(.*)$/.exec(head);
    const text = box ? box[2] : head;
    const nested = rest.length ? blocks(rest.join("\n")) : null;
    return html`<li class=${box ? "check" : ""}>${box && html`<span aria-hidden="true">${box[1] === " " ? "☐ " : "☑ "}</span>`}${inline(text)}${nested}</li>`;
  });
  const start = /^\d+/.exec(first[2]);
  return start ? html`<ol start=${Number(start[0])}>${entries}</ol>` : html`<ul>${entries}</ul>`;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
  const [head, , ...rows] = lines;
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Table"><table class="plain"><thead><tr>${cells(head).map((cell) => html`<th scope="col">${inline(cell)}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${cells(row).map((cell) => html`<td>${inline(cell)}</td>`)}</tr>`)}</tbody></table></div>`;
}

// Code, bold, italic, strike, link or picture, address, escaped character.
const INLINE = /(`+)([^`]|[^`][^]*?[^`])\1(?!`)|\*\*(\S(?:[^*]|\*(?!\*))*?)\*\*|(?<!\w)__(\S[^_]*?)__(?!\w)|\*(\S[^*]*?)\*|(?<!\w)_(\S[^_]*?)_(?!\w)|~~(\S[^~]*?)~~|!?\[((?:[^\][]|\[[^\][]*\])*)\]\(\s*<?([^\s<>)]*(?:\([^\s<>)]*\)[^\s<>)]*)*)>?(?:\s+["'][^"']*["'])?\s*\)|(https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}*_])|\\([\\`*_{}[\]()#+\-.!~|<>])/g;

/** Draws the inside of a line. */
export function inline(text, depth = 0) {
  if (depth > 6) return safe(text);
  const out = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, , code, bold, bold2, italic, italic2, strike, label, target, address, escaped] = found;
    out.push(safe(text.slice(at, found.index)));
    at = found.index + whole.length;
    if (code !== undefined) out.push(html`<code>${safe(code)}</code>`);
    else if (bold ?? bold2) out.push(html`<strong>${inline(bold ?? bold2, depth + 1)}</strong>`);
    else if (italic ?? italic2) out.push(html`<em>${inline(italic ?? italic2, depth + 1)}</em>`);
    else if (strike) out.push(html`<s>${inline(strike, depth + 1)}</s>`);
    else if (target !== undefined) out.push(anchor(target, label, whole, depth));
    else if (address) out.push(anchor(address, address, address, depth));
    else if (escaped) out.push(escaped);
  }
  out.push(safe(text.slice(at)));
  return out;
}

/** Link with its address in sight: a label may say another. */
function anchor(target, label, whole, depth) {
  // Pictures of elsewhere are not loaded: they would tell who looks at them, and when.
  if (whole.startsWith("!") && /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/.test(target)) return html`<img class="picture" src=${target} alt=${safe(label || "Picture of the agent", 200)}/>`;
  const href = link(target);
  if (!href) return safe(whole);
  const host = new URL(href).host;
  const named = label && !label.includes(host) && host;
  return html`<a href=${href} target="_blank" rel="noreferrer noopener" title=${safe(href)}>${label === target ? safe(label) : inline(label || target, depth + 1)}</a>${named && html`<span class="host"> (${safe(host)})</span>`}`;
}
