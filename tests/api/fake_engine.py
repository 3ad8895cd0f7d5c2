"""A scriptable engine for tests of the front end: speaks the frame protocol, holds no models.

    with FakeEngine(path) as engine:
        @engine.on("model.get")
        async def _(call):
            call.result({"id": call.params["id"]})

Methods without a handler answer {"echo": PARAMS, "method": NAME}. The engine runs in a thread of its own; handlers are
coroutines on its loop, one task per stream, cancelled with the connection. `engine.calls` records every stream, but for
`engine.status`, which a check of readiness sends, and `key.watch` and `trace.watch`, which front ends send for themselves. The
first is answered with `engine.keys`, the second with the events of `engine.traces`, each after the one before was confirmed.
"""

import asyncio
import json
import struct
import threading

HELLO, REQUEST, DATA, EVENT, RESULT, ERROR, CREDIT, CANCEL, PING, PONG = range(1, 11)
END = 1
HEADER = struct.Struct("<IIIBBHQ")


def pack(kind, stream=0, body=None, payload=b"", credit=0, flags=0):
    text = b"" if body is None else json.dumps(body).encode()
    return HEADER.pack(len(text) + len(payload), len(text), credit, kind, flags, 0, stream) + text + payload


class Call:
    """One stream, as a handler sees it."""

    def __init__(self, connection, stream, method, params, credit, ended, owner, key, context):
        self.connection = connection
        self.stream = stream
        self.method = method
        self.params = params
        self.credit = credit
        self.owner = owner
        self.context = context  # the payload of the REQUEST
        self.key = key
        self.alive = 0  # CREDIT frames of nothing: the client reads
        self.upload = not ended
        self.cancelled = threading.Event()  # for tests
        self.finished = threading.Event()
        self.parked = 0  # number of times it has waited for credit
        self.sent = 0  # EVENT and DATA frames
        self.received = []  # (part or None, bytes, last)
        self.received_bytes = 0
        self.changed = asyncio.Event()

    async def _spend(self):
        while self.credit == 0:
            self.parked += 1
            await self._wait()
        self.credit -= 1
        self.sent += 1

    async def _wait(self):
        self.changed.clear()
        await self.changed.wait()
        if self.cancelled.is_set():
            raise asyncio.CancelledError

    async def event(self, body):
        await self._spend()
        await self.connection.send(pack(EVENT, self.stream, body))

    async def data(self, payload):
        await self._spend()
        await self.connection.send(pack(DATA, self.stream, payload=payload))

    def grant(self, frames):
        self.connection.write(pack(CREDIT, self.stream, credit=frames))

    async def read(self, keep=True):
        """The next DATA frame of an upload."""
        while not self.received:
            await self._wait()
        return self.received.pop(0)

    async def read_all(self, window=4):
        """The whole upload as {part: bytes}, granting a frame for each one read."""
        parts, name, last = {}, None, False
        self.grant(window)
        while not last:
            part, payload, last = await self.read()
            name = part or name
            parts[name] = parts.get(name, b"") + payload
            self.grant(1)
        return parts

    def _finish(self, kind, body, times=None):
        if not self.finished.is_set():
            self.finished.set()
            self.connection.calls.pop(self.stream, None)
            self.connection.write(pack(kind, self.stream, body, json.dumps(times).encode() if times else b""))

    def result(self, body, times=None):
        self._finish(RESULT, body, times)

    def error(self, status, code, message="no", param=None, **more):
        self._finish(ERROR, {"status": status, "code": code, "message": message, "param": param, **more})


class Connection:
    def __init__(self, engine, reader, writer):
        self.engine, self.reader, self.writer = engine, reader, writer
        self.calls = {}
        self.tasks = set()

    def write(self, data):
        if not self.writer.is_closing():
            self.writer.write(data)

    async def send(self, data):
        self.write(data)
        await self.writer.drain()

    async def run(self):
        self.write(self.engine.hello if self.engine.hello is not None else pack(HELLO, body={"protocol": 1, "software": "fake 0"}))
        try:
            while True:
                head = HEADER.unpack(await self.reader.readexactly(HEADER.size))
                body = await self.reader.readexactly(head[0])
                text = body[: head[1]]
                self.take(head[3], head[6], json.loads(text) if text else None, body[head[1] :], head[2], head[4])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for task in list(self.tasks):
                task.cancel()
            for call in list(self.calls.values()):
                call.cancelled.set()
            self.writer.close()

    def take(self, kind, stream, body, payload, credit, flags):
        engine = self.engine
        if engine.mute:
            return
        call = self.calls.get(stream)
        if kind == HELLO:
            engine.peer_hello = body
        elif kind == PING:
            engine.pings += 1
            self.write(pack(PONG))
        elif kind == REQUEST:
            call = Call(self, stream, body["method"], body.get("params", {}), credit, flags & END, body.get("owner"), body.get("key"),
                        json.loads(payload) if payload else {})
            self.calls[stream] = call
            if call.method not in ("engine.status", "key.watch", "trace.watch"):
                engine.calls.append(call)
            task = asyncio.ensure_future(engine.serve(call))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif kind == CANCEL and call:
            call.cancelled.set()
            call.changed.set()
            call.error(499, "cancelled", "cancelled")
        elif kind == CREDIT and call:
            call.credit += credit
            call.alive += credit == 0
            call.changed.set()
        elif kind == DATA and call:
            body = body or {}
            name = f"{body['part']}:{body['file']}" if "file" in body else body.get("part")
            call.received.append((name, payload, bool(flags & END)))
            call.received_bytes += len(payload)
            call.changed.set()
        elif kind == ERROR:
            engine.refusals.append(body)


class FakeEngine:
    def __init__(self, path):
        self.path = str(path)
        self.handlers = {}
        self.calls = []
        self.keys = {"required": False, "keys": []}  # the event of key.watch
        self.traces = []  # events of trace.watch that are to be sent; each is removed when it is confirmed
        self.refusals = []
        self.pings = 0
        self.hello = None  # bytes to send instead of HELLO
        self.mute = False  # neither read nor answer
        self.peer_hello = None
        self.connections = set()
        self.loop = asyncio.new_event_loop()
        self.server = None
        self.thread = threading.Thread(target=self._main, daemon=True)

    def on(self, method):
        def keep(handler):
            self.handlers[method] = handler
            return handler

        return keep

    def called(self, method):
        return [c for c in self.calls if c.method == method]

    async def serve(self, call):
        handler = self.handlers.get(call.method)
        try:
            if handler:
                await handler(call)
            elif call.method == "key.watch":
                await call.event(self.keys)
            elif call.method == "trace.watch":
                while True:
                    while not self.traces:
                        await asyncio.sleep(0.01)
                    await call.event(self.traces[0])
                    while call.credit == 0:
                        await call._wait()
                    self.traces.pop(0)
            else:
                call.result({"echo": call.params, "method": call.method})
        except asyncio.CancelledError:
            pass
        except Exception as e:  # a test's mistake should not look like a hang
            call.error(500, "test_error", repr(e))

    async def _accept(self, reader, writer):
        connection = Connection(self, reader, writer)
        self.connections.add(connection)
        await connection.run()
        self.connections.discard(connection)

    def _main(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def do(self, coroutine):
        """Run a coroutine on the engine's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    async def _listen(self):
        self.server = await asyncio.start_unix_server(self._accept, self.path)

    async def _unlisten(self):
        if self.server:
            self.server.close()
            self.server = None
        for connection in list(self.connections):
            connection.writer.transport.abort()

    def start(self):
        self.do(self._listen())

    def stop(self):
        """Stop as a killed engine does: every connection is cut, and new ones are refused."""
        self.do(self._unlisten())

    def __enter__(self):
        self.thread.start()
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()
