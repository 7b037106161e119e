// Notifications of the browser for questions of agents. The permission for them is asked for once, when the user wants it.
import { effect, signal } from "./ui.js";
import { openPermissions } from "./state.js";
import { sessionLink, go } from "./route.js";
import { remember, remembered } from "./settings.js";
import { safe } from "./text.js";

export const notifications = signal(typeof Notification === "undefined" ? "unsupported" : Notification.permission);

const ASKED = "agent-proxy-notify-asked";
/** True until the user has been asked once. */
export const offer = signal(notifications.value === "default" && !remembered(ASKED));

export function decline() {
  remember(ASKED, "yes");
  offer.value = false;
}

export async function askForNotifications() {
  decline();
  if (notifications.value === "default") notifications.value = await Notification.requestPermission();
}

/** Shows each new question, if the user does not look at the page. */
export function watchPermissions() {
  const known = new Map();
  effect(() => {
    const open = openPermissions.value;
    const ids = new Set();
    for (const { sessionId, title, request } of open) {
      const id = `${sessionId}/${request.id}`;
      ids.add(id);
      if (known.has(id)) continue;
      known.set(id, null);
      if (notifications.value === "granted" && (document.hidden || !document.hasFocus())) {
        const shown = new Notification(`${safe(title ?? sessionId, 60)} asks`, { body: safe(request.title, 200), tag: id });
        shown.onclick = () => { focus(); go(sessionLink(sessionId)); shown.close(); };
        known.set(id, shown);
      }
    }
    for (const [id, shown] of known) if (!ids.has(id)) { shown?.close(); known.delete(id); }
  });
}
