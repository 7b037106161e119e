// Login: by the link that the server prints, or with a token.
import { html, useState } from "../lib/ui.js";
import { get, loginNeeded, setToken, whoami } from "../lib/api.js";
import { refresh } from "../lib/state.js";
import { safe } from "../lib/text.js";

export function Login() {
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setToken(new FormData(event.target).get("token"));
    try {
      await get("v1/sessions", { limit: 1 });
      loginNeeded.value = null;
      whoami();
      refresh();
    } catch (error) {
      setToken(null);
      setProblem(error.message);
    }
    setBusy(false);
  };
  return html`<main class="login" id="main"><h1><span class="mark" aria-hidden="true"></span> agent-proxy</h1>
    <p>Open the login link that <code>agent-proxy serve</code> has printed, or give a token.</p>
    <form onSubmit=${submit}>
      <label class="field"><span>Token</span><input name="token" type="password" autocomplete="current-password" required spellcheck="false"/></label>
      <button type="submit" class="primary" disabled=${busy}>Log in</button>
    </form>
    <p class="dim">The first token is in the file <code>token</code> of the configuration directory. <code>agent-proxy tokens create NAME</code> makes another. This window forgets it when it closes.</p>
    ${problem && html`<p class="error" role="alert">${safe(problem)}</p>`}</main>`;
}
