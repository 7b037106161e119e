// The machine: how the daemon is, what this system offers, which agents are there, and the metrics at a glance.
import { html, useEffect, useState, Copy } from "../lib/ui.js";
import { get, call } from "../lib/api.js";
import { offers, doctor, loadDoctor, loadOffers, sessions, isLive, fleet } from "../lib/state.js";
import { sessionLink } from "../lib/route.js";
import { safe, bytes, count, cost, span } from "../lib/text.js";
import { reasonText } from "../lib/conversation.js";

/** Reads OpenMetrics text: sums by name, over all labels. */
export function readMetrics(text) {
  const sums = new Map();
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const found = /^([a-z_:][\w:]*)(?:\{[^}]*\})? (\S+)/i.exec(line);
    if (found && !found[1].endsWith("_bucket")) sums.set(found[1], (sums.get(found[1]) ?? 0) + Number(found[2]));
  }
  return sums;
}

function useEvery(ms, work) {
  useEffect(() => {
    let stopped = false;
    let timer = null;
    const round = async () => { if (!document.hidden) await work().catch(() => null); if (!stopped) timer = setTimeout(round, ms); };
    round();
    return () => { stopped = true; clearTimeout(timer); };
  }, []);
}

export function Machine() {
  const [health, setHealth] = useState(null);
  const [metrics, setMetrics] = useState(null);
  useEvery(3000, async () => {
    setHealth(await get("v1/health"));
    const text = await call("GET", "metrics", { accept: "text/plain, */*" }).catch(() => null);
    setMetrics(typeof text === "string" ? readMetrics(text) : null);
  });
  useEffect(() => { loadOffers(); if (!doctor.value) loadDoctor(); }, []);
  return html`<section class="machine" aria-label="Machine">
    <h1>Machine</h1>
    <${Health} health=${health}/>
    <${Nodes}/>
    <${Glance} metrics=${metrics}/>
    <${Doctor}/>
    <${Agents}/>
    <${Recovered}/>
  </section>`;
}

function Health({ health }) {
  if (!health) return html`<p class="dim" aria-busy="true">Asking the daemon…</p>`;
  const bad = [...(health.degraded ?? []), ...(health.damaged ?? [])];
  return html`<section aria-labelledby="health"><h2 id="health">Daemon</h2>
    <p><span class=${`state ${bad.length ? "state-failed" : "state-idle"}`}>${bad.length ? "degraded" : "well"}</span>${" "}
      version ${safe(health.version, 40)} · pid ${health.pid} · ${health.sessions} ${health.sessions === 1 ? "session" : "sessions"}${health.waiting ? ` · ${health.waiting} starts wait` : ""}</p>
    ${bad.map((line) => html`<p class="error">${safe(line, 500)}</p>`)}</section>`;
}

/** Nodes of the fleet, where this daemon is one of them. */
function Nodes() {
  if (!fleet.value) return null;
  const verdict = (node) => node.presence !== "alive" ? ["missing", `✗ ${node.presence}`] : node.draining ? ["info", "· draining"] : ["ok", "✓ alive"];
  const labels = (node) => Object.entries(node.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(" ");
  return html`<section aria-labelledby="nodes"><h2 id="nodes">Nodes of the fleet</h2><div class="table-scroll" tabindex="0" role="region" aria-label="Table of the nodes"><table class="plain"><thead><tr><th scope="col">Node</th><th scope="col">State</th><th scope="col">Sessions</th><th scope="col">Last beat</th><th scope="col">Labels, agents, layers</th><th scope="col">Version, addresses</th></tr></thead>
    <tbody>${fleet.value.nodes.map((node) => html`<tr key=${node.node}><td><strong>${safe(node.node, 64)}</strong>${node.isSelf && html` <span class="dim">this one</span>`}</td>
      <td><span class=${`verdict verdict-${verdict(node)[0]}`}>${verdict(node)[1]}</span></td>
      <td>${count(node.sessions)}${node.capacity ? ` of ${count(node.capacity)}` : ""}${node.backlog > 0 && html`<div class="dim">${count(node.backlog)} events wait</div>`}</td>
      <td>${span(node.silentSeconds * 1000)} ago</td>
      <td>${labels(node) && html`<div>${safe(labels(node), 300)}</div>`}<div class="dim">${safe((node.agents ?? []).join(" "), 300)}</div><div class="dim">${safe((node.layers ?? []).join(" "), 100)}</div></td>
      <td>${safe(node.version, 40)}${(node.addresses ?? []).map((address) => html`<div><code>${safe(address, 200)}</code></div>`)}</td></tr>`)}</tbody></table></div></section>`;
}

function Glance({ metrics }) {
  if (!metrics) return null;
  const value = (name) => metrics.get(`agent_proxy_${name}`) ?? metrics.get(`agent_proxy_${name}_total`) ?? 0;
  const kills = value("kill_seconds_count");
  const figures = [
    ["Sessions", count(value("sessions"))], ["Processes", count(value("processes"))], ["Memory", bytes(value("memory_bytes"))],
    ["Turns", count(value("turns"))], ["Tokens", count(value("tokens"))], ["Cost", cost(value("cost_usd"))],
    ["Kills", count(value("kills"))], ["A kill takes", kills ? span((value("kill_seconds_sum") / kills) * 1000) : "–"], ["Killed processes", count(value("killed_processes"))],
    ["Had left their group", count(value("escapees"))], ["Survivors", count(value("survivors")), value("survivors") > 0], ["Kills without proof", count(value("unproven_kills")), value("unproven_kills") > 0],
    ["Open questions", count(value("open_permissions"))], ["Waiting prompts", count(value("queued_prompts"))], ["Gaps", count(value("gaps"))], ["Refused requests", count(value("denied_requests"))],
  ];
  return html`<section aria-labelledby="figures"><h2 id="figures">Since the daemon began</h2><dl class="figures">${figures.map(([title, text, bad]) => html`<div key=${title} class=${bad ? "bad" : ""}><dt>${title}</dt><dd>${text}</dd></div>`)}</dl></section>`;
}

function Doctor() {
  const list = doctor.value;
  if (list === null) return html`<section aria-labelledby="doctor"><h2 id="doctor">System</h2><p class="dim" aria-busy="true">Checking, with sessions of its own…</p></section>`;
  if (!list) return html`<section aria-labelledby="doctor"><h2 id="doctor">System</h2><p class="dim">This server does not tell. <code>agent-proxy doctor</code> does.</p></section>`;
  return html`<section aria-labelledby="doctor"><div class="row"><h2 id="doctor">System</h2><button type="button" class="quiet small" onClick=${loadDoctor}>Check again</button></div><div class="table-scroll" tabindex="0" role="region" aria-label="Table of the checks"><table class="plain"><thead><tr><th scope="col">Check</th><th scope="col">Verdict</th><th scope="col">Found</th></tr></thead>
    <tbody>${list.map((check) => html`<tr><td>${safe(check.name, 60)}</td><td><span class=${`verdict verdict-${check.verdict}`}>${check.verdict === "ok" ? "✓ ok" : check.verdict === "missing" ? (check.needed ? "✗ missing" : "– missing") : "· note"}</span></td>
      <td>${safe(check.found, 400)}${check.advice && html`<div class="dim">${safe(check.advice, 600)}</div>`}</td></tr>`)}</tbody></table></div></section>`;
}

function Agents() {
  const list = offers.value?.agents;
  if (!list) return null;
  const sorted = [...list].sort((a, b) => Number(b.usable) - Number(a.usable));
  return html`<section aria-labelledby="agents"><h2 id="agents">Agents</h2><div class="table-scroll" tabindex="0" role="region" aria-label="Table of the agents"><table class="plain"><thead><tr><th scope="col">Agent</th><th scope="col">State</th><th scope="col">Where, or how to get it</th></tr></thead>
    <tbody>${sorted.map((agent) => html`<tr><td><strong>${safe(agent.title ?? agent.id, 60)}</strong> <span class="dim">${safe(agent.id, 40)}</span><div class="dim">${safe(agent.description, 200)}</div></td>
      <td><span class=${`verdict verdict-${agent.usable ? "ok" : agent.anyProgram ? "info" : "missing"}`}>${agent.usable ? "✓ ready" : agent.anyProgram ? "· any program" : "– missing"}</span>${agent.version && html`<div class="dim">${safe(agent.version, 40)}${agent.untried ? " (not tried)" : ""}</div>`}</td>
      <td>${agent.path ? html`<code>${safe(agent.path, 300)}</code>` : (agent.missing ?? []).map((line) => html`<div>${safe(line, 300)}</div>`)}
        ${!agent.usable && agent.install && html`<div class="row"><code>${safe(agent.install, 300)}</code><${Copy} text=${agent.install} label=${`Copy the command that installs ${safe(agent.title, 40)}`}/></div>`}</td></tr>`)}</tbody></table></div></section>`;
}

/** Sessions whose supervisors died with them, and those that wait to be resumed. */
function Recovered() {
  const list = [...sessions.value.values()].filter((session) => !isLive(session));
  const reason = (session) => Object.values(typeof session.state === "object" && session.state ? session.state : {})[0]?.reason;
  const lost = list.filter((session) => { const why = reason(session); return ["hostDied", "forkServerDied"].includes(why) || (why && typeof why === "object" && "proxyDied" in why); });
  return html`<section aria-labelledby="recovered"><h2 id="recovered">Recovered after a crash</h2>
    ${lost.length === 0 ? html`<p class="dim">None: no session has lost its supervisors.</p>` : html`<ul class="lines">${lost.map((session) => html`<li><a href=${sessionLink(session.sessionId)}>${safe(session.sessionId, 80)}</a> <span class="dim">${safe(session.agent, 40)} · ${safe(reasonText(reason(session)), 200)}</span></li>`)}</ul>`}</section>`;
}
