// Adds the daemon's token to every request: the conformance tests send none.
const send = globalThis.fetch;
globalThis.fetch = (target, options = {}) => {
  const request = new Request(target, options);
  if (!request.url.startsWith(process.env.STREAMS_URL)) return send(target, options);
  const headers = new Headers(request.headers);
  if (!headers.has("authorization")) headers.set("authorization", `Bearer ${process.env.STREAMS_TOKEN}`);
  const { url: _, ...init } = target instanceof Request ? { ...options } : options;
  return target instanceof Request ? send(new Request(target, { headers }), options) : send(target, { ...init, headers });
};
