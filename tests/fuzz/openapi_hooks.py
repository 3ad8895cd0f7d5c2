"""For schemathesis (README.md): rules that proto/openapi.yaml states in words, because no schema can."""

import re
import uuid

import schemathesis

FILES = ("file", "config", "weights", "tokenizer", "archive")
KEY = re.compile(r"metadata\[[^\0]{1,64}\]")
DECLARED = (b'"code":"invalid_request"', b'"code":"corrupt_data"', b' bytes, not a string of ',  # lengths are bytes
            b'"code":"out_of_range"',  # more than 63 bits
            b"'best_of' greater than 'n' cannot be combined", b"'compare' cannot be combined with 'span'")


def is_refused(value):
    """True if a member is null, which counts as absent, or has U+0000 in its name."""
    if isinstance(value, dict):
        return any(member is None or "\0" in name or is_refused(member) for name, member in value.items())
    return isinstance(value, list) and any(member is None or is_refused(member) for member in value)


def is_null_written_as_empty(case):
    """True if only the job filter is invalid, because of a null. It is written as "metadata[KEY]=", which is valid and
    matches the empty text."""
    invalid = getattr(getattr(getattr(case.meta, "phase", None), "data", None), "parameter", None)
    members = {name: value for name, value in (case.query or {}).items() if name.startswith("metadata")}
    return (invalid == "metadata" and case.meta.generation.mode.is_negative and "" in members.values() and len(members) <= 8
            and all(KEY.fullmatch(name) and isinstance(value, str) and len(value) <= 512 and "\0" not in value
                    for name, value in members.items()))


@schemathesis.hook
def filter_case(context, case):
    """Skip cases with members that are declared absent or refused, and cases that are valid in their written form."""
    if is_null_written_as_empty(case):
        return False
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
    """Put the small fields of a form before its files, and use a key once (a repeat may refer to something deleted
    since)."""
    for name in list(case.headers or ()):
        key = case.headers[name]
        if name.lower() == "idempotency-key" and key and key.isascii() and key.isprintable() and len(key) < 200:
            case.headers[name] = key + uuid.uuid4().hex
    if case.media_type == "multipart/form-data" and isinstance(case.body, dict):
        case.body = dict(sorted(case.body.items(), key=lambda field: field[0] in FILES))


@schemathesis.hook
def after_call(context, case, response):
    """A request that does not fit its model or session, or an incomplete import, is not an error of the document."""
    if response.status_code == 400 and any(words in response.content for words in DECLARED):
        response.status_code = 409
