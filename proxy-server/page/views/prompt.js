// The box for prompts: send, queue, steer, abort; history, pictures and files, slash commands.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState, attempt, toast } from "../lib/ui.js";
import { post, call, caller, segment } from "../lib/api.js";
import { refresh, stateOf, isOver } from "../lib/state.js";
import { name } from "../lib/settings.js";
import { safe, bytes } from "../lib/text.js";

/** Largest attachment, in bytes: a body has at most 32 MiB. */
const MAX_FILE = 16 * 1024 * 1024;
/** Largest file that is put into the prompt as text, in bytes. */
const MAX_TEXT = 256 * 1024;
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

async function readFile(file) {
  if (file.size > MAX_FILE) throw new Error(`${file.name} has ${bytes(file.size)}: at most ${bytes(MAX_FILE)}`);
  if (PICTURES.includes(file.type)) {
    const url = await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(file);
    });
    return { name: file.name, size: file.size, preview: url, part: { image: { mimeType: file.type, data: url.slice(url.indexOf(",") + 1) } } };
  }
  if (file.size > MAX_TEXT) throw new Error(`${file.name} has ${bytes(file.size)}: as text at most ${bytes(MAX_TEXT)}; name its path instead`);
  const text = await file.text();
  if (text.includes("\0")) throw new Error(`${file.name} is neither text nor a picture`);
  const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
  return { name: file.name, size: file.size, part: { text: `\n\n${file.name}:\n${fence}\n${text}\n${fence}\n` } };
}

const drafts = new Map();

export function PromptBox({ id, session, model }) {
  const path = `v1/sessions/${segment(id)}`;
  const [text, setText] = useState(drafts.get(id) ?? "");
  const [files, setFiles] = useState([]);
  const [busySending, setBusy] = useState(false);
  const [choice, setChoice] = useState(0);
  const [past, setPast] = useState(null);
  const box = useRef(null);
  const picker = useRef(null);
  useEffect(() => { drafts.set(id, text); }, [text]);
  useLayoutEffect(() => {
    const area = box.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, 220)}px`;
  }, [text]);

  const state = session ? stateOf(session) : "idle";
  const last = model.turns[model.turns.length - 1];
  void model.rev.value;
  void last?.rev.value;
  const busy = state === "busy" || (last && last.number !== null && !last.endedAt && state !== "ended");
  const commands = model.commands.value.length ? model.commands.value : session?.commands ?? [];
  const typed = /^\/([^\s]*)$/.exec(text);
  const offered = useMemo(() => (typed ? commands.filter((command) => command.name.toLowerCase().startsWith(typed[1].toLowerCase())).slice(0, 12) : []), [text, commands]);

  if (session && isOver(session)) return null;
  if (caller.value?.role === "read") return html`<p class="prompt-box dim">You may look at this session. Prompts need the role operate.</p>`;

  const send = async (mode) => {
    const words = text.trim();
    if ((!words && !files.length) || busySending) return;
    setBusy(true);
    const parts = files.map((file) => file.part);
    try {
      if (mode === "steer") await post(`${path}/steer`, { text: words, parts });
      else await post(`${path}/prompt`, { text: words, parts, mode, ...(name.value ? { metadata: { by: name.value } } : {}) }, { timeout: 120_000 });
      // What was typed or added meanwhile stays.
      setText((now) => (now === text ? "" : now));
      setFiles((now) => now.filter((file) => !files.includes(file)));
      setPast(null);
      // Whoever has left the page meanwhile finds it empty.
      if (drafts.get(id) === text) drafts.delete(id);
      refresh();
    } catch (error) {
      toast(error.message, "error");
    }
    setBusy(false);
    box.current?.focus();
  };
  const abort = () => attempt(() => post(`${path}/abort`), "The turn is being aborted");
  const addFiles = async (list) => {
    for (const file of list) {
      const read = await attempt(() => readFile(file));
      if (read) setFiles((old) => [...old, read]);
    }
  };
  const history = () => [...new Set(model.turns.map((turn) => turn.prompt).filter(Boolean).reverse())];
  const onKey = (event) => {
    if (event.isComposing) return;
    if (offered.length) {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); setChoice((choice + (event.key === "ArrowDown" ? 1 : offered.length - 1)) % offered.length); return; }
      if (event.key === "Tab" || (event.key === "Enter" && typed[1] !== offered[choice]?.name)) { event.preventDefault(); pick(offered[choice] ?? offered[0]); return; }
    }
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); send("queue"); return; }
    if (event.key === "Escape") { event.target.blur(); return; }
    const old = history();
    if (event.key === "ArrowUp" && (text === "" || past !== null) && old.length) { event.preventDefault(); const at = Math.min(old.length - 1, (past ?? -1) + 1); setPast(at); setText(old[at]); }
    else if (event.key === "ArrowDown" && past !== null) { event.preventDefault(); const at = past - 1; setPast(at < 0 ? null : at); setText(at < 0 ? "" : old[at]); }
  };
  const pick = (command) => { setText(`/${command.name} `); setChoice(0); box.current?.focus(); };
  const queued = session?.queued ?? [];
  return html`<div class="prompt-box" onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => { event.preventDefault(); addFiles([...event.dataTransfer.files]); }}>
    ${queued.length > 0 && html`<${Queue} path=${path} queued=${queued}/>`}
    ${offered.length > 0 && html`<ul class="commands" role="listbox" aria-label="Commands of the agent" id="commands">${offered.map((command, at) => html`<li key=${command.name} role="option" aria-selected=${at === choice} id=${`command-${at}`} onMouseDown=${(event) => { event.preventDefault(); pick(command); }}>
      <strong>/${safe(command.name, 60)}</strong> <span class="dim"><bdi>${safe(command.argumentHint ?? "", 60)}</bdi></span> <bdi>${safe(command.description ?? "", 160)}</bdi></li>`)}</ul>`}
    ${files.length > 0 && html`<div class="row wrap files">${files.map((file, at) => html`<span class="attachment">${file.preview && html`<img src=${file.preview} alt="" height="24"/>`} ${safe(file.name, 60)} <span class="dim">${bytes(file.size)}</span>
      <button type="button" class="quiet small" aria-label=${`Remove ${safe(file.name, 60)}`} onClick=${() => setFiles(files.filter((_, other) => other !== at))}>✕</button></span>`)}</div>`}
    <div class="prompt-row">
      <textarea id="prompt" ref=${box} rows="1" value=${text} aria-label="Prompt" placeholder=${state === "suspended" ? "A prompt resumes the session" : busy ? "Queue a prompt, or steer the running turn" : "Write to the agent"} spellcheck="true"
        role=${offered.length ? "combobox" : undefined} aria-expanded=${offered.length ? "true" : undefined} aria-controls=${offered.length ? "commands" : undefined} aria-activedescendant=${offered.length ? `command-${choice}` : undefined}
        onInput=${(event) => { setText(event.target.value); setChoice(0); setPast(null); }} onKeyDown=${onKey}
        onPaste=${(event) => { const pasted = [...(event.clipboardData?.files ?? [])]; if (pasted.length) { event.preventDefault(); addFiles(pasted); } }}></textarea>
      <input type="file" ref=${picker} multiple hidden onChange=${(event) => { addFiles([...event.target.files]); event.target.value = ""; }}/>
      <button type="button" class="quiet" aria-label="Attach pictures or files" title="Attach" onClick=${() => picker.current.click()}>+</button>
      <button type="button" onClick=${() => send("steer")} disabled=${!busy || !text.trim() || busySending} title="Into the running turn">Steer</button>
      <button type="button" class="primary send" onClick=${() => send("queue")} disabled=${(!text.trim() && !files.length) || busySending}>${busy ? "Queue" : "Send"}</button>
      <button type="button" class="danger-quiet" disabled=${!busy} onClick=${abort}>Abort</button>
    </div></div>`;
}

/** Prompts that wait, each with a button that drops it. */
function Queue({ path, queued }) {
  const drop = (prompt) => attempt(async () => { await call("DELETE", `${path}/queue/${prompt.offset}`); refresh(); }, "Dropped");
  return html`<ol class="queue" aria-label="Prompts that wait">${queued.slice(0, 8).map((prompt) => html`<li key=${prompt.offset}><span class="dim">waits</span> ${prompt.by && html`<span class="who">${safe(prompt.by, 40)}</span> `}<bdi class="line">${safe(prompt.text, 160)}</bdi>
    <button type="button" class="quiet small" aria-label=${`Drop: ${safe(prompt.text, 60)}`} onClick=${() => drop(prompt)}>✕</button></li>`)}${queued.length > 8 && html`<li class="dim">and ${queued.length - 8} more</li>`}</ol>`;
}
