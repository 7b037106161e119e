// The form that starts a session, with what this machine offers.
import { html, useEffect, useLayoutEffect, useRef, useState, Dialog, Copy } from "../lib/ui.js";
import { post, segment } from "../lib/api.js";
import { offers, doctor, loadOffers, refresh, sessions, valuesOf } from "../lib/state.js";
import { go, sessionLink } from "../lib/route.js";
import { remembered, remember } from "../lib/settings.js";
import { isPlain, safe } from "../lib/text.js";

const LAST = "agent-proxy-start";
const MODES = [["ask", "Ask me"], ["readOnly", "Allow reading, deny the rest"], ["allow", "Allow everything"], ["deny", "Deny everything"]];
const SANDBOXES = [["", "none, or the profile's"], ["workspace", "writes its directory alone"], ["read-only", "writes nothing"]];
const WORKSPACES = [["", "itself, or the profile's"], ["worktree", "a git worktree"], ["copy", "a copy"], ["overlay", "a layer over it"]];
const NETWORKS = [["", "the machine's, or the profile's"], ["off", "none"], ["allow", "these hosts alone"]];
const CONTAINMENTS = [["", "as the daemon has it"], ["auto", "auto: a cgroup if there is one"], ["baseline", "baseline"], ["cgroup", "cgroup"], ["strict", "strict: own namespaces"]];

/** Splits a command line as a shell does its simplest case: words, with quotes. */
export function words(line) {
  const out = [];
  for (const [, double, single, plain] of line.matchAll(/"((?:\\.|[^"\\])*)"|'([^']*)'|(\S+)/g)) out.push(double !== undefined ? double.replace(/\\(.)/g, "$1") : single ?? plain);
  return out;
}

/** Reads a size or a time of people: `2G`, `512M`; `10m`, `90s`, `2h`. */
export function amount(text, units) {
  if (!text.trim()) return null;
  const [, number, unit = ""] = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text) ?? [];
  const factor = units[unit.toLowerCase()];
  if (number === undefined || factor === undefined) throw new Error(`${text.trim()} is no amount: as in ${Object.keys(units).filter(Boolean).map((name) => `10${name}`).join(", ")}`);
  return Math.round(Number(number) * factor);
}

const SIZES = { "": 2 ** 20, k: 2 ** 10, kib: 2 ** 10, m: 2 ** 20, mib: 2 ** 20, g: 2 ** 30, gib: 2 ** 30 };
const TIMES = { "": 60_000, s: 1000, m: 60_000, min: 60_000, h: 3_600_000 };

function configOf(form, agent) {
  const text = (name) => String(form.get(name) ?? "").trim() || undefined;
  const config = { agent: agent.id };
  const put = (name, value) => { if (value !== undefined && value !== null && value !== "") config[name] = value; };
  if (text("command")) config.command = words(text("command"));
  for (const [field, name] of [["sessionId", "id"], ["cwd", "cwd"], ["model", "model"], ["mode", "mode"], ["thinking", "thinking"], ["profile", "profile"], ["modelConfig", "modelConfig"], ["userId", "user"], ["surface", "surface"]]) put(field, text(name));
  if (config.surface === "machine") delete config.surface;
  if (config.surface === "terminal") { config.terminal = {}; delete config.surface; }
  put("containment", text("containment"));
  if (text("permissions") && text("permissions") !== "ask") put("permissionMode", text("permissions"));
  // The first rule that matches decides: what is denied stays denied.
  const rules = ["deny", "allow"].flatMap((decision) => (text(decision) ?? "").split("\n").map((line) => line.trim()).filter(Boolean).map((command) => ({ command, decision })));
  if (rules.length) config.permissions = { rules };
  if (text("sandbox")) config.sandbox = { mode: text("sandbox") };
  if (text("network") === "off") config.sandbox = { ...config.sandbox, network: "off" };
  if (text("network") === "allow") config.sandbox = { ...config.sandbox, network: { allow: (text("hosts") ?? "").split(/[\s,]+/).filter(Boolean) } };
  put("workspace", text("workspace"));
  if (text("title")) config.lifecycle = { title: text("title") };
  const limits = {};
  const memory = amount(text("memory") ?? "", SIZES);
  const wall = amount(text("wall") ?? "", TIMES);
  if (memory) limits.memoryBytes = memory;
  if (wall) limits.wallClockMs = wall;
  if (text("processes")) limits.processes = Number(text("processes"));
  if (text("cpu")) limits.cpuPercent = Number(text("cpu"));
  if (Object.keys(limits).length) config.limits = limits;
  if (form.get("ownHome")) config.home = "own";
  return config;
}

export function StartForm({ onClose }) {
  const found = offers.value;
  useEffect(() => { loadOffers(); }, []);
  const [chosen, setChosen] = useState(remembered(`${LAST}-agent`));
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const [network, setNetwork] = useState("");
  const first = useRef(null);
  // The dialog was there before what it offers.
  useLayoutEffect(() => first.current?.focus(), [Boolean(found)]);
  if (!found) return html`<${Dialog} title="New session" onClose=${onClose}><p aria-busy="true">Looking for agents…</p><//>`;
  const agents = found.agents.filter((agent) => agent.enabled !== false);
  const usable = agents.filter((agent) => agent.usable || agent.anyProgram);
  const missing = agents.filter((agent) => !usable.includes(agent));
  const agent = agents.find((one) => one.id === chosen) ?? usable[0] ?? agents[0];
  const layer = (name) => (doctor.value || []).find((check) => check.name === name || check.name === `${name} layer`);
  const directories = [...new Set([...sessions.value.values()].map((session) => session.cwd).filter((path) => path && isPlain(path)))].slice(0, 20);

  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setProblem(null);
    setBusy(true);
    try {
      const config = configOf(form, agent);
      const session = await post("v1/sessions", config, { timeout: 120_000 });
      remember(`${LAST}-agent`, agent.id);
      remember(`${LAST}-cwd`, String(form.get("cwd") ?? ""));
      if (agent.anyProgram) remember(`${LAST}-command-${agent.id}`, String(form.get("command") ?? ""));
      const prompt = String(form.get("prompt") ?? "").trim();
      // Until the next list says more, it is known as it was started.
      sessions.value = new Map(sessions.value).set(session.sessionId, session);
      refresh();
      go(sessionLink(session.sessionId, config.terminal ? "terminal" : undefined));
      if (prompt) await post(`v1/sessions/${segment(session.sessionId)}/prompt`, { text: prompt, mode: "queue" });
    } catch (error) {
      setProblem(error.message);
    }
    setBusy(false);
  };
  return html`<${Dialog} title="New session" onClose=${onClose} wide>
    <form class="start" onSubmit=${submit}>
      <div class="fields">
        <label class="field"><span>Agent</span><select name="agent" ref=${first} value=${agent?.id} onChange=${(event) => setChosen(event.target.value)}>
          <optgroup label="Ready">${usable.map((one) => html`<option value=${one.id}>${safe(one.title ?? one.id, 60)}${one.version ? ` ${safe(one.version, 20)}` : ""}</option>`)}</optgroup>
          ${missing.length > 0 && html`<optgroup label="Not installed">${missing.map((one) => html`<option value=${one.id}>${safe(one.title ?? one.id, 60)}</option>`)}</optgroup>`}</select></label>
        <label class="field"><span>Title</span><input name="title" type="text" maxlength="200" placeholder="optional"/></label>
      </div>
      ${agent && !usable.includes(agent) && html`<div class="hint" role="status"><p>${(agent.missing ?? []).map((line) => html`${safe(line, 300)}. `)}</p>
        ${agent.install && html`<p class="row"><code class="grow">${safe(agent.install, 300)}</code><${Copy} text=${agent.install} label="Copy the command that installs it"/></p>`}</div>`}
      ${agent?.anyProgram && html`<label class="field"><span>Command</span><input name="command" type="text" required class="mono" spellcheck="false" defaultValue=${remembered(`${LAST}-command-${agent.id}`) ?? ""} placeholder="program argument …"/></label>`}
      <label class="field"><span>Directory</span><input name="cwd" type="text" class="mono" list="directories" spellcheck="false" defaultValue=${remembered(`${LAST}-cwd`) ?? ""} placeholder="the daemon's own"/></label>
      <datalist id="directories">${directories.map((path) => html`<option value=${path}/>`)}</datalist>
      <label class="field"><span>First prompt</span><textarea name="prompt" rows="3" placeholder="optional"></textarea></label>
      <div class="fields">
        <label class="field"><span>Permissions</span><select name="permissions">${MODES.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></label>
        <label class="field"><span>Profile</span><select name="profile"><option value="">none</option>${found.profiles.filter((profile) => !profile.computed).map((profile) => html`<option value=${profile.name}>${safe(profile.name, 60)}</option>`)}</select></label>
        <label class="field"><span>Model configuration</span><select name="modelConfig"><option value="">the agent's own</option>${found.models.map((model) => html`<option value=${model.name}>${safe(`${model.name} (${model.provider})`, 80)}</option>`)}</select></label>
      </div>
      <details><summary>Model, limits, containment, rules</summary>
        <div class="fields">
          <label class="field"><span>Model</span><input name="model" type="text" list="models" spellcheck="false" placeholder=${safe(agent?.defaultModel ?? "the agent's choice", 60)}/></label>
          <label class="field"><span>Mode</span><input name="mode" type="text" list="modes" spellcheck="false" placeholder="the agent's choice"/></label>
          <label class="field"><span>Thinking</span><input name="thinking" type="text" list="levels" spellcheck="false" placeholder="the agent's choice"/></label>
          ${[["models", "model", [agent?.defaultModel]], ["modes", "mode", ["build", "plan"]], ["levels", "thinking", ["off", "low", "medium", "high"]]].map(([list, name, usual]) => html`<datalist id=${list}>${valuesOf(agent?.id, name, usual).map((value) => html`<option value=${value}/>`)}</datalist>`)}
          <label class="field"><span>Memory</span><input name="memory" type="text" placeholder="no limit, or 2G"/></label>
          <label class="field"><span>Processes</span><input name="processes" type="number" min="1" placeholder="no limit"/></label>
          <label class="field"><span>CPU, % of a core</span><input name="cpu" type="number" min="1" placeholder="no limit"/></label>
          <label class="field"><span>Time</span><input name="wall" type="text" placeholder="no limit, or 30m"/></label>
          <label class="field"><span>Containment</span><select name="containment">${CONTAINMENTS.map(([value, title]) => html`<option value=${value} disabled=${layer(value)?.verdict === "missing"}>${title}${layer(value)?.verdict === "missing" ? " (not on this machine)" : ""}</option>`)}</select></label>
          <label class="field"><span>Sandbox of its files</span><select name="sandbox">${SANDBOXES.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></label>
          <label class="field"><span>Network</span><select name="network" onChange=${(event) => setNetwork(event.target.value)}>${NETWORKS.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></label>
          ${network === "allow" && html`<label class="field"><span>Hosts</span><input name="hosts" type="text" required class="mono" spellcheck="false" placeholder="api.example.com *.npmjs.org"/></label>`}
          <label class="field"><span>Works in the directory as</span><select name="workspace">${WORKSPACES.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></label>
          <label class="field"><span>Driven by</span><select name="surface"><option value="machine">its protocol</option><option value="terminal">a terminal</option><option value="both">both at once</option></select></label>
          <label class="field"><span>User</span><input name="user" type="text" placeholder="optional"/></label>
          <label class="field"><span>Id</span><input name="id" type="text" spellcheck="false" pattern="[A-Za-z0-9._\\-]+" placeholder="a new one"/></label>
          <label class="check"><input type="checkbox" name="ownHome"/> A home of its own</label>
        </div>
        <div class="fields">
          <label class="field"><span>Allowed commands, one in a line</span><textarea name="allow" rows="2" class="mono" spellcheck="false" placeholder="cargo test*"></textarea></label>
          <label class="field"><span>Denied commands</span><textarea name="deny" rows="2" class="mono" spellcheck="false" placeholder="git push*"></textarea></label>
        </div></details>
      ${problem && html`<p class="error" role="alert">${safe(problem, 1000)}</p>`}
      <div class="row end foot"><button type="button" onClick=${onClose}>Cancel</button><button type="submit" class="primary" disabled=${busy || !agent}>${busy ? "Starting…" : "Start"}</button></div>
    </form><//>`;
}
