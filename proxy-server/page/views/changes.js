// What a session has changed in a workspace of its own: the files, the patch, and what becomes of them.
import { html, useEffect, useState, attempt, ask } from "../lib/ui.js";
import { get, post, call, segment } from "../lib/api.js";
import { isLive } from "../lib/state.js";
import { safe } from "../lib/text.js";

/** Most lines of the patch that are drawn at first. */
const MAX_LINES = 2000;

export function Changes({ id, session, model }) {
  const path = `v1/sessions/${segment(id)}/workspace`;
  const { kind, source } = model.workspace.value ?? {};
  const [diff, setDiff] = useState(null);
  const [problem, setProblem] = useState(null);
  const [all, setAll] = useState(false);
  const turns = session?.turns;
  const load = () => get(`${path}/diff`, undefined, { timeout: 60_000 }).then((found) => { setDiff(found); setProblem(null); }, (error) => setProblem(error.message));
  // Each turn may change something.
  useEffect(() => { if (kind) load(); }, [id, kind, turns]);
  if (!kind) return html`<p class="empty">This session has no workspace of its own, or it is dropped.</p>`;

  const apply = () => attempt(async () => {
    const { files } = await post(`${path}/apply`, {}, { timeout: 60_000 });
    await load();
    return files;
  }, `The changes are in ${safe(source, 200)}`);
  const drop = async () => {
    const count = diff?.files.length ? `, with ${diff.files.length} changed ${diff.files.length === 1 ? "file" : "files"} in it` : "";
    if (await ask(`Remove the workspace${count}?`, "Drop the workspace")) {
      await attempt(async () => {
        await call("DELETE", path);
        // The stream of a session that is over has no more events.
        model.workspace.value = null;
      }, "The workspace is removed");
    }
  };
  const lines = diff?.patch?.replace(/\n$/, "").split("\n") ?? [];
  const shown = all ? lines : lines.slice(0, MAX_LINES);
  return html`<section class="changes" aria-label="Changes in the workspace">
    <p class="row wrap"><span class="grow about">A ${kind} of <bdi class="mono">${safe(source, 300)}</bdi>, which stays as it is until you apply the changes.</span>
      <button type="button" onClick=${load}>Look again</button>
      <button type="button" class="primary" disabled=${!diff?.files.length} onClick=${apply}>Apply</button>
      <button type="button" class="danger" disabled=${session && isLive(session)} title=${session && isLive(session) ? "Suspend or kill the session first" : ""} onClick=${drop}>Drop</button></p>
    ${problem && html`<p class="error" role="alert">${safe(problem, 1000)}</p>`}
    ${!diff && !problem && html`<p aria-busy="true">Comparing…</p>`}
    ${diff && html`<p role="status">${diff.files.length === 0 ? "Nothing has changed." : `${diff.files.length} ${diff.files.length === 1 ? "file has" : "files have"} changed`}</p>
      <ul>${diff.files.map((file) => html`<li key=${file.path}><span class="dim">${file.change}</span> <bdi class="mono">${safe(file.movedFrom ? `${file.movedFrom} → ${file.path}` : file.path, 400)}</bdi></li>`)}</ul>
      ${diff.leftOut.length > 0 && html`<p class="dim">Not looked at, as they are repositories of their own: ${diff.leftOut.map((one) => safe(one, 200)).join(", ")}</p>`}
      ${diff.patch === null && html`<p class="dim">The patch is too long to be shown.</p>`}
      ${lines.length > 0 && html`<div class="code diff"><pre tabindex="0" aria-label="Patch">${shown.map((line) => html`<div class=${look(line)}>${safe(line, 2000)}${"\n"}</div>`)}</pre>
        ${shown.length < lines.length && html`<button type="button" class="quiet small" onClick=${() => setAll(true)}>Show ${lines.length - shown.length} more lines</button>`}</div>`}`}
  </section>`;
}

/** Class of a line of a patch. */
function look(line) {
  if (/^(\+\+\+ |--- |@@ |[a-z])/.test(line)) return "dim";
  return line[0] === "+" ? "plus" : line[0] === "-" ? "minus" : "";
}
