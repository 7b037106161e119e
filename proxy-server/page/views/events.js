// The raw stream of a session: offsets, types, payloads; one as JSON, a link to it, and an export.
import { html, Component, signal, Copy } from "../lib/ui.js";
import { follow, segment, address, headers } from "../lib/api.js";
import { sessionLink } from "../lib/route.js";
import { keys } from "../lib/keys.js";
import { safe, pretty } from "../lib/text.js";
import { attempt } from "../lib/ui.js";

/** Events that are held; older ones are left to the export. */
const MAX_EVENTS = 20_000;
const HEIGHT = 24;

const FILTERS = [["", "all"], ["stream:*", "stream"], ["permission:*", "permissions"], ["process:*", "processes"], ["session:*,turn:*", "session"], ["harness:*,log", "the agent's own lines"]];

export class Events extends Component {
  constructor({ query }) {
    super();
    this.list = [];
    this.shift = 0;
    this.rev = signal(0);
    this.stuck = !/^\d{1,20}$/.test(query.offset ?? "");
    this.frame = null;
    this.state = { type: query.type ?? "", raw: false, text: "", chosen: /^\d{1,20}$/.test(query.offset ?? "") ? BigInt(query.offset).toString() : null, range: [0, 60] };
    this.wanted = this.state.chosen;
  }

  componentDidMount() {
    this.connect();
    this.observer = new ResizeObserver(() => this.measure());
    this.observer.observe(this.box);
    this.removers = [keys.add("f", "Filter the events by type", () => document.getElementById("event-type")?.focus())];
  }

  componentWillUnmount() {
    this.stop?.();
    clearTimeout(this.frame);
    this.observer.disconnect();
    this.removers.forEach((remove) => remove());
  }

  connect() {
    this.stop?.();
    const { type, raw } = this.state;
    this.list = [];
    this.shift = 0;
    this.rev.value++;
    this.stop = follow(`v1/sessions/${segment(this.props.id)}/events`, {
      query: { from: 0, type, raw: raw || type.includes("harness") },
      onEvents: (events) => {
        for (const event of events) this.list.push(event);
        // The link of a raw line: it is not among the others.
        if (this.wanted && !this.state.raw && Number(offsetOf(events[events.length - 1])) >= Number(this.wanted) && !this.list.some((event) => offsetOf(event) === this.wanted)) {
          this.setState({ raw: true }, () => this.connect());
          return;
        }
        if (this.list.length > MAX_EVENTS) { const over = this.list.length - MAX_EVENTS; this.list.splice(0, over); this.shift += over; }
        if (this.frame === null) this.frame = setTimeout(() => { this.frame = null; this.rev.value++; }, 60);
      },
    });
  }

  measure() {
    if (!this.box) return;
    const { scrollTop, clientHeight } = this.box;
    const range = [Math.max(0, Math.floor(scrollTop / HEIGHT) - 10), Math.ceil((scrollTop + clientHeight) / HEIGHT) + 10];
    this.stuck = this.box.scrollHeight - scrollTop - clientHeight < HEIGHT * 2;
    if (range[0] !== this.state.range[0] || range[1] !== this.state.range[1]) this.setState({ range });
  }

  componentDidUpdate() {
    if (this.wanted) {
      const at = this.rows.findIndex((event) => offsetOf(event) === this.wanted);
      if (at >= 0) { this.wanted = null; this.box.scrollTop = Math.max(0, at * HEIGHT - 80); }
    } else if (this.stuck) this.box.scrollTop = this.box.scrollHeight;
  }

  async export() {
    await attempt(async () => {
      const { type, raw } = this.state;
      const response = await fetch(address(`v1/sessions/${segment(this.props.id)}/events`, { from: 0, type, raw }), { headers: headers({ Accept: "application/x-ndjson" }) });
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      const url = URL.createObjectURL(await response.blob());
      Object.assign(document.createElement("a"), { href: url, download: `${this.props.id}.ndjson` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    });
  }

  render({ id }, { type, raw, text, chosen, range }) {
    void this.rev.value;
    const words = text.toLowerCase();
    this.rows = words ? this.list.filter((event) => event.type.includes(words) || JSON.stringify(event.payload).toLowerCase().includes(words)) : this.list;
    const { rows } = this;
    const from = Math.min(range[0], Math.max(0, rows.length - 1));
    const to = Math.min(range[1], rows.length);
    const one = chosen && this.list.find((event) => offsetOf(event) === chosen);
    return html`<div class="events-view">
      <div class="toolbar"><label class="inline">Type <select id="event-type" value=${type} onChange=${(event) => this.setState({ type: event.target.value }, () => this.connect())}>
          ${!FILTERS.some(([value]) => value === type) && html`<option value=${type}>${safe(type, 60)}</option>`}${FILTERS.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></label>
        <label class="inline"><input type="checkbox" checked=${raw} onChange=${(event) => this.setState({ raw: event.target.checked }, () => this.connect())}/> raw lines</label>
        <input type="search" aria-label="Search the events" placeholder="Search" value=${text} onInput=${(event) => this.setState({ text: event.target.value })}/>
        <span class="dim">${rows.length.toLocaleString("en")} events${this.shift ? `, ${this.shift.toLocaleString("en")} before them` : ""}</span><span class="spacer"></span>
        <button type="button" onClick=${() => this.export()}>Export</button></div>
      <div class=${`events-split ${one ? "with-one" : ""}`}>
        <div class="scroll events" ref=${(node) => { this.box = node; }} onScroll=${() => this.measure()} tabindex="0" role="region" aria-label="Events">
          <table class="plain rows" aria-rowcount=${rows.length + 1}><thead><tr><th scope="col" class="num">Offset</th><th scope="col">Time</th><th scope="col">Type</th><th scope="col" class="num">Turn</th><th scope="col">Payload</th></tr></thead>
          <tbody>${from > 0 && html`<tr class="space" aria-hidden="true" style=${{ height: `${from * HEIGHT}px` }}></tr>`}
          ${rows.slice(from, to).map((event, at) => { const offset = offsetOf(event); return html`<tr key=${offset} aria-rowindex=${from + at + 2} aria-selected=${offset === chosen} class=${offset === chosen ? "chosen" : ""} onClick=${() => this.choose(offset)}>
            <td class="num"><a href=${`${sessionLink(id, "events")}?offset=${offset}`} onClick=${(click) => { click.preventDefault(); this.choose(offset); }}>${offset}</a></td>
            <td class="dim">${(event.createdAt ?? "").slice(11, 23)}</td><td class=${`type type-${event.type.split(":")[0]}`}>${safe(event.type, 60)}</td><td class="num dim">${event.metadata?.turn ?? ""}${event.metadata?.surface === "terminal" && html`<span class="on-screen" title="On the agent's own screen"><span aria-hidden="true">▣</span><span class="sr">terminal</span></span>`}</td><td class="mono payload"><bdi>${preview(event)}</bdi></td></tr>`; })}
          ${to < rows.length && html`<tr class="space" aria-hidden="true" style=${{ height: `${(rows.length - to) * HEIGHT}px` }}></tr>`}</tbody></table>
          ${rows.length === 0 && html`<p class="empty dim">No events.</p>`}
        </div>
        ${one && html`<aside class="one" aria-label=${`Event ${chosen}`}><header class="row"><h2>Event ${chosen}</h2><span class="spacer"></span>
          <${Copy} text=${() => pretty(one)} label="Copy the event as JSON">JSON<//><${Copy} text=${() => new URL(`${sessionLink(id, "events")}?offset=${chosen}`, location.href).href} label="Copy a link to the event">Link<//>
          <button type="button" class="quiet" aria-label="Close" onClick=${() => this.choose(null)}>✕</button></header>
          <pre tabindex="0" class="text" dir="ltr" aria-label="The event as JSON">${safe(pretty(one), 200_000)}</pre></aside>`}
      </div></div>`;
  }

  choose(offset) {
    this.stuck = false;
    this.setState({ chosen: offset });
    history.replaceState(null, "", offset ? `${sessionLink(this.props.id, "events")}?offset=${offset}` : sessionLink(this.props.id, "events"));
  }
}

const offsets = new WeakMap();
function offsetOf(event) {
  let text = offsets.get(event);
  if (text === undefined) { text = String(event.offset ?? "").replace(/^0+(?=\d)/, ""); offsets.set(event, text); }
  return text;
}

const previews = new WeakMap();
function preview(event) {
  let text = previews.get(event);
  if (text === undefined) { text = safe(JSON.stringify(event.payload)?.slice(0, 300), 240); previews.set(event, text); }
  return text;
}
