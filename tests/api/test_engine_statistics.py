"""additived: file.statistics, which counts what a training file contains."""

import json
import random
import time

import pytest

from engine_client import TEXT, EngineError, daemon, engine, job_params, own_daemon, train

KEPT = "*.statistics"


@pytest.fixture(scope="module")
def model(engine):
    """With a tokenizer of its own."""
    job = engine.call("job.create", job_params(engine.add_file(TEXT), 2, tokenizer={"type": "bpe", "vocab_size": 300}))
    return engine.wait_job(job["id"])["fine_tuned_model"]


def statistics(engine, file, **more):
    return engine.call("file.statistics", {"id": file, **more})


def refused(engine, file, **more):
    with pytest.raises(EngineError) as e:
        statistics(engine, file, **more)
    return e.value


def lines(*objects):
    return "".join(json.dumps(o, ensure_ascii=False) + "\n" for o in objects)


def percentile(lengths, percent):
    return sorted(lengths)[max(0, -(-len(lengths) * percent // 100) - 1)]


def spread(lengths):
    return {"min": min(lengths), "p50": percentile(lengths, 50), "p90": percentile(lengths, 90), "p99": percentile(lengths, 99), "max": max(lengths)}


def test_running_text_has_the_counts_of_its_lines(engine):
    rng = random.Random(3)
    texts = [" ".join(rng.choice(["béer", "wall", "漢字", "мир"]) for _ in range(rng.randint(1, 40))) for _ in range(400)] + ["wall"] * 7
    text = "\n\n".join(texts)
    got = statistics(engine, engine.add_file(text, "a.txt"))
    shares = {s["script"]: s for s in got.pop("scripts")}
    assert {k: got[k] for k in ("object", "model", "kind", "tokenizer", "bytes", "documents", "characters", "tokens", "invalid_utf8_lines")} == {
        "object": "file.statistics", "model": None, "kind": "text", "tokenizer": "bytes", "bytes": len(text.encode()), "documents": len(texts),
        "characters": len(text), "tokens": len(text.encode()), "invalid_utf8_lines": 0}
    assert got["lengths"] == {"characters": spread([len(t) for t in texts]), "tokens": spread([len(t.encode()) for t in texts])}
    assert got["duplicates"] == {"count": len(texts) - len(set(texts)), "estimated": False}
    assert shares.keys() == {"Latin", "Han", "Cyrillic", "Common"} and shares["Han"]["characters"] == sum(c in "漢字" for c in text)
    assert abs(sum(s["share"] for s in shares.values()) - 1) < 1e-9


CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


@pytest.mark.parametrize("kind,objects,documents,characters,copies", [
    ("documents", [{"text": "ab"}, {"text": "ab"}, {"prompt": "a", "completion": "b"}], 3, 6, 1),
    ("chat", [CHAT, {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}], 2, 14, 1),
    ("labels", [{"text": "ab", "label": "x"}, {"text": "ab", "label": "y"}], 2, 4, 0),
    ("pairs", [{"source": "ab", "target": "c"}] * 3, 3, 9, 2)])
def test_data_is_of_the_kind_that_a_job_reads(engine, kind, objects, documents, characters, copies):
    got = statistics(engine, engine.add_file(lines(*objects), "a.jsonl"))
    assert (got["kind"], got["documents"], got["characters"], got["duplicates"]["count"]) == (kind, documents, characters, copies)


def test_tokens_are_those_of_the_models_tokenizer(engine, model):
    def tokens(text):
        return engine.call("tokenize", {"model": model, "text": text})["count"]

    got = statistics(engine, engine.add_file(TEXT, "a.txt"), model=model)
    assert (got["model"], got["tokenizer"], got["tokens"]) == (model, "huggingface", tokens(TEXT)) and got["tokens"] < len(TEXT) // 2
    texts = [TEXT[:999], TEXT[5:90], "x"]
    file = engine.add_file(lines(*({"text": t} for t in texts)), "a.jsonl")
    lengths = [tokens(t) + 1 for t in texts]  # and an end
    got = statistics(engine, file, model=model)
    assert got["tokens"] == sum(lengths) and got["lengths"]["tokens"] == spread(lengths)
    assert statistics(engine, file)["tokens"] == sum(len(t) + 1 for t in texts)


def test_lines_that_are_not_utf8_are_counted(engine):
    got = statistics(engine, engine.add_file(b"good\nb\xff\xffad\ngood\nb\xe4d\n", "a.txt"))
    assert (got["invalid_utf8_lines"], got["documents"], got["characters"], got["duplicates"]["count"]) == (2, 4, 20, 1)


def test_an_empty_file_has_no_lengths(engine):
    got = statistics(engine, engine.add_file(b""))
    assert got["documents"] == got["tokens"] == 0 and got["lengths"] == {"characters": None, "tokens": None} and got["scripts"] == []


def test_errors_name_the_field(engine):
    file = engine.add_file(lines({"text": "a"}, {"text": "b"}, {"words": "c"}), "a.jsonl")
    e = refused(engine, file)
    assert (e.status, e.param) == (400, "id") and e.message.startswith("line 3: needs")
    e = refused(engine, "file-none")
    assert (e.status, e.param) == (404, "id")
    e = refused(engine, file, model="none")
    assert (e.status, e.param) == (404, "model")
    e = refused(engine, engine.add_file("a".encode("utf-16"), "a.txt"))
    assert (e.status, e.param) == (400, "id") and "UTF-16" in e.message


def read_bytes(daemon):
    """Bytes that the daemon's system calls have read so far."""
    with open(f"/proc/{daemon.process.pid}/io") as file:
        return int(next(line.split()[1] for line in file if line.startswith("rchar:")))


def test_a_second_request_does_not_read_the_file_and_a_damaged_result_is_made_again(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        text = "".join(f"{n} bottles of beer\n" for n in range(300000))
        file = engine.add_file(text, "a.txt")
        first = statistics(engine, file)
        begin = read_bytes(daemon)
        assert statistics(engine, file) == first
        assert read_bytes(daemon) - begin < len(text) // 4
        again = statistics(engine, engine.add_file(text, "b.txt"))  # its content is equal
        assert {**again, "id": file} == first
        (kept,) = (daemon.folder / "cache").glob(KEPT)
        whole = kept.read_bytes()
        kept.write_bytes(whole.replace(b'"documents":300000', b'"documents":300001'))
        assert kept.read_bytes() != whole
        assert statistics(engine, file) == first and kept.read_bytes() == whole
        engine.call("file.delete", {"id": file})
        assert refused(engine, file).status == 404
    daemon.stop()


@pytest.fixture(scope="module")
def large():
    """200 MB in lines, some of them equal."""
    rng = random.Random(4)
    block = "".join(f"{rng.randrange(10**6)} bottles of béer on the wall\n" for _ in range(30000)).encode()
    return block * (200_000_000 // len(block) + 1)


def test_a_large_file_does_not_stop_a_stream(own_daemon, large):
    daemon = own_daemon()
    with daemon.connect() as engine, daemon.connect() as other:
        model = train(engine)
        file = engine.add_file(large, "a.txt")
        call = other.begin("file.statistics", {"id": file})
        streamed = 0
        while call.frames.empty():
            streamed += len(engine.generate({"model": model, "prompt": "9", "max_tokens": 20})[1])
        got = call.result()
        assert got["documents"] == large.count(b"\n") and got["bytes"] == len(large) and not got["duplicates"]["estimated"]
        assert streamed >= 200, streamed
    daemon.stop()


def test_a_limit_of_time_ends_the_reading(own_daemon, large):
    daemon = own_daemon()
    with daemon.connect() as engine:
        file = engine.add_file(large, "a.txt")
        with pytest.raises(EngineError) as e:
            engine.begin("file.statistics", {"id": file}, context={"request_id": "a", "timeout": 0.001}).result()
        assert (e.value.status, e.value.code) == (504, "timeout")
        assert not list((daemon.folder / "cache").glob(KEPT))
    daemon.stop()


@pytest.mark.parametrize("threads,most", [(4, 2), (2, 1)])
def test_a_client_that_leaves_ends_the_reading_and_few_files_are_read_at_once(own_daemon, large, monkeypatch, threads, most):
    monkeypatch.setenv("UV_THREADPOOL_SIZE", str(threads))
    daemon = own_daemon()
    with daemon.connect() as engine:
        slow = train(engine, 2, tokenizer={"type": "bpe", "vocab_size": 300})  # takes seconds to divide a large file
        files = [engine.add_file(large + bytes([65 + i]), f"{i}.txt") for i in range(most)]
        kept, small = engine.add_file("b\n"), engine.add_file("c\n")
        first = statistics(engine, kept)
        keeping = set((daemon.folder / "cache").glob(KEPT))
        calls = [engine.begin("file.statistics", {"id": f, "model": slow}) for f in files]

        def is_refused():
            for other in set((daemon.folder / "cache").glob(KEPT)) - keeping:
                other.unlink()  # a kept result is not refused
            for i, c in enumerate(calls):
                if not c.frames.empty():  # it has ended, or the small file was looked up before it
                    calls[i] = engine.begin("file.statistics", {"id": files[i], "model": slow})
            try:
                statistics(engine, small)
            except EngineError as e:
                assert (e.status, e.retry_after is not None) == (429, True)
                return True

        engine.wait(is_refused)
        assert statistics(engine, kept) == first and all(c.frames.empty() for c in calls)
        for c in calls:
            c.cancel()
        for c in calls:
            with pytest.raises(EngineError) as e:
                c.result()
            assert e.value.code == "cancelled"
        assert statistics(engine, small)["documents"] == 1
        assert len(set((daemon.folder / "cache").glob(KEPT)) - keeping) == 1  # nothing of those that were left
    daemon.stop()


def test_equal_requests_share_one_reading_that_ends_with_the_last_of_them(own_daemon, large, monkeypatch):
    monkeypatch.setenv("UV_THREADPOOL_SIZE", "2")  # one reading at once
    daemon = own_daemon()
    with daemon.connect() as engine:
        slow = train(engine, 2, tokenizer={"type": "bpe", "vocab_size": 300})  # takes seconds to divide a large file
        text = large[: large.index(b"\n", 50_000_000) + 1]
        ask = {"id": engine.add_file(text, "a.txt"), "model": slow}
        calls = [engine.begin("file.statistics", ask) for _ in range(4)]
        short = engine.begin("file.statistics", ask, context={"request_id": "a", "timeout": 0.001})
        calls.pop(0).cancel()
        calls.pop(1).cancel()
        with pytest.raises(EngineError) as e:
            short.result()
        assert e.value.code == "timeout" and all(c.frames.empty() for c in calls)
        first, second = (c.result() for c in calls)
        assert first == second and first["documents"] == text.count(b"\n")
        for kept in (daemon.folder / "cache").glob(KEPT):
            kept.unlink()
        calls = [engine.begin("file.statistics", ask) for _ in range(2)]
        for c in calls:
            c.cancel()
        for c in calls:
            with pytest.raises(EngineError) as e:
                c.result()
            assert e.value.code == "cancelled"
        assert statistics(engine, engine.add_file("b\n"))["documents"] == 1
        assert len(list((daemon.folder / "cache").glob(KEPT))) == 1  # nothing of the reading that was left
    daemon.stop()


def test_kill_9_at_any_point_leaves_nothing_half_made(own_daemon, large):
    daemon = own_daemon()
    part = large[:20_000_000]
    with daemon.connect() as engine:
        file = engine.add_file(part, "a.txt")
        right = statistics(engine, file)
    for delay in (0, 0.02, 0.1, 0.3, 0.5):
        for kept in (daemon.folder / "cache").glob(KEPT):
            kept.unlink()
        with daemon.connect() as engine:
            engine.begin("file.statistics", {"id": file})
            time.sleep(delay)
            daemon.kill()
        daemon.start()
        with daemon.connect() as engine:
            assert statistics(engine, file) == right
    daemon.stop()
