// Passes requests on to a server, with a token.
import http from "node:http";
const [target, token] = process.argv.slice(2);
const to = new URL(target);
http.createServer((q, r) => {
  const p = http.request({ host: to.hostname, port: to.port, path: q.url, method: q.method, headers: { ...q.headers, authorization: `Bearer ${token}` } }, (a) => { r.writeHead(a.statusCode, a.headers); a.pipe(r); });
  p.on("error", () => r.destroy()); r.on("close", () => p.destroy()); q.pipe(p);
}).listen(0, "127.0.0.1", function () { console.log(this.address().port); });
