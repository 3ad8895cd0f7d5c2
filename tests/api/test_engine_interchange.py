"""additived: models come in and go out as the files of their ecosystem, in one file or in many, and nothing of a faulty
import is kept."""

import hashlib
import io
import json
import pathlib
import re
import tarfile
import time

import numpy as np
import pytest

from engine_client import DATA, END, SANITIZED, TEXT, Daemon, EngineError, daemon, engine, frame, job_params, train

CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 259, "n_positions": 32, "n_embd": 8, "n_layer": 2,
          "n_head": 2, "bos_token_id": None, "eos_token_id": None, "transformers_version": "4.57.0", "dtype": "float32"}
TYPES = {np.dtype("float32"): "F32", np.dtype("float16"): "F16", np.dtype("uint16"): "BF16", np.dtype("int8"): "I8"}
ASK = {"prompt": "a", "max_tokens": 8, "temperature": 0}


def safetensors(tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": TYPES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(x.tobytes() for x in tensors.values())


def gpt2(seed=1):
    """A checkpoint as transformers writes it."""
    rng, d = np.random.default_rng(seed), CONFIG["n_embd"]
    shapes = {"wte.weight": (259, d), "wpe.weight": (32, d), "ln_f.weight": (d,), "ln_f.bias": (d,)}
    for i in range(CONFIG["n_layer"]):
        for name, shape in (("ln_1", (d,)), ("ln_2", (d,)), ("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)),
                            ("mlp.c_fc", (d, 4 * d)), ("mlp.c_proj", (4 * d, d))):
            shapes[f"h.{i}.{name}.weight"] = shape
            shapes[f"h.{i}.{name}.bias"] = shape[-1:]
    return {"transformer." + k: rng.normal(0, 0.5, s).astype("float32") for k, s in shapes.items()}


WEIGHTS = gpt2()
FILES = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": safetensors(WEIGHTS)}


def shards(tensors, n=3):
    """The files of a checkpoint that is divided, with their index."""
    names, out, where = sorted(tensors), {}, {}
    for i in range(n):
        file = f"model-{i + 1:05}-of-{n:05}.safetensors"
        out[file] = safetensors({k: tensors[k] for k in names[i::n]})
        where |= {k: file for k in names[i::n]}
    out["model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": 1}, "weight_map": where}).encode()
    return out


def tar(files, format=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as t:
        for name, data in files.items():
            if isinstance(data, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                t.addfile(info, io.BytesIO(data))
            else:
                t.addfile(data)
    return out.getvalue()


CARD = "README.md", "model_card.json"  # files that the service adds to each model


def sums(files):
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


@pytest.fixture(scope="module")
def expected(engine):
    engine.upload("model.import", {"id": "whole"}, config=FILES["config.json"], weights=FILES["model.safetensors"])
    return engine.generate({"model": "whole", **ASK})[0]


def refused(daemon, engine, **parts):
    with pytest.raises(EngineError) as e:
        engine.upload("model.import", {"id": "wrong"}, **parts)
    assert "wrong" not in [m["id"] for m in engine.call("model.list", {})["data"]]
    assert not list((daemon.folder / "tmp").iterdir())
    return e.value


def imported(engine, **parts):
    model = engine.upload("model.import", {"id": "new"}, **parts)
    try:
        return model, engine.generate({"model": "new", **ASK})[0], {f["name"]: f for f in engine.call("model.files", {"id": "new"})["data"]}
    finally:
        engine.call("model.delete", {"id": "new"})


# --- what is read --------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [{"file": FILES}, {"file": {**FILES, **shards(WEIGHTS), "model.safetensors": None}},
                                   {"archive": tar({"./" + k: v for k, v in FILES.items()})},
                                   {"archive": tar({"gpt2/" + k: v for k, v in {**shards(WEIGHTS), **FILES}.items() if k != "model.safetensors"})}],
                         ids=["files", "shards", "archive", "shards in an archive"])
def test_a_model_is_the_same_however_its_files_come(engine, expected, parts):
    if "file" in parts:
        parts = {"file": {k: v for k, v in parts["file"].items() if v}}
    model, text, files = imported(engine, **parts)
    assert model["additive"]["architecture"] == "gpt2" and text == expected
    assert set(files) == {"config.json", "model.safetensors", *CARD}


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_archive_of_any_form_may_hold_its_folder_under_any_name_and_other_files(engine, expected, format):
    root = "a" * 60 + "/" + "b" * (30 if format == tarfile.USTAR_FORMAT else 200) + "/"
    folder = tarfile.TarInfo(root)
    folder.type = tarfile.DIRTYPE
    files = {root: folder, "README.md": b"x" * 700, root + "onnx/config.json": b"{}", **{root + k: v for k, v in FILES.items()},
             root + "flax_model.msgpack": b"y" * 1000, root + ".gitattributes": b""}
    assert imported(engine, archive=tar(files, format))[1] == expected


def test_weights_of_16_bits_are_read_and_exported_as_they_came(engine):
    short = {k: (x.view("uint32") >> 16).astype("uint16") for k, x in WEIGHTS.items()}
    rounded = {k: (x.astype("uint32") << 16).view("float32") for k, x in short.items()}
    half = {k: x.astype("float16") for k, x in WEIGHTS.items()}
    texts = []
    for tensors in (short, rounded, half, {k: x.astype("float32") for k, x in half.items()}):
        weights = safetensors(tensors)
        _, text, files = imported(engine, file={**FILES, "model.safetensors": weights})
        assert files["model.safetensors"]["sha256"] == hashlib.sha256(weights).hexdigest()
        texts.append(text)
    assert texts[0] == texts[1] and texts[2] == texts[3]


def test_the_names_and_buffers_of_older_checkpoints_are_understood(engine, expected):
    bare = {k.removeprefix("transformer."): x for k, x in WEIGHTS.items()}
    bare |= {f"h.{i}.attn.bias": np.tril(np.ones((1, 1, 32, 32), "float32")) for i in range(2)}
    bare |= {f"h.{i}.attn.masked_bias": np.float32(-10000).reshape(()) for i in range(2)}
    old = {**CONFIG, "n_ctx": 32, "output_past": True, "num_labels": 1, "_num_labels": 1, "n_special": 0, "predict_special_tokens": True,
           "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "task_specific_params": {"text-generation": {"do_sample": True}}}
    assert imported(engine, file={**FILES, "config.json": json.dumps(old).encode()})[1] == expected
    for tensors in (bare, {**WEIGHTS, "lm_head.weight": WEIGHTS["transformer.wte.weight"]}):
        assert imported(engine, file={**FILES, "model.safetensors": safetensors(tensors)})[1] == expected


def test_a_checkpoint_of_the_reference_is_read_with_its_own_keys_and_with_either_of_its_tied_names(engine):
    model = train(engine, 3)
    text = engine.generate({"model": model, **ASK})[0]
    config, weights = (engine.download("model.file", {"id": model, "name": n})[1] for n in ("config.json", "model.safetensors"))
    engine.call("model.load", {"id": model, "dtype": "fp32"})
    theirs = {k: v for k, v in json.loads(config).items() if k not in ("position_embedding", "trained_length")}
    theirs |= {"architectures": ["FastformerForCausalLM"], "torch_dtype": "float32", "transformers_version": "4.26.0", "pad_token_id": 0}
    header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
    data = weights[8 + int.from_bytes(weights[:8], "little") :]
    tensors = {k: np.frombuffer(data[slice(*v["data_offsets"])], "float32").reshape(v["shape"]) for k, v in header.items() if k != "__metadata__"}
    assert {"word_embedding.weight", "proj_logits.weight", "proj_logits.bias"} <= set(tensors)
    for tied in ("word_embedding.weight", "proj_logits.weight", None):
        files = {"config.json": json.dumps(theirs).encode(), **shards(without(tensors, tied), 2)}
        shown, found, _ = imported(engine, file=files)
        assert shown["additive"]["architecture"] == "additive" and found == text


# --- what goes out -----------------------------------------------------------------------------


def test_every_file_of_a_model_goes_out_as_it_came(engine):
    more = {**FILES, "generation_config.json": b'{"a": 1}', "special_tokens_map.json": b"{}", "tokenizer_config.json": b' {"x":\n1}',
            "chat_template.jinja": b"{{ x }}"}
    engine.upload("model.import", {"id": "full"}, archive=tar(more))
    listed = engine.call("model.files", {"id": "full"})
    came = [f for f in listed["data"] if f["name"] not in CARD]
    assert listed["object"] == "list" and len(listed["data"]) == len(came) + len(CARD)
    assert {f["name"]: f["sha256"] for f in came} == {k: hashlib.sha256(v).hexdigest() for k, v in more.items()}
    assert {f["name"]: f["bytes"] for f in came} == {k: len(v) for k, v in more.items()}
    for name, data in more.items():
        assert engine.download("model.file", {"id": "full", "name": name})[1] == data
    engine.call("model.delete", {"id": "full"})
    for name in ("tokenizer.json", "manifest.json", "../ledger.sqlite", "x"):
        with pytest.raises(EngineError) as e:
            engine.download("model.file", {"id": "whole", "name": name})
        assert (e.value.status, e.value.param) == (404, "name")


def continued(engine, model):
    """Return the files of a model trained by a job that begins with `model`."""
    params = job_params(engine.add_file(TEXT), 4, "trilinear")
    del params["additive"]["config"]
    done = engine.wait_job(engine.call("job.create", {**params, "model": model})["id"])
    assert done["status"] == "succeeded", done["error"]
    return exported(engine, done["fine_tuned_model"])


def exported(engine, model):
    """The files of a model but those about where it comes from."""
    names = {f["name"] for f in engine.call("model.files", {"id": model})["data"]} - set(CARD)
    return {name: engine.download("model.file", {"id": model, "name": name})[1] for name in names}


def test_statistics_of_an_optimiser_go_out_and_in_and_the_next_job_goes_on_with_them(engine):
    model = train(engine, 6, architecture="trilinear")
    files = exported(engine, model)
    assert "optimizer.safetensors" in files and "optimizer.safetensors" not in exported(engine, train(engine, 2))
    engine.upload("model.import", {"id": "with"}, file=files)
    engine.upload("model.import", {"id": "without"}, archive=tar({k: v for k, v in files.items() if k != "optimizer.safetensors"}))
    assert exported(engine, "with") == files
    expected, anew = continued(engine, model), continued(engine, "without")
    assert continued(engine, "with") == expected
    assert anew["model.safetensors"] != expected["model.safetensors"]
    about = [json.loads(f["optimizer.safetensors"][8:].split(b"}}")[0] + b"}}")["__metadata__"] for f in (files, expected, anew)]
    assert [x["updates"] for x in about] == ["6", "10", "4"] and {(x["optimizer"], x["measure"]) for x in about} == {("normalized_sgd", "rms")}
    for kind in ("adamw", "sgd"):
        job = engine.call("job.create", {"model": model, "training_file": engine.add_file(TEXT), "additive": {"sequence_length": 64, "max_steps": 2, "optimizer": kind}})
        assert engine.wait_job(job["id"])["status"] == "succeeded"


def test_statistics_that_do_not_fit_end_the_job_that_begins_with_them(engine):
    files = exported(engine, train(engine, 2, architecture="trilinear"))
    engine.upload("model.import", {"id": "cut"}, file={**files, "optimizer.safetensors": files["optimizer.safetensors"][:100]})
    about = {"__metadata__": {"optimizer": "normalized_sgd", "measure": "rms", "updates": "2"}, "row_squares": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    header = json.dumps(about).encode()
    engine.upload("model.import", {"id": "short"}, file={**files, "optimizer.safetensors": len(header).to_bytes(8, "little") + header + bytes(4)})
    for model in ("cut", "short"):
        params = job_params(engine.add_file(TEXT), 4, "trilinear")
        del params["additive"]["config"]
        done = engine.wait_job(engine.call("job.create", {**params, "model": model})["id"])
        assert done["status"] == "failed" and done["error"]["param"] == "model" and "optimizer.safetensors" in done["error"]["message"], done["error"]


# --- what is refused ----------------------------------------------------------------------------


def without(tensors, name):
    return {k: v for k, v in tensors.items() if k != name}


SHARDS = shards(WEIGHTS)
FIRST, SECOND = sorted(SHARDS)[:2]
LAST = "transformer.wte.weight"
INDEX = json.loads(SHARDS["model.safetensors.index.json"])


def index(**weight_map):
    return json.dumps({"weight_map": {**INDEX["weight_map"], **weight_map}}).encode()


WRONG_SHARDS = {
    "a shard is missing": ({FIRST: None}, FIRST, "names"),
    "the index is missing": ({"model.safetensors.index.json": None}, FIRST[:6], "no model.safetensors.index.json"),
    "the index is no JSON": ({"model.safetensors.index.json": b"{"}, "weight_map", "not valid JSON"),
    "the index has no map": ({"model.safetensors.index.json": b"{}"}, "weight_map", "weight_map"),
    "a path in the index": ({"model.safetensors.index.json": index(**{LAST: "../x.safetensors"})}, LAST, "names no file"),
    "a tensor is missing": ({"model.safetensors.index.json": index(extra=FIRST)}, "extra", "missing in " + FIRST),
    "a tensor is in two": ({SECOND: safetensors({**{k: WEIGHTS[k] for k in sorted(WEIGHTS)[1::3]}, sorted(WEIGHTS)[0]: WEIGHTS[sorted(WEIGHTS)[0]]})},
                           sorted(WEIGHTS)[0], FIRST),
    "a shard is cut": ({FIRST: SHARDS[FIRST][:-1]}, None, "truncated"),
    "a stray": ({"adapter_model.safetensors": FILES["model.safetensors"]}, "adapter_model.safetensors", "not part of the model"),
}


@pytest.mark.parametrize("change,param,words", WRONG_SHARDS.values(), ids=WRONG_SHARDS)
def test_shards_that_do_not_make_a_whole_are_refused_by_name(daemon, engine, change, param, words):
    files = {k: v for k, v in {"config.json": FILES["config.json"], **SHARDS, **change}.items() if v is not None}
    e = refused(daemon, engine, file=files)
    assert e.status == 400 and words in e.message and (param is None or e.param.startswith(param)), e
    assert param is not None or FIRST in e.message


def link(kind, name="model.safetensors"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


BAD_ARCHIVES = {
    "absolute": (tar({"/config.json": b"{}"}), "absolute"),
    "above": (tar({"a/../../config.json": b"{}"}), '".."'),
    "above, in a long name": (tar({"a" * 200 + "/../config.json": b"{}"}), '".."'),
    "a symbolic link": (tar({**FILES, "model.safetensors": link(tarfile.SYMTYPE)}), "link"),
    "a hard link": (tar({**FILES, "x": link(tarfile.LNKTYPE, "x")}), "link"),
    "a device": (tar({**FILES, "x": link(tarfile.CHRTYPE, "x")}), "not a regular file"),
    "cut": (tar(FILES)[:-10240], "not whole"),
    "two models": (tar({f"{d}/{k}": v for d in "ab" for k, v in FILES.items()}), 'in "a/" and in "b/"'),
    "no model": (tar({"README.md": b"x"}), "none of the expected files"),
    "compressed": (b"\x1f\x8b\x08" + b"\0" * 2000, "compressed"),
    "not an archive": (b"x" * 2000, "not a tar archive"),
    "a damaged header": (bytes([*tar({"README.md": b"x" * 600})[:1536], *b"y" * 512]), "damaged header"),
    "the same file twice": (tar({"config.json": b"{}"}, tarfile.USTAR_FORMAT)[:1024] + tar(FILES), "twice"),
    "a header without its sum": (tar({"x": b""})[:124] + b"\xff" * 12 + tar({"x": b""})[136:], "not a tar archive"),
    "nothing": (b"", "not whole"),
}


@pytest.mark.parametrize("archive,words", BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_an_archive_that_is_not_one_model_is_refused_and_nothing_stays(daemon, engine, archive, words):
    e = refused(daemon, engine, archive=archive)
    assert e.status == 400 and words in e.message, e


def test_files_that_no_model_has_are_refused_by_name(daemon, engine):
    for name in ("model.bin", "manifest.json", "../config.json", ".hidden", "a b", ""):
        e = refused(daemon, engine, file={**FILES, name or None: b"x"})
        assert (e.status, e.param) == (400, "file") and f'"{name}"' in e.message, e
    assert refused(daemon, engine, file={"config.json": b"{}"}).param == "weights"
    missing = refused(daemon, engine, file={"model.safetensors": b"{}"})
    assert missing.param == "config" and "config.json is missing among the files that were sent" in missing.message
    e = refused(daemon, engine, config=b"{}", file=FILES)
    assert e.param == "config.json" and "twice" in e.message


def test_weights_that_are_cut_are_refused_by_the_name_of_their_file(daemon, engine):
    for bytes_left in (4, 100):
        e = refused(daemon, engine, file={**FILES, "model.safetensors": FILES["model.safetensors"][:bytes_left]})
        assert (e.status, e.code) == (400, "corrupt_data") and e.message.startswith("model.safetensors: "), e


def test_checksums_that_come_with_the_files_are_compared(daemon, engine, expected):
    listed = {**FILES, "README.md": b"not sent", **{"./" + k: v for k, v in FILES.items()}}
    assert imported(engine, file={"SHA256SUMS": sums(listed), **FILES})[1] == expected
    assert set(imported(engine, archive=tar({**FILES, "SHA256SUMS": sums(listed)}))[2]) == {*FILES, *CARD}
    changed = bytearray(FILES["model.safetensors"])
    changed[-1] ^= 1
    e = refused(daemon, engine, file={**FILES, "model.safetensors": bytes(changed), "SHA256SUMS": sums(FILES)})
    assert (e.status, e.code, e.param) == (400, "corrupt_data", "model.safetensors")
    assert hashlib.sha256(changed).hexdigest() in e.message and hashlib.sha256(FILES["model.safetensors"]).hexdigest() in e.message
    assert refused(daemon, engine, file={**FILES, "SHA256SUMS": sums({**FILES, "tokenizer.json": b""})}).param == "tokenizer.json"
    assert refused(daemon, engine, file={**FILES, "SHA256SUMS": b"abc"}).param == "SHA256SUMS"


WRONG_WEIGHTS = {
    "missing": (without(WEIGHTS, LAST), LAST, ["missing", "[259, 8]"]),
    "shape": ({**WEIGHTS, LAST: WEIGHTS[LAST][:, :4]}, LAST, ["[259, 4]", "[259, 8]"]),
    "linear layers that are not transposed": ({**WEIGHTS, "transformer.h.0.mlp.c_fc.weight": WEIGHTS["transformer.h.0.mlp.c_fc.weight"].T.copy()},
                                              "transformer.h.0.mlp.c_fc.weight", ["[32, 8]", "[8, 32]"]),
    "unknown": ({**WEIGHTS, "score.weight": WEIGHTS[LAST]}, "score.weight", ["not one of this model's"]),
    "untied": ({**WEIGHTS, "lm_head.weight": WEIGHTS[LAST] + 1}, "lm_head.weight", ["differs", LAST]),
    "integers": ({**WEIGHTS, LAST: WEIGHTS[LAST].astype("int8")}, LAST, ["holds I8", "F32, F16, BF16"]),
    "not a number": ({**WEIGHTS, LAST: WEIGHTS[LAST] * np.float32("nan")}, LAST, ["element 0", "nan"]),
}


@pytest.mark.parametrize("tensors,param,words", WRONG_WEIGHTS.values(), ids=WRONG_WEIGHTS)
def test_a_wrong_tensor_is_named_with_what_was_expected(daemon, engine, tensors, param, words):
    e = refused(daemon, engine, file={**FILES, "model.safetensors": safetensors(tensors)})
    assert (e.status, e.param) == (400, param) and all(w in e.message for w in words), e


@pytest.mark.parametrize("key,value", [("activation_function", "relu"), ("add_cross_attention", True), ("tie_word_embeddings", False),
                                       ("quantization_config", {"bits": 4}), ("rope_theta", 1e4)])
def test_a_configuration_that_means_another_computation_is_refused_by_its_key(daemon, engine, key, value):
    e = refused(daemon, engine, file={**FILES, "config.json": json.dumps({**CONFIG, key: value}).encode()})
    assert (e.status, e.param) == (400, key), e


# --- what it costs, and what stays --------------------------------------------------------------------


def peak(daemon):
    return int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{daemon.process.pid}/status").read())[1]) << 10


@pytest.mark.skipif(SANITIZED, reason="sanitizers need memory of their own")
def test_an_import_needs_far_less_memory_than_its_weights(daemon, engine):
    rows = 1 << 18
    tensors = {**WEIGHTS, LAST: np.ones((rows, 8), "float32"), "transformer.wpe.weight": np.ones((rows, 8), "float32"),
               **{f"transformer.h.{i}.mlp.{n}": x for i in range(2) for n, x in (
                   ("c_fc.weight", np.ones((8, rows), "float32")), ("c_fc.bias", np.ones(rows, "float32")), ("c_proj.weight", np.ones((rows, 8), "float16")))}}
    config = {**CONFIG, "vocab_size": rows, "n_positions": rows, "n_inner": rows}
    files = {"config.json": json.dumps(config).encode(), **shards(tensors)}
    total = sum(map(len, files.values()))
    pathlib.Path(f"/proc/{daemon.process.pid}/clear_refs").write_text("5")
    before = peak(daemon)
    assert engine.upload("model.import", {"id": "large"}, file=files)["additive"]["parameters"] * 4 > total > 40 << 20
    assert peak(daemon) - before < total
    engine.call("model.delete", {"id": "large"})


@pytest.mark.parametrize("part", ["file", "archive"])
def test_an_aborted_upload_leaves_nothing(daemon, engine, part):
    call = engine.begin("model.import", {"id": "wrong"}, upload=True)
    assert call.credits.acquire(timeout=30)
    body, content = ({"part": "file", "file": FIRST}, SHARDS[FIRST]) if part == "file" else ({"part": "archive"}, tar(FILES))
    engine.send(frame(DATA, call.stream, body, content[: len(content) // 2]))
    engine.wait(lambda: [f for f in daemon.folder.glob("tmp/*/*") if f.stat().st_size])
    call.cancel()
    with pytest.raises(EngineError) as e:
        call.result()
    assert e.value.code == "cancelled" and not list((daemon.folder / "tmp").iterdir())


# --- kills ------------------------------------------------------------------------------------------


def test_a_kill_in_the_middle_of_an_import_leaves_nothing_and_the_repeat_succeeds(tmp_path):
    data, files = tmp_path / "data", {"config.json": FILES["config.json"], **SHARDS}
    for sent, wait in ((3, 0), (len(files), 0), (len(files), 0.001), (len(files), 0.004)):  # with all of them it may be joining, checking, storing
        with Daemon(data) as d, d.connect() as e:
            call = e.begin("model.import", {"id": "m"}, upload=True)
            for i, (name, content) in enumerate(list(files.items())[:sent]):
                assert call.credits.acquire(timeout=30)
                e.send(frame(DATA, call.stream, {"part": "file", "file": name}, content, flags=END if i == len(files) - 1 else 0))
            time.sleep(wait)
            d.kill()
        with Daemon(data) as d, d.connect() as e:
            assert not list((data / "tmp").iterdir())
            there = [m["id"] for m in e.call("model.list", {})["data"]]
            assert there == [] or (there == ["m"] and sent == len(files))
            if there:
                assert e.generate({"model": "m", **ASK})[0]
                e.call("model.delete", {"id": "m"})
            e.upload("model.import", {"id": "m"}, file=files)
            assert e.generate({"model": "m", **ASK})[0]
            e.call("model.delete", {"id": "m"})
