// Processes of a session: the tree as it is now, what is gone, and what each turn has started.
import { html, useEffect, useRef, useState, Spark, Bar, attempt, ask, now } from "../lib/ui.js";
import { get, segment } from "../lib/api.js";
import { isLive } from "../lib/state.js";
import { exitText } from "../lib/conversation.js";
import { safe, bytes, percent, span, age, link } from "../lib/text.js";
import { kill, sendSignal, commandOf } from "./kill.js";

const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGKILL"];
const MARKS = { leftGroup: "left its group", leftSession: "left its session", reParented: "re-parented" };
/** Measures that a line shows. */
const SAMPLES = 60;
/** Ended processes that are listed. */
const GONE = 100;

const keyOf = (id) => `${id.pid}.${id.startTime}`;

/** Orders processes as a tree: [process, depth]. */
export function asTree(processes) {
  const byPid = new Map(processes.map((process) => [process.id.pid, process]));
  const children = new Map();
  const roots = [];
  for (const process of processes) {
    const parent = byPid.get(process.ppid);
    if (parent && parent !== process) {
      if (!children.has(parent.id.pid)) children.set(parent.id.pid, []);
      children.get(parent.id.pid).push(process);
    } else roots.push(process);
  }
  const out = [];
  const seen = new Set();
  const walk = (process, depth) => {
    if (seen.has(process.id.pid)) return;
    seen.add(process.id.pid);
    out.push([process, depth]);
    for (const child of children.get(process.id.pid) ?? []) walk(child, Math.min(depth + 1, 24));
  };
  roots.sort((a, b) => Number(b.tracked) - Number(a.tracked));
  for (const root of roots) walk(root, 0);
  return out;
}

/** Marks of a process, by the server or by a comparison with the agent. */
function marksOf(process, agent, pids) {
  if (process.marks?.length) return process.marks;
  if (!agent || process === agent || process.marks) return [];
  const marks = [];
  if (process.sid !== agent.sid) marks.push("leftSession");
  else if (process.pgid !== agent.pgid) marks.push("leftGroup");
  if (process.ppid !== agent.id.pid && !pids.has(process.ppid)) marks.push("reParented");
  return marks;
}

export function Processes({ id, session, model }) {
  const [list, setList] = useState(null);
  const [problem, setProblem] = useState(null);
  const samples = useRef(new Map());
  const live = session ? isLive(session) : true;
  useEffect(() => {
    let stopped = false;
    let timer = null;
    const round = async () => {
      if (!document.hidden) {
        try {
          const found = await get(`v1/sessions/${segment(id)}/processes`);
          if (stopped) return;
          const known = samples.current;
          for (const process of found) {
            const key = keyOf(process.id);
            const course = known.get(key) ?? { cpu: [], rss: [] };
            if (process.status === "running") {
              course.cpu = [...course.cpu.slice(1 - SAMPLES), process.cpuPercent ?? 0];
              course.rss = [...course.rss.slice(1 - SAMPLES), process.rssBytes ?? 0];
            }
            known.set(key, course);
          }
          if (known.size > 4000) known.clear();
          setList(found);
          setProblem(null);
        } catch (error) {
          if (!stopped) setProblem(error.message);
        }
      }
      if (!stopped) timer = setTimeout(round, 1000);
    };
    if (live) round();
    return () => { stopped = true; clearTimeout(timer); };
  }, [id, live]);
  void model.processRev.value;

  const running = live ? (list ?? []).filter((process) => process.status === "running") : [];
  const agent = (list ?? []).find((process) => process.tracked);
  const pids = new Set(running.map((process) => process.id.pid));
  const gone = goneOnes(list ?? [], model, pids);
  const sum = (name) => running.reduce((all, process) => all + (process[name] ?? 0), 0);
  const limits = (model.measures.value ?? session?.measures)?.limits ?? [];
  return html`<div class="processes-view scroll-y" tabindex="-1">
    <div class="toolbar"><span>${running.length} running</span><span class="dim">${percent(sum("cpuPercent"))} CPU</span><span class="dim">${bytes(sum("rssBytes"))}</span>
      ${limits.map((limit) => html`<${LimitBar} key=${limit.limit} limit=${limit} running=${running} sum=${sum} session=${session}/>`)}
      <span class="spacer"></span>
      ${live && running.some((process) => !process.tracked) && html`<button type="button" class="danger-quiet" onClick=${async () => { if (await ask("End every process that the agent has started? The agent itself goes on.", "Kill all but the agent")) kill(id, { kind: "all" }, model); }}>Kill all but the agent</button>`}
      ${live && html`<button type="button" class="danger-quiet" onClick=${async () => { if (await ask("End this session, and every process that it has started?", "Kill the session")) kill(id, { kind: "session" }, model); }}>Kill the session</button>`}</div>
    ${problem && live && html`<p class="error" role="alert">${safe(problem, 400)}</p>`}
    ${live && list === null && !problem && html`<p class="empty" aria-busy="true">Asking for the processes…</p>`}
    ${running.length > 0 && html`<div class="table-scroll" tabindex="0" role="region" aria-label="Running processes"><table class="plain tree"><thead><tr><th scope="col" class="num">Pid</th><th scope="col">Command</th><th scope="col">Ports</th><th scope="col">CPU</th><th scope="col">Memory</th><th scope="col" class="num">Age</th><th scope="col">Has left</th><th scope="col"><span class="sr">Actions</span></th></tr></thead>
      <tbody>${asTree(running).map(([process, depth]) => html`<${ProcessRow} key=${keyOf(process.id)} id=${id} model=${model} process=${process} depth=${depth} agent=${agent} pids=${pids} course=${samples.current.get(keyOf(process.id))} hasTree=${running.some((other) => other.ppid === process.id.pid)}/>`)}</tbody></table></div>`}
    ${!live && html`<p class="empty">The session has no processes.</p>`}
    <${Timeline} model=${model}/>
    ${gone.length > 0 && html`<section aria-labelledby="gone"><h2 id="gone">Gone</h2><div class="table-scroll" tabindex="0" role="region" aria-label="Processes that are gone"><table class="plain ended"><thead><tr><th scope="col" class="num">Pid</th><th scope="col">Ended</th><th scope="col" class="num">Lived</th><th scope="col">Command</th></tr></thead>
      <tbody>${gone.map((process) => html`<tr key=${process.key}><td class="num">${process.pid}</td><td class=${process.exit && ("signal" in process.exit || process.exit.code > 0) ? "bad-text" : ""}>${exitText(process.exit)}</td>
        <td class="num">${process.lived === null ? "–" : span(process.lived)}</td><td class="mono"><bdi>${safe(process.command || "[gone before it could be read]", 300)}</bdi></td></tr>`)}</tbody></table></div></section>`}
  </div>`;
}

function LimitBar({ limit, running, sum, session }) {
  const use = { memory: [sum("rssBytes"), bytes], processes: [running.length, String], cpuPercent: [sum("cpuPercent"), percent], wallClock: [session ? now.value - Date.parse(session.startedAt) : 0, age] }[limit.limit];
  const text = limit.limit === "wallClock" || limit.limit === "cpuTime" ? span(limit.value) : limit.limit === "memory" || limit.limit === "fileSize" ? bytes(limit.value) : String(limit.value);
  if (!use) return html`<span class="dim">${limit.limit} ≤ ${text}</span>`;
  return html`<${Bar} value=${use[0]} max=${limit.value} label=${`${limit.limit} ${use[1](use[0])} / ${text}`} title=${`Limit on ${limit.limit}, by ${safe(limit.form, 40)}`}/>`;
}

/** Ended processes, the last first: those of the list, and those of events. */
function goneOnes(list, model, pids) {
  const found = new Map();
  for (const process of model.processes.values()) {
    if (process.endedAt) found.set(process.key, { key: process.key, pid: process.pid, command: process.command, exit: process.exit, at: process.endedAt, lived: process.at ? Date.parse(process.endedAt) - Date.parse(process.at) : null });
  }
  for (const process of list) {
    const key = keyOf(process.id);
    if (process.status !== "running" && !pids.has(process.id.pid) && !found.has(key)) found.set(key, { key, pid: process.id.pid, command: commandOf(process), exit: process.exit, at: process.startedAt, lived: null });
  }
  return [...found.values()].sort((a, b) => (a.at < b.at ? 1 : -1)).slice(0, GONE);
}

function ports(process) {
  return (process.listening ?? []).map((socket) => {
    const any = ["0.0.0.0", "::", ""].includes(socket.address);
    const host = any || ["127.0.0.1", "::1"].includes(socket.address) ? location.hostname || "127.0.0.1" : socket.address.includes(":") ? `[${socket.address}]` : socket.address;
    const name = `${safe(socket.protocol ?? "tcp", 8)} ${socket.port}`;
    const target = link(`http://${host}:${socket.port}/`);
    return /^udp/.test(socket.protocol ?? "") || !target ? html`<span class="port">${name}</span>` : html`<a class="port" href=${target} target="_blank" rel="noreferrer noopener" title=${`Open ${target}`}>:${socket.port}</a>`;
  });
}

function ProcessRow({ id, model, process, depth, agent, pids, course, hasTree }) {
  const marks = marksOf(process, agent, pids);
  const command = safe(commandOf(process) || "[could not be read]", 600);
  const choose = async (event) => {
    const what = event.target.value;
    event.target.value = "";
    if (what === "kill" || what === "tree") {
      if (await ask(`End ${what === "tree" ? "this process and all below it" : "this process"}?\n\n${process.id.pid}  ${command.slice(0, 200)}`, what === "tree" ? "Kill the tree" : "Kill the process")) kill(id, { kind: what === "tree" ? "tree" : "process", pid: process.id.pid }, model);
    } else if (what) await attempt(() => sendSignal(id, process, what), `${what} was sent to ${process.id.pid}`);
  };
  return html`<tr class=${marks.length ? "marked" : ""}><td class="num p-pid">${process.id.pid}</td>
    <td class="mono cmd" title=${command}><span class="indent" style=${{ paddingLeft: `${depth * 14}px` }}>${depth > 0 && html`<span class="dim" aria-hidden="true">└ </span>`}<bdi>${command.slice(0, 160)}</bdi>${process.tracked && html` <span class="mark-word">agent</span>`}</span></td>
    <td class="p-ports">${ports(process)}</td>
    <td class="spark-cell p-cpu"><${Spark} values=${course?.cpu ?? []} max=${Math.max(100, ...(course?.cpu ?? []))} label=${`CPU ${percent(process.cpuPercent)}`}/> ${percent(process.cpuPercent)}</td>
    <td class="spark-cell p-memory"><${Spark} values=${course?.rss ?? []} label=${`Memory ${bytes(process.rssBytes)}`}/> ${bytes(process.rssBytes)}</td>
    <td class="num p-age">${age(process.ageMs ?? now.value - Date.parse(process.startedAt))}</td>
    <td class="p-left">${marks.map((mark) => html`<span class="mark-word">${MARKS[mark] ?? safe(mark, 30)}</span> `)}</td>
    <td class="p-menu"><select class="menu" aria-label=${`Signal or kill ${process.id.pid}`} value="" onChange=${choose}><option value="" disabled hidden>Signal…</option>
      <option value="kill">Kill it</option>${hasTree && html`<option value="tree">Kill its tree</option>`}${SIGNALS.map((name) => html`<option value=${name}>${name}</option>`)}</select></td></tr>`;
}

/** What each turn has started, and how long that lived. */
function Timeline({ model }) {
  const [chosen, setChosen] = useState(null);
  const turns = model.turns.filter((turn) => turn.number !== null);
  void model.rev.value;
  void model.processRev.value;
  if (!turns.length || !model.processes.size) return null;
  const turn = turns.find((one) => one.number === chosen) ?? turns[turns.length - 1];
  void turn.rev.value;
  const mine = [...model.processes.values()].filter((process) => process.turn === turn.number);
  const begin = Date.parse(turn.at);
  const last = Math.max(turn.endedAt ? Date.parse(turn.endedAt) : now.value, ...mine.map((process) => (process.endedAt ? Date.parse(process.endedAt) : turn.endedAt ? 0 : now.value)), begin + 1000);
  const place = (time) => `${Math.max(0, Math.min(100, ((time - begin) / (last - begin)) * 100))}%`;
  return html`<section aria-labelledby="timeline"><div class="row wrap"><h2 id="timeline">Timeline</h2>
      <label class="inline">Turn <select value=${String(turn.number)} onChange=${(event) => setChosen(Number(event.target.value))}>${turns.slice(-200).reverse().map((one) => html`<option value=${String(one.number)}>${one.number}: ${safe(one.prompt ?? "", 40)}</option>`)}</select></label>
      <span class="dim">${span(last - begin)} · ${mine.length} started · ${mine.filter((process) => process.endedAt).length} ended</span></div>
    ${mine.length === 0 ? html`<p class="dim">This turn has started no process.</p>` : html`<ol class="timeline" aria-label=${`Processes of turn ${turn.number}`}>
      ${mine.slice(-120).map((process) => { const start = Date.parse(process.at); const end = process.endedAt ? Date.parse(process.endedAt) : last;
        return html`<li key=${process.key}><span class="mono name"><bdi>${safe(`${process.pid} ${process.command ?? ""}`, 80)}</bdi></span>
          <span class="lane"><span class=${`life ${process.endedAt ? "" : "alive"}`} style=${{ left: place(start), width: `max(3px, calc(${place(end)} - ${place(start)}))` }}></span></span>
          <span class="dim">${process.endedAt ? exitText(process.exit) : "runs"}</span></li>`; })}</ol>`}</section>`;
}
