"""Shared by the tests of a running engine: an engine with few slots, a model in it, and sessions of the model."""

import pytest

from engine_client import Daemon, EngineError, train


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("serving") / "data", "--max-generations", 8, "--max-sessions", 6) as d:
        yield d


@pytest.fixture(scope="module")
def model(engine):
    return train(engine, steps=60)


@pytest.fixture
def session(engine, model):
    made = []

    def make(**more):
        made.append(engine.call("session.create", {"model": model, **more}))
        return made[-1]

    yield make
    for s in made:
        try:
            engine.call("session.delete", {"id": s["id"]})
        except EngineError as e:
            assert e.status == 404


def refused(engine, method, params, **kw):
    with pytest.raises(EngineError) as e:
        engine.call(method, params, **kw)
    return e.value


def metric(engine, name):
    return next(m for m in engine.call("engine.metrics")["metrics"] if m["name"] == name)["samples"][0]["value"]
