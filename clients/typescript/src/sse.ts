/** Event of a stream of server-sent events. */
export interface ServerSentEvent { id: string; name: string; data: string }

/** Parser of a stream of server-sent events. An event that is cut off by the end of the stream is none. */
export class ServerSentEvents {
  #decoder = new TextDecoder();
  #rest = "";
  #event: ServerSentEvent = { id: "", name: "message", data: "" };

  /** Takes a piece of the stream. Yields the events that it completes. */
  *feed(chunk: Uint8Array): Generator<ServerSentEvent> {
    const lines = (this.#rest + this.#decoder.decode(chunk, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        yield this.#event;
        this.#event = { id: this.#event.id, name: "message", data: "" };
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "id") this.#event.id = value;
      else if (field === "event") this.#event.name = value;
      else if (field === "data") this.#event.data += this.#event.data ? `\n${value}` : value;
    }
  }
}
