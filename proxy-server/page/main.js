// The page: which view is shown, what is around it, and the keys.
import { html, render, effect, signal, toasts, Question } from "./lib/ui.js";
import { caller, loginNeeded, logout, online, hasToken, whoami } from "./lib/api.js";
import { openPermissions, start, sessions, listError, loaded, titleOf } from "./lib/state.js";
import { theme, switchTheme, name, setName } from "./lib/settings.js";
import { route, go } from "./lib/route.js";
import { keys } from "./lib/keys.js";
import { notifications, askForNotifications, watchPermissions } from "./lib/notify.js";
import { Sessions } from "./views/sessions.js";
import { safe } from "./lib/text.js";

// The list of sessions is there at once. What is behind it comes when it is first wanted, or when the browser has nothing else to do.
const parts = [];
function lazy(load) {
  const part = signal(null);
  const failed = signal(null);
  let asked = null;
  const start = () => { asked ??= load().then((component) => { part.value = () => component; }, (error) => { asked = null; failed.value = error.message; }); };
  parts.push(start);
  return (props) => {
    if (part.value) return html`<${part.value()} ...${props}/>`;
    start();
    return html`<p class="empty" aria-busy="true">${failed.value ? `A part of the page could not be loaded: ${failed.value}` : "Loading…"}</p>`;
  };
}
const Session = lazy(async () => (await import("./views/session.js")).Session);
const StartForm = lazy(async () => (await import("./views/start.js")).StartForm);
const Machine = lazy(async () => (await import("./views/machine.js")).Machine);
const OpenPermissions = lazy(async () => (await import("./views/permissions.js")).OpenPermissions);
const Help = lazy(async () => (await import("./views/help.js")).Help);
const Login = lazy(async () => (await import("./views/login.js")).Login);

export const help = signal(false);
const inbox = signal(false);

function Head() {
  const { view } = route.value;
  const open = openPermissions.value.length;
  const current = (is) => (is ? { "aria-current": "page" } : {});
  return html`<header class="top">
    <a class="brand" href="#/" aria-label="agent-proxy: sessions"><span class="mark" aria-hidden="true"></span><span class="brand-name">agent-proxy</span></a>
    <nav aria-label="Main">
      <a href="#/" ...${current(view === "sessions" || view === "session")}>Sessions</a>
      <a href="#/machine" ...${current(view === "machine")}>Machine</a>
    </nav>
    <span class="spacer"></span>
    ${!online.value && html`<span class="lost" role="status">No connection; trying again…</span>`}
    ${open > 0 && html`<button type="button" class="badge-button" aria-expanded=${inbox.value} onClick=${() => { inbox.value = !inbox.value; }}>
      <span class="badge">${open}</span> <span class="wide-only">${open === 1 ? "question" : "questions"}</span><span class="sr"> of agents wait for an answer</span></button>`}
    ${caller.value && html`<span class="who wide-only" title=${`role: ${caller.value.role}`}>${safe(caller.value.user ?? caller.value.name, 40)}</span>`}
    <button type="button" class="quiet icon" aria-label=${`Theme: ${theme.value}. Switch.`} title=${`Theme: ${theme.value}`} onClick=${switchTheme}>${{ auto: "◐", dark: "●", light: "○" }[theme.value]}</button>
    <button type="button" class="quiet icon" aria-label="Keys and settings" title="Keys (?)" onClick=${() => { help.value = true; }}>?</button>
    ${(hasToken() || caller.value) && html`<button type="button" class="quiet wide-only" onClick=${logout}>Log out</button>`}
  </header>`;
}

function View() {
  const { view, id, tab, query } = route.value;
  if (view === "session") return html`<${Session} key=${id} id=${id} tab=${tab} query=${query}/>`;
  if (view === "machine") return html`<${Machine}/>`;
  return html`<${Sessions}/>`;
}

function Page() {
  if (loginNeeded.value) return html`<${Login}/>`;
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
    <${Head}/>
    ${inbox.value && openPermissions.value.length > 0 && html`<${OpenPermissions} onClose=${() => { inbox.value = false; }}/>`}
    ${listError.value && loaded.value && html`<p class="strip strip-warn" role="status">${safe(listError.value)}. What is shown may be old.</p>`}
    <main id="main" tabindex="-1"><${View}/></main>
    ${route.value.query.new !== undefined && html`<${StartForm} onClose=${() => go(location.hash.split("?")[0])}/>`}
    ${help.value && html`<${Help} onClose=${() => { help.value = false; }} notifications=${notifications.value} onNotify=${askForNotifications} name=${name.value} onName=${setName}/>`}
    <${Question}/>
    <div class="toasts" role="status" aria-live="polite">${toasts.value.map((toast) => html`<div key=${toast.id} class=${`toast toast-${toast.kind}`}>${safe(toast.text, 400)}</div>`)}</div>`;
}

keys.add("?", "Keys", () => { help.value = !help.value; });
keys.add("g s", "Go to the sessions", () => go("#/"));
keys.add("g m", "Go to the machine", () => go("#/machine"));
keys.add("n", "New session", () => go(`${location.hash.split("?")[0] || "#/"}?new`));
keys.add("t", "Switch the theme", switchTheme);
keys.add("p", "Open questions of agents", () => { inbox.value = !inbox.value; });

effect(() => {
  const open = openPermissions.value.length;
  const { view, id } = route.value;
  const session = view === "session" ? sessions.value.get(id) : null;
  const what = session ? safe(titleOf(session) ?? id, 60) : view === "machine" ? "Machine" : "Sessions";
  document.title = `${open ? `(${open}) ` : ""}${what} · agent-proxy`;
});
effect(() => { if (!loginNeeded.value) whoami(); });

if (route.value.view === "session") parts[0]();
watchPermissions();
start();
const root = document.getElementById("page");
root.textContent = "";
render(html`<${Page}/>`, root);
setTimeout(() => (globalThis.requestIdleCallback ?? setTimeout)(() => parts.forEach((part) => part())), 1500);
