#!/usr/bin/env python3
"""Many sessions in few slots: memory, the speed of creation and of a return, and whether each continues its own text.

    session_tiers.py PROGRAMS [--count 100000] [--resident 10000] [--streams 1000] [--tokens 32]

PROGRAMS: the folder of additived and additive-httpd. COUNT sessions of one model of additive 2 (d 128, 6 layers, bytes) are opened
over HTTP with prompts of their own of about 100 bytes. STREAMS of them have slots, RESIDENT of them are in slots or in host memory,
and the others are on the disk. Then STREAMS sessions drawn at random generate TOKENS greedy tokens each, all at once, until every one
has; each text must be that of a completion of the same prompt. Prints JSON. `limit` is 1.2 times the sum of the engine's memory after
as many completions without sessions and of the resident states. The exit status is 1 if a text is wrong, or if the sessions take more
than the limit, at rest or SETTLED seconds after the streams. During the streams some states are read from the disk while others leave
their slots, which takes more."""

import argparse
import asyncio
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

from http_load import TEXT, Service, train, upload
from live_sessions import CONFIG, resident

CONNECTIONS = 8
PAGE = 100
SETTLED = 2  # seconds
HELD = 640  # bytes that the engine counts for a session in host memory besides its state, logits and tokens


def prompt(i):
    return f"session {i}: " + TEXT * 2 + f"{i % 97}"


def metrics(service):
    found = {}
    for line in service.ask("GET", "/metrics").decode().splitlines():
        if line and line[0] != "#":
            name, value = line.replace("{}", "").rsplit(" ", 1)
            found[name] = float(value)
    return found


def memory(options):
    """The budget of host memory: a session has 7,296 bytes of state, 1,036 of logits and about 100 tokens."""
    return (8800 + HELD) * (options.resident - options.streams)


def places(found):
    return {place: int(found[f'additive_engine_session_states{{place="{place}"}}']) for place in ("device", "memory", "disk")}


async def ask(connection, method, path, body):
    """The answer's JSON, over a connection that stays open."""
    reader, writer = connection
    text = json.dumps(body).encode() if body is not None else b""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(next(line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length:")))
    answer = await reader.readexactly(length)
    if " 200 " not in head.split("\r\n")[0]:
        raise RuntimeError(answer.decode())
    return json.loads(answer)


async def connect(service):
    host, port = service.address.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


async def share(service, work, items):
    """Run work(connection, item) for all items over CONNECTIONS connections."""
    async def some(first):
        connection = await connect(service)
        for item in items[first::CONNECTIONS]:
            await work(connection, item)
        connection[1].close()
    await asyncio.gather(*(some(i) for i in range(CONNECTIONS)))


async def stream(service, path, body):
    """The text of a stream of events, and the time to its first event."""
    reader, writer = await connect(service)
    text, began, first = "", time.monotonic(), None
    body = json.dumps({**body, "stream": True}).encode()
    writer.write(f"POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            first = first or time.monotonic() - began
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(line.decode())
            text += event["choices"][0]["text"] if event["choices"] else ""
    writer.close()
    return text, first


async def all_at_once(service, paths, body):
    """The texts of streams that begin together, their times, and the largest number that ran at once."""
    most, done = 0, False

    async def watch():
        nonlocal most
        while not done:
            found = await asyncio.to_thread(metrics, service)
            most = max(most, int(found["additive_engine_generations_running"]))
            await asyncio.sleep(0.05)
    watcher = asyncio.create_task(watch())
    found = await asyncio.gather(*(stream(service, path, {**body, **more}) for path, more in paths))
    done = True
    await watcher
    return [text for text, _ in found], sorted(first for _, first in found), most


async def run(service, options):
    settings = {"config": CONFIG, "sequence_length": 64, "batch_size": 1, "max_steps": 1}
    model = train(service, "additive2", upload(service, TEXT * 200), settings)
    drawn = random.Random(1).sample(range(options.count), options.streams)
    greedy = {"max_tokens": options.tokens, "temperature": 0}
    idle = resident(service.engine.pid)
    expected, _, _ = await all_at_once(service, [("/v1/completions", {"model": model, "prompt": prompt(i)}) for i in drawn], greedy)
    await asyncio.sleep(SETTLED)
    base, began, ids = resident(service.engine.pid), time.monotonic(), [None] * options.count

    async def create(connection, i):
        ids[i] = (await ask(connection, "POST", "/v1/sessions", {"model": model, "prompt": prompt(i), "ttl_seconds": 36000}))["id"]
    times = []
    for first in range(0, options.count, options.count // 10):
        start = time.monotonic()
        await share(service, create, range(first, min(options.count, first + options.count // 10)))
        times.append(round(time.monotonic() - start, 2))
    opened = time.monotonic() - began
    while (found := metrics(service))['additive_engine_session_state_bytes{place="memory"}'] > memory(options):
        await asyncio.sleep(0.1)
    before, at_rest = places(found), resident(service.engine.pid)
    start = time.monotonic()
    connection = await connect(service)
    await ask(connection, "GET", f"/v1/sessions?limit={PAGE}&after={ids[options.count // 2]}", None)
    listed = time.monotonic() - start
    start = time.monotonic()
    texts, firsts, most = await all_at_once(service, [(f"/v1/sessions/{ids[i]}/generate", {}) for i in drawn], greedy)
    seconds = time.monotonic() - start
    await asyncio.sleep(SETTLED)
    found = metrics(service)
    after, states = resident(service.engine.pid), sum(found[f'additive_engine_session_state_bytes{{place="{p}"}}'] for p in ("device", "memory"))
    states -= HELD * places(found)["memory"]
    wrong = sum(a != b for a, b in zip(texts, expected))
    limit = 1.2 * (base + states)
    returns = found["additive_engine_session_return_seconds_count"]
    print(json.dumps({
        "sessions": options.count, "seconds_of_creation": round(opened, 1), "seconds_of_each_tenth": times, "places": before,
        "list_of_100_ms": round(listed * 1e3, 1), "streams": options.streams, "most_running": most, "wrong": wrong,
        "seconds_of_streams": round(seconds, 1), "first_event_ms": round(statistics.median(firsts) * 1e3), "last_first_event_ms": round(firsts[-1] * 1e3),
        "mean_return_ms": round(found["additive_engine_session_return_seconds_sum"] / returns * 1e3, 1) if returns else None,
        "memory_idle": idle, "memory_base": base, "memory_at_rest": at_rest, "memory_after": after, "resident_states": int(states),
        "at_rest_of_limit": round(at_rest / limit, 3), "after_of_limit": round(after / limit, 3), "bytes_each_in_table": int((at_rest - base - states) / options.count)}))
    return wrong == 0 and most >= 0.9 * options.streams and max(at_rest, after) <= limit


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=100000)
    parser.add_argument("--resident", type=int, default=10000)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), [
            "--backend", "cpu", "--max-sessions", options.streams, "--max-generations", options.streams,
            "--session-memory-bytes", memory(options)])
        try:
            return 0 if asyncio.run(run(service, options)) else 1
        finally:
            service.stop()


if __name__ == "__main__":
    sys.exit(main())
