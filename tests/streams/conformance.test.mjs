// The protocol's own tests. Their streams are `/v1/stream/NAME`: below the root of ours, that is a name like any other.
import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({ baseUrl: `${process.env.STREAMS_URL}/v1/streams`, longPollTimeoutMs: 20_000 });
