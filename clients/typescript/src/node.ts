import { request } from "node:http";
import { Readable } from "node:stream";
import type { ReadableStream as NodeStream } from "node:stream/web";

/** Makes a `fetch` that sends all requests to a Unix socket: for the option `fetch` of `Client` in Node. */
export function fetchOfSocket(socketPath: string): typeof fetch {
  return async (input, init) => {
    const { method, headers, url } = new Request(input, init);
    // The caller's own: Node forgets that of a request which nobody has any more, and it never fires.
    const signal = init?.signal ?? (input instanceof Request ? input.signal : undefined);
    const body = typeof init?.body === "string" ? init.body : undefined;
    const { pathname, search } = new URL(url);
    return await new Promise<Response>((resolve, reject) => {
      const sent = request({ socketPath, method, path: pathname + search, headers: Object.fromEntries(headers), ...(signal && { signal }) }, (answer) => {
        const status = answer.statusCode ?? 0;
        const stream = status === 204 ? null : (Readable.toWeb(answer) as NodeStream as ReadableStream<Uint8Array>);
        if (!stream) answer.resume();
        const pairs = Object.entries(answer.headers).flatMap(([name, value]): [string, string][] => [value ?? []].flat().map((one) => [name, one]));
        resolve(new Response(stream, { status, headers: pairs }));
      });
      sent.on("error", reject);
      sent.end(body);
    });
  };
}
