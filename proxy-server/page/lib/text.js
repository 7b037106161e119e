// Text of agents, made harmless: what could hide, reorder or drive a screen is shown, or left out.

// Escape sequences of terminals: CSI, OSC and others with a string, two-character ones.
// eslint-disable-next-line no-control-regex
const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\u0007\u001b]{0,4096}(?:\u0007|\u001b\\)?|[ -/]*[0-~])|\u009b[0-?]*[ -/]*[@-~]/g;
// Controls, bidirectional controls, invisible spaces and tag characters.
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

function shown(character) {
  const code = character.codePointAt(0);
  if (code === 13) return "";
  if (code < 32) return String.fromCharCode(0x2400 + code);
  if (code === 127) return "\u2421";
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

/** Returns text without escape sequences, and with a sign for each hidden character; at most `limit` characters. */
export function safe(text, limit = 100_000) {
  let value = text === null || text === undefined ? "" : String(text);
  if (value.length > limit) value = `${value.slice(0, limit - 1)}…`;
  return value.replace(ANSI, "").replace(HIDDEN, shown);
}

/** Returns text with a sign for each hidden character and nothing left out: what somebody allows is shown as it is. */
export const exact = (text) => String(text ?? "").replace(/\r/g, "\u240d").replace(HIDDEN, shown);

/** True for a text in which nothing hides: what is offered to be chosen is taken as it is. */
export const isPlain = (text) => safe(text) === text;

/** Address of a link that may be followed; null for any other. */
export function link(address) {
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const bytesUnits = ["B", "KiB", "MiB", "GiB", "TiB"];
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < 4) { value /= 1024; unit++; }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${bytesUnits[unit]}`;
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10_000) return value.toLocaleString("en");
  return value < 1_000_000 ? `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)}k` : `${(value / 1_000_000).toFixed(1)}M`;
}

export function cost(value) {
  if (value === null || value === undefined) return "–";
  return `$${value < 1 ? value.toFixed(4).replace(/00$/, "") : value.toFixed(2)}`;
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

/** Length of time from milliseconds: `3.2 s`, `5 min`, `2 h`. */
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes < 60) return `${Math.floor(minutes)} min`;
  const hours = minutes / 60;
  return hours < 48 ? `${Math.floor(hours)} h ${Math.floor(minutes % 60)} min` : `${Math.floor(hours / 24)} d`;
}

/** The same without parts of a second, for ages that are shown live. */
export function age(ms) {
  return ms < 60_000 ? `${Math.max(0, Math.floor(ms / 1000))} s` : span(ms);
}

export function clock(time) {
  const date = new Date(time);
  const two = (value) => String(value).padStart(2, "0");
  return Number.isNaN(date.getTime()) ? "–" : `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** First lines of JSON, or of anything else, for people. */
export function pretty(value) {
  if (typeof value === "string") return value;
  try {
    return JSON.stringify(value, null, 2) ?? "";
  } catch {
    return String(value);
  }
}
