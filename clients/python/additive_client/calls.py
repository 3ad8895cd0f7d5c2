"""The API as calls: each function is one request of openapi.yaml."""

from __future__ import annotations

import dataclasses
import pathlib
import tarfile
from typing import Any
from urllib.parse import quote

from .transport import Call, Part, get, given, once

MODELS, FILES, JOBS, EVALUATIONS, SESSIONS = "/v1/models", "/v1/files", "/v1/fine_tuning/jobs", "/v1/evaluations", "/v1/sessions"
BATCHES = "/v1/batches"
KEYS = "/v1/keys"
RESPONSES = "/v1/responses"
ADAPTERS = "/v1/adapters"


def of(base: str, name: str, *rest: str) -> str:
    return "/".join((base, quote(name, safe=""), *rest))


def show(base: str, name: str) -> Call:
    return get(of(base, name))


def delete(base: str, name: str) -> Call:
    return Call("DELETE", of(base, name))


def model_file(model: str, name: str) -> Call:
    return get(of(MODELS, model, "files", name), accept="*/*")


def import_model(model: str, folder: pathlib.Path) -> Call:
    parts = tuple(Part("file", path.name, path) for path in sorted(folder.iterdir()) if path.is_file())
    return once("POST", MODELS, form={"id": model}, parts=parts)


def upload(file: str | pathlib.Path | bytes, name: str | None, checksum: str | None, format: str | None = None,
           purpose: str = "fine-tune") -> Call:
    data = file if isinstance(file, bytes) else pathlib.Path(file)
    part = Part("file", name or ("upload.txt" if isinstance(data, bytes) else data.name), data)
    return once("POST", FILES, form=given(purpose=purpose, checksum=checksum, format=format), parts=(part,))


def statistics(file: str, model: str | None) -> Call:
    return Call("GET", of(FILES, file, "statistics"), query=given(model=model), repeatable=True, patient=True)


def create_job(model: str, training_file: str, fields: dict[str, Any]) -> Call:
    return once("POST", JOBS, body={"model": model, "training_file": training_file, **fields})


def change_job(job: str, change: str) -> Call:
    return Call("POST", of(JOBS, job, change))


def create_evaluation(model: str, file: str, fields: dict[str, Any]) -> Call:
    return once("POST", EVALUATIONS, body={"model": model, "file": file, **fields})


def cancel_evaluation(evaluation: str) -> Call:
    return Call("POST", of(EVALUATIONS, evaluation, "cancel"))


def create_batch(file: str, endpoint: str, completion_window: str, fields: dict[str, Any]) -> Call:
    return once("POST", BATCHES, body={"input_file_id": file, "endpoint": endpoint, "completion_window": completion_window, **fields})


def cancel_batch(batch: str) -> Call:
    return Call("POST", of(BATCHES, batch, "cancel"))


def create_key(fields: dict[str, Any]) -> Call:
    return Call("POST", KEYS, body=fields)


def update_key(key: str, fields: dict[str, Any]) -> Call:
    return Call("POST", of(KEYS, key), body=fields)


def create_response(model: str, input: str | list[dict[str, Any]], fields: dict[str, Any]) -> Call:
    """Sent once if the service keeps the response: a second one would be another response."""
    kept = bool(fields.get("background") or fields.get("store"))
    return Call("POST", RESPONSES, body={"model": model, "input": input, **fields}, repeatable=not kept)


def cancel_response(response: str) -> Call:
    return Call("POST", of(RESPONSES, response, "cancel"), repeatable=True)


def response_input(response: str) -> Call:
    return get(of(RESPONSES, response, "input_items"), {"order": "asc"})


def events(path: str, last: str | None) -> Call:
    call = get(path, {"stream": "true"}, accept="text/event-stream")
    return dataclasses.replace(call, headers={"Last-Event-ID": last}) if last else call


def completion(fields: dict[str, Any]) -> Call:
    return Call("POST", "/v1/completions", body=fields, repeatable=True)


def chat(fields: dict[str, Any]) -> Call:
    return Call("POST", "/v1/chat/completions", body=fields, repeatable=True)


def create_session(fields: dict[str, Any]) -> Call:
    return once("POST", SESSIONS, body=fields)


def restore_session(model: str, state: bytes, adapter: str | None = None) -> Call:
    return once("POST", SESSIONS, query=given(model=model, adapter=adapter), content=state)


def in_session(session: str, action: str, fields: dict[str, Any] | None = None) -> Call:
    return once("POST", of(SESSIONS, session, action), body=fields)


def stream_in_session(session: str, fields: dict[str, Any]) -> Call:
    return Call("POST", of(SESSIONS, session, "generate"), body=fields)


def import_adapter(model: str, path: pathlib.Path) -> Call:
    """A folder that PEFT has written, a tar archive, or a file of states."""
    names = {"adapter.safetensors", "adapter_config.json", "adapter_model.safetensors"}
    if path.is_dir():
        parts = tuple(Part("file", file.name, file) for file in sorted(path.iterdir()) if file.name in names)
    else:
        parts = (Part("archive", path.name, path) if tarfile.is_tarfile(path) else Part("file", "adapter.safetensors", path),)
    return once("POST", ADAPTERS, form={"model": model}, parts=parts)


def adapter_content(adapter: str) -> Call:
    return get(of(ADAPTERS, adapter, "content"), accept="*/*")


def session_state(session: str) -> Call:
    return get(of(SESSIONS, session, "state"), accept="application/octet-stream")


def reading(path: str, model: str, fields: dict[str, Any]) -> Call:
    """A question to a model that changes nothing."""
    return Call("POST", path, body={"model": model, **fields}, repeatable=True)


def explain(fields: dict[str, Any], accept: str = "application/json") -> Call:
    return Call("POST", "/v1/explain", body=fields, accept=accept, repeatable=True)


def streamed(call: Call) -> Call:
    return dataclasses.replace(call, accept="text/event-stream", body={**call.body, "stream": True})
