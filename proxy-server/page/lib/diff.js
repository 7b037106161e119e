// Two texts as a list of changes, line by line.
import { html, Component } from "./ui.js";
import { safe, exact } from "./text.js";

/** Lines around a change. */
const CONTEXT = 3;
/** Most steps of the search for the shortest list; beyond it all between the first and the last change counts as changed. */
const MAX_STEPS = 1200;
/** Most characters of a line that are drawn. */
const MAX_CHARACTERS = 20_000;
const cut = (line) => line.length > MAX_CHARACTERS ? `${exact(line.slice(0, MAX_CHARACTERS))} … ${line.length - MAX_CHARACTERS} more characters` : exact(line);
/** Most lines that are drawn at once. */
const MAX_LINES = 400;

/** Returns `[sign, text]` for each line: ` `, `-` or `+`. */
export function changes(before, after) {
  const old = before === null || before === undefined || before === "" ? [] : before.replace(/\n$/, "").split("\n");
  const fresh = after === null || after === undefined || after === "" ? [] : after.replace(/\n$/, "").split("\n");
  let head = 0;
  while (head < old.length && head < fresh.length && old[head] === fresh[head]) head++;
  let tail = 0;
  while (tail < old.length - head && tail < fresh.length - head && old[old.length - 1 - tail] === fresh[fresh.length - 1 - tail]) tail++;
  const middle = shortest(old.slice(head, old.length - tail), fresh.slice(head, fresh.length - tail));
  return [
    ...old.slice(0, head).map((line) => [" ", line]),
    ...middle,
    ...old.slice(old.length - tail).map((line) => [" ", line]),
  ];
}

/** Myers' search. */
function shortest(old, fresh) {
  const whole = () => [...old.map((line) => ["-", line]), ...fresh.map((line) => ["+", line])];
  if (!old.length || !fresh.length) return whole();
  const max = Math.min(old.length + fresh.length, MAX_STEPS);
  let reach = new Map([[1, 0]]);
  const trace = [];
  for (let step = 0; step <= max; step++) {
    trace.push(new Map(reach));
    for (let k = -step; k <= step; k += 2) {
      let x = k === -step || (k !== step && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1)) ? reach.get(k + 1) ?? 0 : (reach.get(k - 1) ?? 0) + 1;
      let y = x - k;
      while (x < old.length && y < fresh.length && old[x] === fresh[y]) { x++; y++; }
      reach.set(k, x);
      if (x >= old.length && y >= fresh.length) return back(trace, old, fresh);
    }
  }
  return whole();
}

function back(trace, old, fresh) {
  const out = [];
  let x = old.length;
  let y = fresh.length;
  for (let step = trace.length - 1; step >= 0; step--) {
    const reach = trace[step];
    const k = x - y;
    const from = k === -step || (k !== step && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1)) ? k + 1 : k - 1;
    const px = step === 0 ? 0 : reach.get(from) ?? 0;
    const py = step === 0 ? 0 : px - from;
    while (x > px && y > py && x > 0 && y > 0 && old[x - 1] === fresh[y - 1]) { out.push([" ", old[x - 1]]); x--; y--; }
    if (step > 0) {
      if (x === px) { out.push(["+", fresh[y - 1]]); y--; } else { out.push(["-", old[x - 1]]); x--; }
    }
  }
  return out.reverse();
}

/** Leaves out what is far from any change; `null` is a gap. */
function near(lines) {
  const keep = new Uint8Array(lines.length);
  lines.forEach(([sign], at) => {
    if (sign === " ") return;
    for (let other = Math.max(0, at - CONTEXT); other <= Math.min(lines.length - 1, at + CONTEXT); other++) keep[other] = 1;
  });
  const out = [];
  lines.forEach((line, at) => {
    if (keep[at]) out.push(line);
    else if (out.length && out[out.length - 1] !== null) out.push(null);
  });
  if (out[out.length - 1] === null) out.pop();
  return out;
}

/** Change of a file. */
export class Diff extends Component {
  shouldComponentUpdate(next, state) {
    return next.before !== this.props.before || next.after !== this.props.after || next.path !== this.props.path || state.all !== this.state.all;
  }
  render({ path, before, after }, { all }) {
    const lines = changes(before, after);
    const added = lines.filter(([sign]) => sign === "+").length;
    const removed = lines.filter(([sign]) => sign === "-").length;
    const close = near(lines);
    const shown = all ? close : close.slice(0, MAX_LINES);
    return html`<figure class="code diff"><figcaption><bdi class="line">${safe(path, 300)}</bdi>
        <span><span class="added">+${added}</span> <span class="removed">−${removed}</span></span></figcaption>
      <pre tabindex="0" aria-label=${`Change of ${safe(path, 200)}`}>${shown.map((line) => line === null
        ? html`<div class="gap">⋯</div>`
        : html`<div class=${line[0] === "+" ? "plus" : line[0] === "-" ? "minus" : ""}><span class="sign">${line[0]}</span>${cut(line[1])}${"\n"}</div>`)}</pre>
      ${shown.length < close.length && html`<button type="button" class="quiet small" onClick=${() => this.setState({ all: true })}>Show ${close.length - shown.length} more lines</button>`}</figure>`;
  }
}
