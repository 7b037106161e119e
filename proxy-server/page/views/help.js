// The keys, and the few settings that this browser has.
import { html, Dialog } from "../lib/ui.js";
import { caller, hasToken, logout } from "../lib/api.js";
import { keys } from "../lib/keys.js";

export function Help({ onClose, notifications, onNotify, name, onName }) {
  return html`<${Dialog} title="Keys and settings" onClose=${onClose}>
    <dl class="keys">${keys.list().map(({ key, title }) => html`<div key=${key}><dt>${key.split(" ").map((part) => html`<kbd>${part.replace("alt+", "Alt ").replace("ArrowDown", "↓").replace("ArrowUp", "↑")}</kbd> `)}</dt><dd>${title}</dd></div>`)}
      <div><dt><kbd>Enter</kbd></dt><dd>Send the prompt; with Shift a new line</dd></div>
      <div><dt><kbd>Esc</kbd></dt><dd>Close a dialog; leave the prompt</dd></div></dl>
    <h3>This browser</h3>
    <label class="field"><span>Your name, beside your answers</span>
      <input type="text" value=${name} maxlength="80" autocomplete="nickname" onChange=${(event) => onName(event.target.value)}/></label>
    ${notifications === "default" && html`<p><button type="button" onClick=${onNotify}>Notify me when an agent asks</button></p>`}
    ${notifications === "granted" && html`<p class="dim">Notifications are on. Your browser turns them off.</p>`}
    ${notifications === "denied" && html`<p class="dim">Your browser does not let this page notify you.</p>`}
    ${(hasToken() || caller.value) && html`<p class="phone-only"><button type="button" onClick=${logout}>Log out</button></p>`}
  <//>`;
}
