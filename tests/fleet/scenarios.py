"""One fault alone and how long it is felt, and the figures of a fleet that has none. chaos.py runs this."""

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import datetime

# The program that runs has all of the fleet.
chaos = sys.modules["__main__"]
clock = chaos.clock
findings = chaos.findings

# Time that a node has for the ends of its sessions after its lease.
GRACE = 5


def bar(name, value, most, unit="s"):
    """Prints a figure beside its bar. Within a tenth of it counts as reached."""
    is_reached = value <= most * 1.1
    if not is_reached:
        findings.fail("bar", f"{name}: {value:.2f} {unit}, and {most:g} is asked for")
    print(f"fleet: {name:<70} {value:>9.2f} {unit}  <= {most:g}  {'ok' if is_reached else 'NOT REACHED'}", flush=True)


def figure(name, value):
    print(f"fleet: {name:<70} {value}", flush=True)


async def rows(node, path):
    return await chaos.call(node, "GET", path)


async def owners(node):
    return {row["sessionId"]: row["node"] for row in await rows(node, "/v1/fleet/sessions")}


async def until(what, is_so, within, pause=0.05):
    """Waits until it is so, and returns how long that took."""
    begin = clock()
    while True:
        try:
            if await is_so():
                return clock() - begin
        except (*chaos.TROUBLE, chaos.Refused):
            pass
        if clock() - begin > within:
            raise RuntimeError(f"not within {within} s: {what}")
        await asyncio.sleep(pause)


async def kill_node(fleet):
    """A node is killed: how long until the others know it, and until its sessions go on."""
    await fleet.begin()
    await asyncio.sleep(10)
    a, b = fleet.nodes["a"], fleet.nodes["b"]
    lost = [id for id, node in (await owners(a)).items() if node == "b"]
    sessions = [session for session in fleet.sessions if session.id in lost]
    marks = {session.id: len(session.marks) for session in sessions}
    begin = clock()
    b.kill()

    async def is_known():
        return all(row["presence"] != "alive" for row in await rows(a, "/v1/fleet/nodes") if row["node"] == "b")

    known = await until("the node is known as lost", is_known, 120)

    async def go_on():
        return all(
            any(kind == "session:resumed" for _, kind, _ in session.marks[marks[session.id] :]) for session in sessions
        )

    await until("its sessions go on", go_on, 180)
    resumed = max(next(at for at, kind, _ in session.marks[marks[session.id] :] if kind == "session:resumed") for session in sessions)
    lease = chaos.options.lease
    figure(f"sessions of the node that is killed, at a lease of {lease:g} s", len(sessions))
    bar("node killed: known as lost", known, lease + GRACE + 2)
    bar("node killed: the last of its sessions is resumed elsewhere", resumed - begin, lease + GRACE + 2 + 5)
    await finish(fleet)


async def kill_leader(fleet):
    """The server that leads the events' stream is killed: nobody is suspended."""
    await fleet.begin()
    await asyncio.sleep(10)
    leader = await fleet.leader()
    for session in fleet.sessions:
        session.silence, session.last_at = 0, clock()
        session.marks.clear()
    leader.kill()
    await asyncio.sleep(chaos.options.lease + 15)
    silence = max(max(session.silence, clock() - session.last_at) for session in fleet.sessions)
    suspended = sum(kind == "session:suspended" for session in fleet.sessions for _, kind, _ in session.marks)
    leader.start()
    bar(f"leader killed, at a lease of {chaos.options.lease:g} s: sessions suspended", suspended, 0, "")
    bar("leader killed: longest silence of a session", silence, 12)
    await finish(fleet)


async def upgrade(fleet):
    """Each node in turn is drained, ended and started again, while all sessions talk."""
    await fleet.begin()
    await asyncio.sleep(5)
    begin = clock()
    for node in fleet.nodes.values():
        drained = await chaos.call(node, "POST", f"/v1/fleet/nodes/{node.name}/drain", {}, within=300)
        for stays in drained["stay"]:
            findings.say(f"{stays['sessionId']} stays on {node.name}: {stays['reason']}")
        node.signal(chaos.signal.SIGTERM)
        await asyncio.to_thread(node.process.wait, 120)
        node.start()
        await fleet.ready()
    figure("rolling upgrade of four nodes under load, in all", f"{clock() - begin:.1f} s")
    await finish(fleet)
    lost = sum(session.is_ended and session.kinds["session:ended"] == 0 for session in fleet.sessions)
    bar("rolling upgrade: sessions lost", lost + findings.wrong["ended"] + findings.wrong["stuck"], 0, "")
    bar("rolling upgrade: events lost", findings.wrong["lost"] + findings.wrong["gap"], 0, "")


async def finish(fleet):
    await fleet.heal()
    await fleet.settle()
    await fleet.end()
    figure("events lost, doubled or changed; two owners; processes left", json.dumps(dict(findings.wrong)) if findings.wrong else "none")


class Connection:
    """A connection that is kept, for requests one after the other."""

    def __init__(self, node):
        self.node = node

    async def ask(self, path):
        if not hasattr(self, "reader"):
            self.reader, self.writer = await asyncio.open_unix_connection(self.node.socket, limit=1 << 26)
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: daemon\r\n\r\n".encode())
        length, chunked = 0, False
        status = await self.reader.readline()
        while (line := (await self.reader.readline()).strip()):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            chunked |= name.lower() == b"transfer-encoding"
        if not chunked:
            return status, await self.reader.readexactly(length)
        body = b""
        while (size := int(await self.reader.readline(), 16)):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()
        return status, body


def median(samples):
    return sorted(samples)[len(samples) // 2]


def percentile(samples, percent):
    return sorted(samples)[min(len(samples) - 1, len(samples) * percent // 100)]


async def forwarded(fleet):
    """A request about a session through its own node and through another one, in turns."""
    await chaos.call(fleet.nodes["b"], "POST", "/v1/sessions?node=b", {"sessionId": "near", "agent": "command", "command": ["cat"]})
    a, b = Connection(fleet.nodes["a"]), Connection(fleet.nodes["b"])
    await until("it is known", lambda: known(fleet, "near"), 10)
    times = {a: [], b: []}
    for turn in range(4000):
        for connection in (a, b):
            begin = time.perf_counter()
            status, _ = await connection.ask("/v1/sessions/near")
            if turn >= 200:
                times[connection].append((time.perf_counter() - begin) * 1000)
            assert b" 200 " in status, status
    figure("request to the session's own node: median, p99", f"{median(times[b]):.3f} ms, {percentile(times[b], 99):.3f} ms")
    figure("the same through another node: median, p99", f"{median(times[a]):.3f} ms, {percentile(times[a], 99):.3f} ms")
    bar("forwarded request: median above a local one", median(times[a]) - median(times[b]), 2, "ms")


async def known(fleet, id):
    return all([id in await owners(node) for node in fleet.nodes.values()])


async def latency(fleet, seconds=15, sessions=50):
    """From the time that an event has, to its reader on another node."""
    compare = os.environ.get("AGENT_PROXY_COMPARE")
    if not compare:
        return print("NOT RUN: fleet: commit to reader: no AGENT_PROXY_COMPARE", flush=True)
    a = fleet.nodes["a"]
    ids = [f"paced-{number}" for number in range(sessions)]
    for id in ids:
        config = {"sessionId": id, "agent": "command", "command": [compare, "paced", "1", "10"]}
        await chaos.call(fleet.nodes["b"], "POST", "/v1/sessions?node=b", config)
    samples = []

    async def follow(id):
        _, chunked, reader, writer = await chaos.connect(a, "GET", f"/v1/sessions/{id}/events?follow=true&from=latest")
        rest = b""
        async for piece in chaos.pieces(chunked, reader):
            now = time.time() * 1000
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line:
                    begin = line.index(b'"createdAt":"') + 13
                    at = line[begin : begin + 24].decode()
                    samples.append(now - datetime.fromisoformat(at).timestamp() * 1000)

    followers = [asyncio.create_task(follow(id)) for id in ids]
    await asyncio.sleep(1)
    for id in ids:
        # So many lines are longer than the measurement, at 100 a second.
        await chaos.call(a, "POST", f"/v1/sessions/{id}/prompt", {"text": str((seconds + 30) * 100)})
    await asyncio.sleep(3)
    samples.clear()
    await asyncio.sleep(seconds)
    taken = list(samples)
    for follower in followers:
        follower.cancel()
    for id in ids:
        await chaos.call(a, "POST", f"/v1/sessions/{id}/kill", {"graceMs": 0})
    figure(f"events a second of {sessions} sessions, through another node", round(len(taken) / seconds))
    bar("commit to reader on another node: median", median(taken), 10, "ms")
    bar("commit to reader on another node: p99", percentile(taken, 99), 60, "ms")


async def many(fleet, count):
    """So many sessions of the fleet, that have ended but for one."""
    gate = asyncio.Semaphore(16)

    async def start(number):
        async with gate:
            node = chaos.NODES[number % len(chaos.NODES)]
            config = {"sessionId": f"many-{number}", "agent": "command", "command": ["true"]}
            await chaos.call(fleet.nodes[node], "POST", f"/v1/sessions?node={node}", config, within=60)

    begin = clock()
    await asyncio.gather(*map(start, range(count)))
    figure(f"starts a second of {count} sessions (`true`), on four nodes", round(count / (clock() - begin)))
    a = Connection(fleet.nodes["a"])
    await until("all are listed", lambda: listed(a, count), 60)
    times = []
    for number in range(20):
        begin = clock()
        config = {"sessionId": f"one-{number}", "agent": "command", "command": ["true"]}
        await chaos.call(fleet.nodes["b"], "POST", "/v1/sessions?node=b", config)
        while f'"one-{number}"'.encode() not in (await a.ask("/v1/fleet/sessions"))[1]:
            pass
        times.append(clock() - begin)
    bar(f"start to listed on another node, with {count} sessions: longest of 20", max(times), 1)
    begin = clock()
    _, body = await a.ask("/v1/records?limit=10000")
    figure("records of all nodes, 10000 of them", f"{clock() - begin:.2f} s, {len(body) / 1e6:.1f} MB")


async def listed(connection, count):
    return (await connection.ask("/v1/fleet/sessions"))[1].count(b'"sessionId":"many-') >= count


def memory(fleet, when):
    def rss(program):
        for line in open(f"/proc/{program.process.pid}/status"):
            if line.startswith("VmRSS"):
                return round(int(line.split()[1]) / 1024)

    figure(f"memory {when}: nats-servers, MiB", [rss(server) for server in fleet.servers.values()])
    figure(f"memory {when}: daemons, MiB", [rss(node) for node in fleet.nodes.values()])


async def figures(fleet):
    chaos.options.sessions = 0
    await fleet.begin()
    memory(fleet, "of an empty fleet")
    await forwarded(fleet)
    await latency(fleet)
    await many(fleet, chaos.options.many)
    memory(fleet, f"with {chaos.options.many} sessions")
    if compare := os.environ.get("AGENT_PROXY_COMPARE"):
        servers = ",".join(f"nats://127.0.0.1:{4220 + number}" for number in chaos.SERVERS)
        process = await asyncio.create_subprocess_exec(compare, "shipping", "--check", "--servers", servers)
        if await process.wait():
            findings.fail("bar", "shipping")
        memory(fleet, "after 2 M more events")
    await fleet.end()


async def latency_alone(fleet):
    chaos.options.sessions = 0
    await fleet.begin()
    await latency(fleet)
    await fleet.end()


SCENARIOS = {"latency": latency_alone, "node": kill_node, "leader": kill_leader, "upgrade": upgrade, "figures": figures}


async def measure(name, fleet):
    await SCENARIOS[name](fleet)
