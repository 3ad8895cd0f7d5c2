"""For schemathesis (README.md): what proto/openapi.yaml says in words, because no schema can."""

import uuid

import schemathesis

FILES = ("file", "config", "weights", "tokenizer")
DECLARED = (b'"code":"invalid_request"', b'"code":"corrupt_data"', b' bytes, not a string of ')  # lengths are bytes


def is_refused(value):
    """Is a member null, which counts as absent, or its name one with U+0000?"""
    if isinstance(value, dict):
        return any(member is None or "\0" in name or is_refused(member) for name, member in value.items())
    return isinstance(value, list) and any(member is None or is_refused(member) for member in value)


@schemathesis.hook
def filter_case(context, case):
    """Leave out what is declared to count as absent, or as refused."""
    body = case.body if isinstance(case.body, dict) else {}
    headers = {name.lower() for name in case.headers or ()}
    if "idempotency-key" in headers and body.get("stream") is True:
        return False
    if case.method.upper() == "POST" and case.path == "/v1/sessions":
        if ("model" in (case.query or ())) != (case.media_type == "application/octet-stream"):
            return False
    return not is_refused(body)


@schemathesis.hook
def before_call(context, case, kwargs):
    """The small fields of a form stand before its files; a key is used once (a repeat may name what was deleted since)."""
    for name in list(case.headers or ()):
        key = case.headers[name]
        if name.lower() == "idempotency-key" and key and key.isascii() and key.isprintable() and len(key) < 200:
            case.headers[name] = key + uuid.uuid4().hex
    if case.media_type == "multipart/form-data" and isinstance(case.body, dict):
        case.body = dict(sorted(case.body.items(), key=lambda field: field[0] in FILES))


@schemathesis.hook
def after_call(context, case, response):
    """What does not fit the model or the session it names, or is no whole import, is not a mistake of the document."""
    if response.status_code == 400 and any(words in response.content for words in DECLARED):
        response.status_code = 409
