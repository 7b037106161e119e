// Keys of the page. A view adds its own for as long as it is shown. While somebody types, only those with Alt or Control count.
import { useEffect } from "./ui.js";

const table = new Map();
let prefix = "";
let prefixTimer = null;

export const keys = {
  /** Adds a key: `n`, `g s` (one after the other), `alt+a`. Returns what removes it. */
  add(key, title, action) {
    const entry = { key, title, action };
    table.set(key, [...(table.get(key) ?? []), entry]);
    return () => {
      const rest = (table.get(key) ?? []).filter((other) => other !== entry);
      if (rest.length) table.set(key, rest);
      else table.delete(key);
    };
  },
  list: () => [...table.values()].map((entries) => entries[entries.length - 1]),
};

/** Adds keys for as long as a component is shown: `[key, title, action]` each. */
export function useKeys(entries, depends) {
  useEffect(() => {
    const removers = entries.filter(Boolean).map(([key, title, action]) => keys.add(key, title, action));
    return () => removers.forEach((remove) => remove());
  }, depends);
}

const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable], .xterm");

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.isComposing) return;
  if (isTyping(event.target) && !event.altKey) return;
  if (document.querySelector("dialog[open]") && event.key !== "?") return;
  let key = event.altKey ? `alt+${event.code.replace(/^(Key|Digit)/, "").toLowerCase()}` : event.key;
  if (prefix) {
    key = `${prefix} ${key}`;
    clearTimeout(prefixTimer);
    prefix = "";
  } else if ([...table.keys()].some((known) => known.startsWith(`${key} `))) {
    prefix = key;
    prefixTimer = setTimeout(() => { prefix = ""; }, 1200);
    return;
  }
  const entries = table.get(key);
  if (!entries) return;
  event.preventDefault();
  entries[entries.length - 1].action(event);
});
