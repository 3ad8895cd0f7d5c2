"""additived: requests with a limit of time, a priority or a tenant. A stream without credit runs until its time is over."""

import pytest

from engine_client import EngineError, engine
from engine_serving import daemon, model, refused, session


SECONDS = 5  # in which a few tokens are generated under any load


def release(calls):
    """End requests that wait."""
    for call in calls:
        call.cancel()
    for call in calls:
        ended(call)


def ended(call):
    """The error of a request, or its result."""
    try:
        return call.result()
    except EngineError as e:
        return e


def test_a_request_that_waits_until_its_time_is_over_is_504_and_frees_its_place(engine, model):
    ask = {"model": model, "prompt": "99", "max_tokens": 5}
    parked = [engine.begin("completion.create", {**ask, "timeout": 1000}, credit=0) for _ in range(7)]
    late = engine.begin("completion.create", {**ask, "timeout": SECONDS}, credit=0)
    assert refused(engine, "completion.create", ask).status == 429
    error = ended(late)
    assert (error.status, error.code, error.param) == (504, "timeout", "timeout")
    release(parked)
    assert engine.generate({**ask, "n": 8})[2]["usage"]["completion_tokens"] == 40


def test_tokens_generated_in_time_are_the_answer(engine, model):
    ask = {"model": model, "prompt": "99", "max_tokens": 40, "temperature": 0, "seed": 1}
    whole = engine.generate(ask)[0]
    call = engine.begin("completion.create", {**ask, "timeout": SECONDS}, credit=4)
    events = list(call.events())
    result = call.result()
    assert sum(len(e["tokens"]) for e in events) == result["usage"]["completion_tokens"] == 4
    assert result["choices"] == [{"index": 0, "finish_reason": "timeout"}]
    assert whole.startswith("".join(e["text"] for e in events))


def test_of_several_answers_those_without_tokens_are_part_of_the_result(engine, model):
    call = engine.begin("completion.create", {"model": model, "prompt": "99", "max_tokens": 40, "n": 3, "timeout": SECONDS}, credit=1)
    assert len(list(call.events())) == 1
    assert [c["finish_reason"] for c in call.result()["choices"]] == ["timeout"] * 3


def test_the_shorter_of_two_times_counts(engine, model):
    for body, context in ((600, 0.3), (0.3, 600), (None, 0.3)):
        call = engine.begin("completion.create", {"model": model, "prompt": "9", **({"timeout": body} if body else {})},
                            credit=0, context={"request_id": "a", "timeout": context})
        assert ended(call).status == 504


def test_a_session_keeps_the_tokens_that_were_delivered(engine, session):
    x = session(prompt="99 bottles")
    call = engine.begin("session.generate", {"id": x["id"], "max_tokens": 30, "timeout": SECONDS}, credit=3)
    assert len(list(call.events())) == 3
    assert call.result()["choices"][0]["finish_reason"] == "timeout"
    assert engine.call("session.get", {"id": x["id"]})["tokens"] == x["tokens"] + 3
    assert engine.generate({"id": x["id"], "max_tokens": 2}, method="session.generate")[2]["usage"]["completion_tokens"] == 2

@pytest.mark.parametrize("member, value", [("timeout", 0), ("timeout", 86401), ("priority", 1.5), ("priority", 1000001)])
def test_a_value_out_of_range_is_named(engine, model, member, value):
    error = refused(engine, "completion.create", {"model": model, "prompt": "9", member: value})
    assert (error.status, error.param) == (400, member)


def test_tenants_of_an_owner_are_owners_in_the_shares_of_slots(engine, model):
    ask = {"model": model, "prompt": "99", "max_tokens": 5, "timeout": 1000}

    def begin(tenant, **more):
        return engine.begin("completion.create", {**ask, **more}, owner="proxy", context={"request_id": "a", "fairness_id": tenant}, credit=0)

    held = [begin("first") for _ in range(8)]
    assert ended(begin("first")).status == 429  # all slots are its own
    assert ended(begin("second", timeout=0.3)).status == 504  # admitted
    release(held)
