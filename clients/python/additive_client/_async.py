"""`AsyncClient`: each method sends one call. Options that are not named here go into the request under their names in
openapi.yaml, by keyword; the service refuses what it does not know.

`_sync.py` is generated from this file by make_sync.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import httpx

from . import calls
from .answers import Adapter, Batch, ChatCompletion, Checkpoint, Completion, Deleted, Evaluation, File, FileStatistics, Job, JobEvent, Key, Model, ModelCard, NewKey, Response, SessionInfo, SessionTree, Snapshot
from .errors import ConnectionFailed
from .explanation import Numbers
from .progress import Progress
from .transport import ATTEMPTS, Call, EventParser, arguments, backoff, error_of, get, given, options, wait_before_retry

ENDED = ("succeeded", "failed", "cancelled")
BATCH_ENDED = ("completed", "failed", "expired", "cancelled")


class AsyncSender:
    def __init__(self, **kw: Any) -> None:
        self.http = httpx.AsyncClient(**kw)

    @contextlib.asynccontextmanager
    async def open(self, call: Call) -> AsyncIterator[httpx.Response]:
        """An answer of status 200 whose body is not read yet; leaving the context ends the request."""
        for attempt in range(1, ATTEMPTS + 1):
            answer, failure = None, None
            with contextlib.ExitStack() as files:
                try:
                    answer = await self.http.send(self.http.build_request(**arguments(call, files, self.http.timeout)), stream=True)
                    if answer.status_code != 200:
                        await answer.aread()
                except httpx.TransportError as error:
                    failure = error
            if answer is not None and failure is None and answer.status_code == 200:
                try:
                    yield answer
                except httpx.TransportError as error:
                    raise ConnectionFailed(str(error)) from error
                finally:
                    await answer.aclose()
                return
            wait = wait_before_retry(call, attempt, answer if failure is None else None)
            if wait is None:
                raise error_of(answer) if answer is not None and failure is None else ConnectionFailed(str(failure)) from failure
            await asyncio.sleep(wait)

    async def bytes(self, call: Call) -> bytes:
        async with self.open(call) as answer:
            return await answer.aread()

    async def json(self, call: Call) -> Any:
        return json.loads(await self.bytes(call))

    async def save(self, call: Call, path: pathlib.Path) -> None:
        """The file appears when it is whole."""
        partial = path.with_name(path.name + ".partial")
        try:
            async with self.open(call) as answer:
                with partial.open("wb") as file:
                    async for chunk in answer.aiter_bytes():
                        file.write(chunk)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    async def events(self, call: Call, parser: EventParser) -> AsyncIterator[Any]:
        async with self.open(call) as answer:
            async for data in answer.aiter_bytes():
                for event in parser.feed(data):
                    yield event
                if parser.done:
                    return
        parser.end()


class AsyncExplanation(Numbers):
    def __init__(self, raw: dict[str, Any], sender: AsyncSender, page: Call) -> None:
        super().__init__(raw)
        self._sender, self._page = sender, page

    async def to_html(self) -> str:
        """The service's own page of the same request, which the service computes for it again."""
        return (await self._sender.bytes(self._page)).decode()


class AsyncModels:
    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def list(self) -> list[Model]:
        models: list[Model] = (await self._sender.json(get(calls.MODELS)))["data"]
        return models

    async def get(self, model: str) -> Model:
        answer: Model = await self._sender.json(calls.show(calls.MODELS, model))
        return answer

    async def card(self, model: str) -> ModelCard:
        """Where the model comes from: its parents, files, settings, results and evaluations."""
        answer: ModelCard = await self._sender.json(get(calls.of(calls.MODELS, model, "card")))
        return answer

    async def delete(self, model: str) -> Deleted:
        answer: Deleted = await self._sender.json(calls.delete(calls.MODELS, model))
        return answer

    async def export(self, model: str, folder: str | pathlib.Path) -> pathlib.Path:
        """All files of the model, into a folder that is made if it is missing; the folder."""
        target = pathlib.Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for file in (await self._sender.json(get(calls.of(calls.MODELS, model, "files"))))["data"]:
            await self._sender.save(calls.model_file(model, file["name"]), target / pathlib.PurePosixPath(file["name"]).name)
        return target

    async def push(self, model: str, folder: str | pathlib.Path) -> Model:
        """Import a model folder, under a new id."""
        answer: Model = await self._sender.json(calls.import_model(model, pathlib.Path(folder)))
        return answer


class AsyncFiles:
    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def upload(self, file: str | pathlib.Path | bytes, name: str | None = None, checksum: str | None = None, format: str | None = None,
                     purpose: str = "fine-tune") -> File:
        """A file of any size is streamed from the disk. `checksum`: its SHA-256 in hex. `format`: auto, text or json. `purpose`: fine-tune
        or batch."""
        answer: File = await self._sender.json(calls.upload(file, name, checksum, format, purpose))
        return answer

    def list(self) -> AsyncIterator[File]:
        return _pages(self._sender, calls.FILES)

    async def get(self, file: str) -> File:
        answer: File = await self._sender.json(calls.show(calls.FILES, file))
        return answer

    async def content(self, file: str) -> bytes:
        return await self._sender.bytes(get(calls.of(calls.FILES, file, "content"), accept="*/*"))

    async def statistics(self, file: str, model: str | None = None) -> FileStatistics:
        """Documents, tokens, lengths, duplicates and scripts of the file, with the tokenizer of the model; without one tokens are bytes.
        The count of a large file takes long, so this call waits for its answer without a limit."""
        answer: FileStatistics = await self._sender.json(calls.statistics(file, model))
        return answer

    async def delete(self, file: str) -> Deleted:
        answer: Deleted = await self._sender.json(calls.delete(calls.FILES, file))
        return answer


async def _followed(sender: AsyncSender, path: str, after: str | None) -> AsyncIterator[Any]:
    cuts = 0
    while True:
        parser = EventParser()
        try:
            async for event in sender.events(calls.events(path, after), parser):
                after, cuts = parser.last_id or after, 0
                yield event
            return
        except ConnectionFailed:
            cuts += 1
            if cuts >= ATTEMPTS:
                raise
            await asyncio.sleep(backoff(cuts))


class AsyncJobs:
    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def create(self, model: str, training_file: str, **fields: Any) -> Job:
        answer: Job = await self._sender.json(calls.create_job(model, training_file, fields))
        return answer

    async def get(self, job: str) -> Job:
        answer: Job = await self._sender.json(calls.show(calls.JOBS, job))
        return answer

    async def delete(self, job: str) -> Deleted:
        answer: Deleted = await self._sender.json(calls.delete(calls.JOBS, job))
        return answer

    async def _change(self, job: str, change: str) -> Job:
        answer: Job = await self._sender.json(calls.change_job(job, change))
        return answer

    async def cancel(self, job: str) -> Job:
        return await self._change(job, "cancel")

    async def pause(self, job: str) -> Job:
        return await self._change(job, "pause")

    async def resume(self, job: str) -> Job:
        return await self._change(job, "resume")

    def checkpoints(self, job: str) -> AsyncIterator[Checkpoint]:
        return _pages(self._sender, calls.of(calls.JOBS, job, "checkpoints"))

    def events(self, job: str, after: str | None = None) -> AsyncIterator[JobEvent]:
        """Every event, oldest first, until the job has ended. A stream that is cut is resumed after the last event."""
        return _followed(self._sender, calls.of(calls.JOBS, job, "events"), after)

    async def metrics(self, job: str) -> list[dict[str, Any]]:
        """The data of the metrics events so far, oldest first."""
        events: AsyncIterator[JobEvent] = _pages(self._sender, calls.of(calls.JOBS, job, "events"))
        return [event["data"] async for event in events if event["type"] == "metrics" and event["data"]][::-1]

    async def wait(self, job: str, progress: bool = True) -> Job:
        """Until the job has ended, in whatever way; its `status` says how. Progress goes to stderr."""
        last: str | None = None
        with Progress(progress) as shown:
            while True:
                async for event in self.events(job, last):
                    last = event["id"]
                    if event["type"] == "metrics" and event["data"]:
                        shown.show(event["data"])
                if (state := await self.get(job))["status"] in ENDED:
                    return state
                await asyncio.sleep(1)

    def list(self) -> AsyncIterator[Job]:
        return _pages(self._sender, calls.JOBS)


class AsyncAdapters:
    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def get(self, adapter: str) -> Adapter:
        answer: Adapter = await self._sender.json(calls.show(calls.ADAPTERS, adapter))
        return answer

    async def delete(self, adapter: str) -> Deleted:
        answer: Deleted = await self._sender.json(calls.delete(calls.ADAPTERS, adapter))
        return answer

    async def save(self, adapter: str, path: str | pathlib.Path) -> None:
        """Write its safetensors file, or of the kind `lora` its archive."""
        await self._sender.save(calls.adapter_content(adapter), pathlib.Path(path))

    async def push(self, model: str, path: str | pathlib.Path) -> Adapter:
        """Import an adapter for a model: a folder that PEFT has written, or what `save` wrote."""
        answer: Adapter = await self._sender.json(calls.import_adapter(model, pathlib.Path(path)))
        return answer

    def list(self) -> AsyncIterator[Adapter]:
        return _pages(self._sender, calls.ADAPTERS)


class AsyncEvaluations:
    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def create(self, model: str, file: str, **fields: Any) -> Evaluation:
        answer: Evaluation = await self._sender.json(calls.create_evaluation(model, file, fields))
        return answer

    async def get(self, evaluation: str) -> Evaluation:
        answer: Evaluation = await self._sender.json(calls.show(calls.EVALUATIONS, evaluation))
        return answer

    async def cancel(self, evaluation: str) -> Evaluation:
        answer: Evaluation = await self._sender.json(calls.cancel_evaluation(evaluation))
        return answer

    async def delete(self, evaluation: str) -> Deleted:
        answer: Deleted = await self._sender.json(calls.delete(calls.EVALUATIONS, evaluation))
        return answer

    def events(self, evaluation: str, after: str | None = None) -> AsyncIterator[JobEvent]:
        """Every event, oldest first, until the evaluation has ended."""
        return _followed(self._sender, calls.of(calls.EVALUATIONS, evaluation, "events"), after)

    async def wait(self, evaluation: str, progress: bool = True) -> Evaluation:
        """Until it has ended, in whatever way; its `status` says how. Progress goes to stderr."""
        last: str | None = None
        with Progress(progress, "token") as shown:
            while True:
                async for event in self.events(evaluation, last):
                    last = event["id"]
                    if event["type"] == "progress" and (data := event["data"]):
                        shown.show({**data, "step": data["tokens"], "total_steps": data["total_tokens"]})
                if (state := await self.get(evaluation))["status"] in ENDED:
                    return state
                await asyncio.sleep(1)

    def list(self) -> AsyncIterator[Evaluation]:
        return _pages(self._sender, calls.EVALUATIONS)


class AsyncBatches:
    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def create(self, file: str, endpoint: str, completion_window: str = "24h", **fields: Any) -> Batch:
        """`file`: the id of a file with the purpose batch."""
        answer: Batch = await self._sender.json(calls.create_batch(file, endpoint, completion_window, fields))
        return answer

    async def get(self, batch: str) -> Batch:
        answer: Batch = await self._sender.json(calls.show(calls.BATCHES, batch))
        return answer

    async def cancel(self, batch: str) -> Batch:
        answer: Batch = await self._sender.json(calls.cancel_batch(batch))
        return answer

    async def delete(self, batch: str) -> Deleted:
        answer: Deleted = await self._sender.json(calls.delete(calls.BATCHES, batch))
        return answer

    async def wait(self, batch: str, progress: bool = True) -> Batch:
        """Until it has ended, in whatever way; its `status` says how. Progress goes to stderr."""
        with Progress(progress, "request") as shown:
            while True:
                state = await self.get(batch)
                counts = state["request_counts"]
                if counts["total"]:
                    shown.show({"step": counts["completed"] + counts["failed"], "total_steps": counts["total"]})
                if state["status"] in BATCH_ENDED:
                    return state
                await asyncio.sleep(1)

    async def results(self, batch: str) -> list[dict[str, Any]]:
        """The lines of the output file, then those of the error file."""
        state = await self.get(batch)
        files = [file for file in (state["output_file_id"], state["error_file_id"]) if file]
        texts = [await self._sender.bytes(get(calls.of(calls.FILES, file, "content"), accept="*/*")) for file in files]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    def list(self) -> AsyncIterator[Batch]:
        return _pages(self._sender, calls.BATCHES)


class AsyncKeys:
    """For admins."""

    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def create(self, name: str, **fields: Any) -> NewKey:
        """The answer's `secret` cannot be shown again."""
        answer: NewKey = await self._sender.json(calls.create_key({"name": name, **fields}))
        return answer

    async def get(self, key: str) -> Key:
        answer: Key = await self._sender.json(calls.show(calls.KEYS, key))
        return answer

    async def update(self, key: str, **fields: Any) -> Key:
        answer: Key = await self._sender.json(calls.update_key(key, fields))
        return answer

    async def revoke(self, key: str) -> Key:
        answer: Key = await self._sender.json(calls.delete(calls.KEYS, key))
        return answer

    def list(self) -> AsyncIterator[Key]:
        return _pages(self._sender, calls.KEYS)


class AsyncResponses:
    """Answers of /v1/responses. Those created with `background` or `store` are kept by the service under their id."""

    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def create(self, model: str, input: str | list[dict[str, Any]], **fields: Any) -> Response:
        answer: Response = await self._sender.json(calls.create_response(model, input, fields))
        return answer

    def stream(self, model: str, input: str | list[dict[str, Any]], **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """Events; closing the iterator ends the request. To continue after a lost connection use `background` and `events`."""
        return self._sender.events(calls.streamed(calls.create_response(model, input, fields)), EventParser())

    async def get(self, response: str) -> Response:
        answer: Response = await self._sender.json(calls.show(calls.RESPONSES, response))
        return answer

    async def input(self, response: str) -> list[dict[str, Any]]:
        """The messages of its input, in order."""
        items: list[dict[str, Any]] = (await self._sender.json(calls.response_input(response)))["data"]
        return items

    async def cancel(self, response: str) -> Response:
        answer: Response = await self._sender.json(calls.cancel_response(response))
        return answer

    async def delete(self, response: str) -> Deleted:
        answer: Deleted = await self._sender.json(calls.delete(calls.RESPONSES, response))
        return answer

    def events(self, response: str, after: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """Its events from the first one, or after the one with that `sequence_number`, until it has ended. A stream that is cut is
        resumed after the last event."""
        return _followed(self._sender, calls.of(calls.RESPONSES, response), None if after is None else str(after))

    async def wait(self, response: str) -> Response:
        """Until it has ended, in whatever way; its `status` says how."""
        last: dict[str, Any] = {}
        async for last in self.events(response):
            pass
        ended: Response = last["response"]
        return ended


class AsyncSession:
    """Recurrent state on the engine. As a context manager it is deleted at the end."""

    def __init__(self, sender: AsyncSender, info: SessionInfo) -> None:
        self._sender = sender
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    async def append(self, text: str | list[int], **fields: Any) -> SessionInfo:
        self.info = await self._sender.json(calls.in_session(self.id, "append", {"text": text, **fields}))
        return self.info

    async def generate(self, prompt: str | list[int] | None = None, **fields: Any) -> Completion:
        body = given(prompt=prompt, **fields)
        answer: Completion = await self._sender.json(calls.in_session(self.id, "generate", body))
        return answer

    def stream(self, prompt: str | list[int] | None = None, **fields: Any) -> AsyncIterator[Completion]:
        call = calls.stream_in_session(self.id, given(prompt=prompt, **fields))
        return self._sender.events(calls.streamed(call), EventParser())

    async def fork(self, snapshot: str | None = None) -> AsyncSession:
        """A copy of the session, or of one of its snapshots."""
        body = given(snapshot=snapshot)
        return AsyncSession(self._sender, await self._sender.json(calls.in_session(self.id, "fork", body)))

    async def snapshot(self, name: str | None = None) -> Snapshot:
        """Keep the present state, for `rollback` and `fork`."""
        answer: Snapshot = await self._sender.json(calls.in_session(self.id, "snapshots", given(name=name)))
        return answer

    async def snapshots(self) -> list[Snapshot]:
        """The session's snapshots, newest first."""
        return [snapshot async for snapshot in _pages(self._sender, calls.of(calls.SESSIONS, self.id, "snapshots"))]

    async def delete_snapshot(self, snapshot: str) -> Deleted:
        answer: Deleted = await self._sender.json(calls.delete(calls.of(calls.SESSIONS, self.id, "snapshots"), snapshot))
        return answer

    async def rollback(self, snapshot: str) -> SessionInfo:
        """Continue from a snapshot as if nothing had been read since."""
        self.info = await self._sender.json(calls.in_session(self.id, "rollback", {"snapshot": snapshot}))
        return self.info

    async def tree(self) -> SessionTree:
        """The session with its snapshots and forks, and with theirs."""
        answer: SessionTree = await self._sender.json(get(calls.of(calls.SESSIONS, self.id, "tree")))
        return answer

    async def export(self, path: str | pathlib.Path) -> None:
        await self._sender.save(calls.session_state(self.id), pathlib.Path(path))

    async def delete(self) -> Deleted:
        answer: Deleted = await self._sender.json(calls.delete(calls.SESSIONS, self.id))
        return answer

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.delete()


class AsyncSessions:
    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def create(self, model: str, prompt: str | list[int] | None = None, **fields: Any) -> AsyncSession:
        body = given(model=model, prompt=prompt, **fields)
        return AsyncSession(self._sender, await self._sender.json(calls.create_session(body)))

    async def list(self) -> list[SessionInfo]:
        return [session async for session in _pages(self._sender, calls.SESSIONS)]

    async def open(self, session: str) -> AsyncSession:
        return AsyncSession(self._sender, await self._sender.json(calls.show(calls.SESSIONS, session)))

    async def restore(self, model: str, path: str | pathlib.Path, adapter: str | None = None) -> AsyncSession:
        """A new session of a state that `Session.export` wrote."""
        state = pathlib.Path(path).read_bytes()
        return AsyncSession(self._sender, await self._sender.json(calls.restore_session(model, state, adapter)))


class AsyncClient:
    """Not for several threads at once. Timeouts are seconds: to connect, and between two pieces of an answer, except that of
    `files.statistics`. ca: a PEM file of certificates that may sign an https service's, in place of SSL_CERT_FILE or the usual ones."""

    def __init__(self, base_url: str = "http://127.0.0.1:8080", api_key: str | None = None, *, ca: str | pathlib.Path | None = None,
                 timeout: float = 600.0, connect_timeout: float = 5.0) -> None:
        self._sender = AsyncSender(**options(base_url, api_key, ca, httpx.Timeout(timeout, connect=connect_timeout)))
        self.models, self.files, self.jobs = AsyncModels(self._sender), AsyncFiles(self._sender), AsyncJobs(self._sender)
        self.evaluations, self.sessions = AsyncEvaluations(self._sender), AsyncSessions(self._sender)
        self.batches, self.keys = AsyncBatches(self._sender), AsyncKeys(self._sender)
        self.responses, self.adapters = AsyncResponses(self._sender), AsyncAdapters(self._sender)

    async def complete(self, model: str, prompt: str | list[int] | list[str], **fields: Any) -> Completion:
        answer: Completion = await self._sender.json(calls.completion({"model": model, "prompt": prompt, **fields}))
        return answer

    def stream(self, model: str, prompt: str | list[int], **fields: Any) -> AsyncIterator[Completion]:
        """Chunks; closing the iterator ends the request."""
        call = calls.completion({"model": model, "prompt": prompt, **fields})
        return self._sender.events(calls.streamed(call), EventParser())

    async def chat(self, model: str, messages: list[dict[str, Any]], **fields: Any) -> ChatCompletion:
        answer: ChatCompletion = await self._sender.json(calls.chat({"model": model, "messages": messages, **fields}))
        return answer

    def chat_stream(self, model: str, messages: list[dict[str, Any]], **fields: Any) -> AsyncIterator[ChatCompletion]:
        call = calls.chat({"model": model, "messages": messages, **fields})
        return self._sender.events(calls.streamed(call), EventParser())

    async def tokenize(self, model: str, text: str, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._sender.json(calls.reading("/v1/tokenize", model, {"text": text, **fields}))
        return answer

    async def embed(self, model: str, input: str | list[str], **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._sender.json(calls.reading("/v1/embeddings", model, {"input": input, **fields}))
        return answer

    async def classify(self, model: str, input: str | list[str], **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._sender.json(calls.reading("/v1/classify", model, {"input": input, **fields}))
        return answer

    async def fill_mask(self, model: str, input: str, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._sender.json(calls.reading("/v1/fill-mask", model, {"input": input, **fields}))
        return answer

    async def explain(self, model: str | None = None, input: str | list[int] | None = None, **fields: Any) -> AsyncExplanation:
        body = given(model=model, input=input, **fields)
        return AsyncExplanation(await self._sender.json(calls.explain(body)), self._sender, calls.explain(body, "text/html"))

    async def close(self) -> None:
        await self._sender.http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


async def _pages(sender: AsyncSender, path: str) -> AsyncIterator[Any]:
    after: str | None = None
    while True:
        page = await sender.json(get(path, given(after=after, limit=100)))
        for item in page["data"]:
            yield item
        if not page["has_more"] or not page["data"]:
            return
        after = page["data"][-1]["id"]
