"""Requests as data, and what both senders decide by.

A `Call` describes a request and how often it may be sent. All decisions (headers, retries, errors, server-sent events)
are functions of calls and answers; a sender (`_async.py`, `_sync.py`) only does the input and output."""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import ssl
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from .errors import APIError, ConnectionFailed

ATTEMPTS = 5
LONGEST_WAIT = 30.0
RESPONSE_END = tuple("response." + status for status in ("completed", "incomplete", "failed", "cancelled"))


@dataclass(frozen=True)
class Part:
    """A file of a form."""

    field: str
    name: str
    data: pathlib.Path | bytes


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    body: Any = None  # sent as JSON
    query: dict[str, Any] | None = None
    content: bytes | None = None  # sent as it is
    form: dict[str, str] | None = None
    parts: tuple[Part, ...] = ()
    accept: str = "application/json"
    repeatable: bool = False  # sending it twice has the effect of sending it once
    patient: bool = False  # without a read timeout, since the service may work longer and would begin again
    headers: dict[str, str] = field(default_factory=dict)


def get(path: str, query: dict[str, Any] | None = None, accept: str = "application/json") -> Call:
    return Call("GET", path, query=query, accept=accept, repeatable=True)


def once(method: str, path: str, **rest: Any) -> Call:
    """A call that the service does once, however often it is sent: all attempts carry the same Idempotency-Key."""
    return Call(method, path, repeatable=True, headers={"Idempotency-Key": uuid.uuid4().hex}, **rest)


def given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def arguments(call: Call, files: contextlib.ExitStack, timeout: httpx.Timeout) -> dict[str, Any]:
    """The arguments of the call for httpx. Files are opened again for each attempt, and closed by `files`. timeout: the client's."""
    headers = {"Accept": call.accept, **call.headers}
    kw: dict[str, Any] = given(params=call.query, json=call.body, content=call.content, data=call.form)
    if call.content is not None:
        headers["Content-Type"] = "application/octet-stream"
    if call.parts:
        kw["files"] = [(p.field, (p.name, p.data if isinstance(p.data, bytes) else files.enter_context(p.data.open("rb"))))
                       for p in call.parts]
    if call.patient:
        timeout = httpx.Timeout(connect=timeout.connect, read=None, write=timeout.write, pool=timeout.pool)
    return {"method": call.method, "url": call.path, "headers": headers, "timeout": timeout, **kw}


def backoff(attempt: int) -> float:
    """Seconds to wait after attempt number 1, 2, …"""
    return min(LONGEST_WAIT, 0.25 * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)


def wait_before_retry(call: Call, attempt: int, answer: httpx.Response | None) -> float | None:
    """Seconds to wait after attempt 1, 2, …, or None: the answer, or the failure to connect, is final."""
    if not call.repeatable or attempt >= ATTEMPTS or (answer is not None and answer.status_code not in (429, 503)):
        return None
    if answer is not None and answer.headers.get("x-should-retry") == "false":
        return None
    asked = answer.headers.get("Retry-After", "") if answer is not None else ""
    return max(backoff(attempt), min(LONGEST_WAIT, float(asked) if asked.isdigit() else 0))


def error_of(answer: httpx.Response) -> APIError:
    """The error of an answer whose body has been read."""
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": answer.text[:200]}
    return APIError(answer.status_code, error, answer.headers.get("X-Request-Id"))


class EventParser:
    """Server-sent events from bytes; a line ends with a line feed and nothing else, so JSON may hold U+2028."""

    def __init__(self) -> None:
        self.rest = b""
        self.last_id: str | None = None
        self.done = False

    def feed(self, data: bytes) -> Iterator[Any]:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").decode().partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self.last_id = value
            elif name == "data" and value == "[DONE]":
                self.done = True
            elif name == "data":
                event = json.loads(value)
                if "error" in event and "object" not in event:
                    raise APIError(0, event["error"])
                if "sequence_number" in event:
                    self.last_id = str(event["sequence_number"])
                    self.done = event["type"] in RESPONSE_END
                yield event

    def end(self) -> None:
        if not self.done:
            raise ConnectionFailed("the stream ended before it was complete")


def options(base_url: str, api_key: str | None, ca: str | pathlib.Path | None, timeout: httpx.Timeout) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return {"base_url": base_url, "headers": headers, "timeout": timeout,
            "verify": ssl.create_default_context(cafile=ca) if ca else True}
