// The terminal of a session: the frames that every viewer gets, over a WebSocket, on xterm.js. It is loaded when it is first shown.
import { html, Component, signal, attempt } from "../lib/ui.js";
import { address, segment, post, get, mount, socketProtocols } from "../lib/api.js";
import { isLive, refresh } from "../lib/state.js";
import { exitText } from "../lib/conversation.js";
import { safe, link } from "../lib/text.js";

/** Frames that the server sends before the first of them is painted. */
const WINDOW = 8;

/** Style sheet of xterm.js that the page's policy allows: no markup, a sheet of the document. */
class PageStyleSheet extends HTMLElement {
  constructor() {
    super();
    this.sheet = new CSSStyleSheet();
  }
  set textContent(text) { this.sheet.replaceSync(text); }
  get textContent() { return ""; }
  connectedCallback() {
    this.hidden = true;
    document.adoptedStyleSheets.push(this.sheet);
  }
  disconnectedCallback() {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => sheet !== this.sheet);
  }
}

let libraries = null;
function load() {
  libraries ??= (async () => {
    if (!customElements.get("page-style-sheet")) customElements.define("page-style-sheet", PageStyleSheet);
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = new URL("../vendor/xterm.css", import.meta.url).href;
    document.head.append(sheet);
    const [xterm, fit, links] = await Promise.all([import("../vendor/xterm.mjs"), import("../vendor/xterm-addon-fit.mjs"), import("../vendor/xterm-addon-web-links.mjs")]);
    return { Xterm: xterm.Terminal, Fit: fit.FitAddon, Links: links.WebLinksAddon };
  })();
  return libraries;
}

const dark = { background: "#101214", foreground: "#e4e5e6", cursor: "#7fc4e0", selectionBackground: "#35505e" };

function follow(text) {
  const target = link(text);
  if (target) window.open(target, "_blank", "noopener,noreferrer");
}

export class Terminal extends Component {
  constructor() {
    super();
    this.status = signal("none");
    this.types = signal(false);
    this.notice = signal(null);
    this.isDecided = false;
  }

  componentDidMount() {
    this.observer = new ResizeObserver(() => this.fit());
    this.decide();
  }

  componentDidUpdate() {
    this.decide();
  }

  /** Connects by itself where the session has a screen; once, as soon as the session is known. */
  decide() {
    const { session } = this.props;
    if (this.isDecided || !session) return;
    this.isDecided = true;
    if (["terminal", "both"].includes(session.surface) && isLive(session) && this.status.value === "none") this.open("terminal");
  }

  componentWillUnmount() {
    this.close();
    this.observer.disconnect();
    this.xterm?.dispose();
  }

  fit() {
    if (!this.xterm || !this.box?.clientWidth) return;
    clearTimeout(this.fitTimer);
    this.fitTimer = setTimeout(() => { if (this.xterm && this.types.value) this.fitter.fit(); }, 60);
  }

  /** Connects. `again` is the number of attempts since the connection broke off. */
  async open(route, keyboard = "type", again = 0) {
    this.close();
    if (!again) this.status.value = "loading";
    const { Xterm, Fit, Links } = await load();
    if (!this.box) return;
    if (!this.xterm) {
      this.xterm = new Xterm({
        fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"), fontSize: innerWidth < 760 ? 11 : 13, theme: dark, scrollback: 5000, cursorBlink: false,
        allowProposedApi: false, screenReaderMode: false, linkHandler: { activate: (event, text) => follow(text), allowNonHttpProtocols: false },
      });
      this.fitter = new Fit();
      this.xterm.loadAddon(this.fitter);
      this.xterm.loadAddon(new Links((event, text) => follow(text)));
      this.xterm.open(this.box);
      this.xterm.onData((text) => this.send(new TextEncoder().encode(text)));
      this.xterm.onBinary((text) => this.send(Uint8Array.from(text, (character) => character.charCodeAt(0))));
      this.xterm.onResize(({ rows, cols }) => this.tell({ type: "resize", rows, columns: cols }));
      this.xterm.attachCustomKeyEventHandler((event) => {
        // Copying needs a key that programs do not take.
        if (event.type === "keydown" && event.ctrlKey && event.shiftKey && event.code === "KeyC") { this.copy(); event.preventDefault(); return false; }
        return !(event.altKey && /^Digit[1-4]$/.test(event.code));
      });
      this.observer.observe(this.box);
    }
    this.xterm.reset();
    this.fitter.fit();
    const url = address(`v1/sessions/${segment(this.props.id)}/${route}`, { rows: this.xterm.rows, columns: this.xterm.cols, window: WINDOW, ...(route === "terminal" ? { keyboard } : {}) });
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    this.route = route;
    if (!again) this.status.value = "connecting";
    const socket = new WebSocket(url, socketProtocols());
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.opened = false;
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.take(JSON.parse(data));
      else this.paint(new Uint8Array(data));
    };
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.socket = null;
      this.types.value = false;
      if (["ended", "refused"].includes(this.status.value)) return;
      if ((this.opened || again) && route === "terminal" && isLive(this.props.session ?? {})) {
        const attempts = this.opened ? 1 : again + 1;
        this.status.value = "lost";
        this.again = setTimeout(() => { if (this.box && isLive(this.props.session ?? {})) this.open(route, keyboard, attempts); }, Math.min(8000, 500 * 2 ** Math.min(attempts, 5)));
        return;
      }
      this.status.value = "refused";
      this.notice.value = this.opened ? "The connection broke off, and with it the shell." : "The server did not connect the terminal.";
      if (!this.opened) this.explain(url);
    };
  }

  /** Asks why: a browser does not show the answer to a WebSocket that was refused. */
  async explain(url) {
    const query = Object.fromEntries(url.searchParams);
    await get(url.pathname.slice(mount.pathname.length), query).catch((error) => {
      // Without a handshake the route itself says no more than that it needs one.
      if (error.status !== 400 && this.status.value === "refused") this.notice.value = error.message;
    });
  }

  /** Paints a frame, and says so: the server sends no more than are painted. */
  paint(bytes) {
    const { socket } = this;
    this.xterm.write(bytes, () => { if (this.socket === socket) this.tell({ type: "painted", frames: 1 }); });
  }

  take(message) {
    switch (message.type) {
      case "attached":
        this.opened = true;
        this.status.value = "open";
        this.types.value = message.types;
        this.notice.value = null;
        if (!message.types) this.xterm.resize(message.columns, message.rows);
        if (message.types) this.xterm.focus();
        break;
      case "keyboard": this.types.value = message.types; if (message.types) { this.fit(); this.xterm.focus(); } break;
      case "clipboard": this.offered = message.text; this.notice.value = "clipboard"; break;
      case "stopped": this.notice.value = "stopped"; break;
      case "ended": this.status.value = "ended"; this.notice.value = message.exit ? `The program has ended: ${exitText(message.exit)}.` : "The session has ended."; refresh(); break;
      case "refused": this.status.value = "refused"; this.notice.value = message.problem?.detail ?? "refused"; break;
      case "invalid": this.notice.value = message.problem?.detail ?? null; break;
      default: break;
    }
  }

  send(bytes) {
    if (this.socket?.readyState !== WebSocket.OPEN || !this.types.value) return;
    // A message has at most 1 MiB: a long paste goes in pieces.
    for (let at = 0; at < bytes.length; at += 512 * 1024) this.socket.send(bytes.subarray(at, at + 512 * 1024));
  }

  tell(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  close() {
    clearTimeout(this.again);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
    this.types.value = false;
  }

  copy() {
    const text = this.xterm?.getSelection();
    if (text) attempt(() => navigator.clipboard.writeText(text), "Copied");
    this.xterm?.focus();
  }

  async paste() {
    await attempt(async () => this.xterm?.paste(await navigator.clipboard.readText()));
    this.xterm?.focus();
  }

  render({ id, session }) {
    const status = this.status.value;
    const live = session && isLive(session);
    const notice = this.notice.value;
    const open = status === "open";
    const path = `v1/sessions/${segment(id)}`;
    return html`<div class="terminal-view">
      <div class="toolbar">
        ${!open && live && html`<button type="button" class="primary" onClick=${() => this.open("terminal")}>${session.surface === "machine" ? "The agent's screen" : "Show the terminal"}</button>
          <button type="button" onClick=${() => this.open("terminal", "watch")}>Watch only</button><button type="button" onClick=${() => this.open("shell")}>A shell beside the agent</button>`}
        ${live && session.surface === "machine" && !open && html`<button type="button" onClick=${() => attempt(async () => { await post(`${path}/visit`, { size: { rows: this.xterm?.rows ?? 24, columns: this.xterm?.cols ?? 80 } }, { timeout: 60_000 }); refresh(); await this.open("terminal"); })} title="Until its program ends, the session is on its own screen">Visit</button>`}
        ${open && html`<span role="status">${this.types.value ? "You have the keyboard" : "You watch"}</span>
          ${!this.types.value && this.route === "terminal" && html`<button type="button" class="primary" onClick=${() => this.tell({ type: "take" })}>Take the keyboard</button>`}
          <button type="button" onClick=${() => this.copy()}>Copy</button><button type="button" onClick=${() => this.paste()} disabled=${!this.types.value}>Paste</button>
          <button type="button" onClick=${() => { this.close(); this.status.value = "none"; }}>Leave</button>`}
        ${["loading", "connecting"].includes(status) && html`<span class="dim" role="status">connecting…</span>`}
        ${status === "lost" && html`<span class="lost" role="status">The connection broke off; trying again…</span>`}
        ${!live && status === "none" && html`<span class="dim">The session has no terminal now.</span>`}
        ${notice && (notice === "stopped" ? html`<span role="status">The program has stopped itself.</span> <button type="button" onClick=${() => { this.tell({ type: "continue" }); this.notice.value = null; }}>Continue it</button>`
          : notice === "clipboard" ? html`<span role="status">The program offers a text for your clipboard.</span> <button type="button" onClick=${() => { this.notice.value = null; attempt(() => navigator.clipboard.writeText(this.offered), "Copied"); }}>Copy it</button>`
          : html`<span role="status" class=${status === "refused" ? "error" : "dim"}>${safe(notice, 400)}</span>`)}
      </div>
      <div class="terminal-box" ref=${(node) => { this.box = node; }} aria-label="Terminal" role="region"></div>
    </div>`;
  }
}
