// Settings of this browser: the theme, and the name under which its user answers.
import { signal } from "./ui.js";

const THEME = "agent-proxy-theme";
const NAME = "agent-proxy-name";

function stored(key) {
  try { return localStorage.getItem(key); } catch { return null; }
}

function store(key, value) {
  try { localStorage.setItem(key, value); } catch { /* Private windows may have no storage. */ }
}

export const theme = signal(stored(THEME) ?? "auto");
export const name = signal(stored(NAME) ?? "");

function apply() {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}
apply();

export function switchTheme() {
  theme.value = { auto: "dark", dark: "light", light: "auto" }[theme.value];
  store(THEME, theme.value);
  apply();
}

export function setName(value) {
  name.value = value.trim().slice(0, 80);
  store(NAME, name.value);
}

export const remembered = stored;
export const remember = store;
