// The address: `#/`, `#/machine`, `#/session/ID/TAB?name=value`. All of it is behind `#`: no server knows these paths.
import { signal } from "./ui.js";

function parse() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, id, tab] = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const values = Object.fromEntries(new URLSearchParams(query));
  if (view === "session" && id) return { view: "session", id, tab: tab || "conversation", query: values };
  return { view: view === "machine" ? "machine" : "sessions", query: values };
}

export const route = signal(parse());
addEventListener("hashchange", () => { route.value = parse(); });

export function go(hash) {
  location.hash = hash;
}

export const sessionLink = (id, tab) => `#/session/${encodeURIComponent(id)}${tab ? `/${tab}` : ""}`;
