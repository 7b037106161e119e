// Passes requests on to a server, with the token of a file: with-token.mjs URL FILE. Prints its port.
import { readFileSync } from "node:fs";
import http from "node:http";

const [target, file] = process.argv.slice(2);
const to = new URL(target);
const authorization = `Bearer ${readFileSync(file, "utf8").trim()}`;

const server = http.createServer((request, response) => {
  const headers = { ...request.headers, authorization };
  const passed = http.request({ host: to.hostname, port: to.port, path: request.url, method: request.method, headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  passed.on("error", () => response.destroy());
  response.on("close", () => passed.destroy());
  request.pipe(passed);
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
