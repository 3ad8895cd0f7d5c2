"""clients/convert/convert_3lin.py: files in the layouts of 3Lin's programs, and the engine's results from the
folders."""

import json
import math
import os
import pathlib
import struct
import subprocess
import sys

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "reference"), str(ROOT / "clients" / "convert")]

import convert_3lin  # noqa: E402
import further  # noqa: E402
import tensors  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("ADDITIVE_BIN", ROOT / "build" / "bin")) / "additive-eval"
D, Q, T, V = 4, 4, 32, 3
# The published toy: M[y][x] = sin(id + 0.7 y + 0.3 x + 0.1), layer 0 wide with hyper 20 / 3, layer 1 with slope 1 / 4;
# its probabilities after [0, 1, 2, 1].
LAYERS = [[(0, 20 / 3, True)], [(0.25, 0, False)]]
BIAS = [0, 0.5, -0.25]
TOKENS = [0, 1, 2, 1]
TOY = {"seed": {2: [0.029851, 0.051052, 0.919096], 4: [0.034783, 0.213178, 0.752039]},
       "head": {2: [0.182402, 0.324870, 0.492729], 4: [0.171644, 0.341692, 0.486665]}}


def sines(number, rows, columns):
    y, x = numpy.indices((rows, columns))
    return numpy.sin(number + 0.7 * y + 0.3 * x + 0.1).astype("<f4")


def matrices(layers=LAYERS, labels=V + 2):
    """In a file's order: E, each attention's, F."""
    shapes = ((Q, D), (Q, D), (T, D), (T, D), (D, 16 * T))
    count, firsts = sum(map(len, layers)), [2, 8, 14]
    return [sines(1, labels, D), [[sines(firsts[n] + i, *shape) for i, shape in enumerate(shapes)] for n in range(count)], sines(7, V, D)]


def integers(*numbers):
    return struct.pack(f"<{len(numbers)}q", *numbers)


def header(profile, layers=LAYERS, flags=0, labels=V + 2, windows=(2, 64), **sizes):
    x = {"Dim": D, "QDim": Q, "TTDim": T, "HeadCount": 2, "LabelCount": labels, "VocabSize": V, "FragLen": 40} | sizes
    names = ["Dim", "QDim", "TTDim", *(["HeadCount"] if profile == "head" else []), "LabelCount", "VocabSize"]
    out = integers(*(x[name] for name in names))
    if profile == "head":
        out += integers(len(windows), *windows)
    attention = "<ff?3x" if profile == "seed" else "<ffq"
    out += integers(len(layers)) + b"".join(integers(len(layer)) + b"".join(struct.pack(attention, *a) for a in layer) for layer in layers)
    out += struct.pack("<QQ", flags, 0) + (integers(*windows) if profile == "seed" else b"")
    return out + integers(x["FragLen"])


def vector(numbers):
    return integers(len(numbers)) + numpy.asarray(numbers, "<f4").tobytes()


def matrix(m):
    return integers(m.shape[1], m.shape[0]) + m.tobytes()


def saved(profile, arrays=None, layers=LAYERS, **options):
    embed, attentions, final = arrays or matrices(layers)
    out, rest = header(profile, layers, **options), iter(attentions)
    table = [matrix(m) + struct.pack("<f", 7) + vector(range(len(m))) for m in (embed, final)]
    out += table[0] + integers(len(layers))
    for layer in layers:
        out += integers(len(layer)) + b"".join(matrix(m) for _ in layer for m in next(rest))
    return out + table[1] + vector(BIAS)


def packed(arrays, **options):
    out = struct.pack("<f", 3) + header("head", **options) + vector(BIAS)
    for m in (arrays[0], *(m for attention in arrays[1] for m in attention), arrays[2]):
        for row in m:
            rms = numpy.sqrt((row * row).mean(dtype="<f4"))
            out += rms.tobytes() + ((row / rms).astype("<f2").tobytes() if rms else b"")
    return out + numpy.arange(len(arrays[0]) + len(arrays[2]) + 2, dtype="<f4").tobytes()


def convert(tmp_path, blob, *options):
    (tmp_path / "model.bin").write_bytes(blob)
    convert_3lin.main([str(tmp_path / "model.bin"), str(tmp_path / "model"), *options])
    return tensors.read(tmp_path / "model" / "model.safetensors")[0], json.loads((tmp_path / "model" / "config.json").read_text())


def probabilities(tmp_path, tokens=TOKENS, backend="cpu"):
    tensors.write(tmp_path / "inputs", {"input_ids": numpy.array([tokens], numpy.int64)})
    command = [PROGRAM, "--model", tmp_path / "model", "--inputs", tmp_path / "inputs", "--outputs", tmp_path / "outputs", "--threads", "1", "--backend", backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    p = numpy.exp(tensors.read(tmp_path / "outputs")[0]["logits"][0].astype(float))
    return p / p.sum(1, keepdims=True)


def assert_toy(p, profile, tolerance):
    for node, row in TOY[profile].items():
        assert p[node - 1] == pytest.approx(row, abs=tolerance)


def changed(arrays, seed):
    """The toy with every weight changed by the relative error of its longest sum in float, up or down."""
    random, share = numpy.random.default_rng(seed), math.sqrt(16 * T) * 2.0**-24
    move = lambda m: (m * random.choice([1 - share, 1 + share], m.shape)).astype("<f4")
    return [move(arrays[0]), [[move(m) for m in attention] for attention in arrays[1]], move(arrays[2])]


def assert_tables(rows, final, tmp_path):
    """With combiners of zeros the logits are those of what a token is read as alone."""
    h = numpy.array(rows, float)
    f = h / numpy.sqrt((h * h).mean(1, keepdims=True))
    want = 2 ** (f @ final.T / math.sqrt(D) / 0.693147 + BIAS)
    assert probabilities(tmp_path) == pytest.approx(want / want.sum(1, keepdims=True), abs=2e-6)


@pytest.mark.parametrize("profile", TOY)
def test_a_saved_model_has_the_published_probabilities(tmp_path, profile):
    """The reference sums in double: it shows how far sums in float move a probability, the kernels' and the published ones."""
    exact, moves = None, 0
    for seed in range(5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        convert(folder, saved(profile, changed(matrices(), seed) if seed else None), "--profile", profile, "--weight-bits", "32")
        p = probabilities(folder, backend="reference")
        exact = p if exact is None else exact
        moves = numpy.maximum(moves, numpy.abs(p - exact))
    assert moves.max() < 3e-4
    for node, row in TOY[profile].items():
        assert (numpy.abs(exact[node - 1] - row) <= 0.5e-6 + moves[node - 1]).all()
    weights, config = convert(tmp_path, saved(profile), "--profile", profile, "--weight-bits", "32")
    assert (numpy.abs(probabilities(tmp_path) - exact) <= moves).all()
    assert config["trained_length"] == 40 and not config["train_head"] and not config["train_embeddings"]
    assert numpy.array_equal(weights["words.weight"], sines(1, V + 2, D)[[2, 3, 4, 1, 0]])


def test_a_packed_model_has_them_within_the_rounding_of_halves_and_rows_of_zeros(tmp_path):
    arrays = matrices()
    weights, _ = convert(tmp_path, packed(arrays), "--profile", "head", "--packed", "--weight-bits", "32")
    p = probabilities(tmp_path)
    assert_toy(p, "head", 1e-3)
    # rounding of numbers below 2 RMS
    assert numpy.abs(weights["attentions.1.combiner.weight"] - arrays[1][1][4]).max() <= 2.0**-10
    assert not numpy.array_equal(weights["attentions.1.combiner.weight"], arrays[1][1][4])
    arrays[1][1][4][:] = 0
    again = tmp_path / "again"
    again.mkdir()
    weights, _ = convert(again, packed(arrays), "--profile", "head", "--packed")
    assert not weights["attentions.1.combiner.weight"].any() and weights["attentions.1.query.weight"].any()


@pytest.mark.parametrize("flag", [0x800, 0x400])  # positions; read by a model that fills in masks
def test_positions_and_groups_have_their_places_and_flags_their_keys(tmp_path, flag):
    places, layers = 5, [[(0, 0, 0)], [(0, 0, 0), (0, 0, 0)]]
    embed, attentions, final = arrays = matrices(layers, V + 2 + places)
    for attention in attentions:
        attention[4][:] = 0
    blob = saved("head", arrays, layers, flags=flag | 8 | 0x10 | 0x20 | 0x200 | 0x80, labels=len(embed), windows=(places,))
    weights, config = convert(tmp_path, blob, "--profile", "head")
    assert config["weight_bits"] == 4 and config["train_head"] and config["train_embeddings"] and config["n_positions"] == places
    assert config["bidirectional"] == (flag == 0x400)
    assert [len(layer) for layer in config["attentions"]] == [1, 2] and len(weights) == 4 + 5 * 3
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"weight_bits": 32}))
    assert_tables([embed[2 + places + token] + embed[1 + t] for t, token in enumerate(TOKENS)], final, tmp_path)


def test_the_token_after_the_longest_match_has_separate_rows(tmp_path):
    embed, attentions, final = arrays = matrices(labels=2 * V + 3)
    for attention in attentions:
        attention[4][:] = 0
    weights, config = convert(tmp_path, saved("head", arrays, flags=2, labels=len(embed)), "--profile", "head", "--weight-bits", "32")
    assert config["match_window"] == 4096 and numpy.array_equal(weights["matches.weight"], embed[[V + 3, V + 4, V + 5, V + 2]])
    matches = [0, 0, 0, embed[V + 3 + TOKENS[2]]]
    assert_tables([embed[2 + token] + match for token, match in zip(TOKENS, matches)], final, tmp_path)


def test_hashed_tokens_have_the_sum_of_three_rows(tmp_path):
    embed, attentions, final = matrices(labels=2048)
    embed = numpy.random.default_rng(3).normal(size=embed.shape).astype("<f4")
    for attention in attentions:
        attention[4][:] = 0
    _, config = convert(tmp_path, saved("head", (embed, attentions, final), flags=1, labels=2048), "--profile", "head", "--weight-bits", "32")
    rows, word = [], (1 << 64) - 1
    for token in TOKENS:
        h, x = 0x9AE16A3B2F90404F, numpy.zeros(D)
        for _ in range(3):
            h = (h + token + 2) * 0xC949D7C7509E6557 & word
            x += embed[h >> 53]
        rows.append(x)
    assert config["input"] == "hashed"
    assert_tables(rows, final, tmp_path)


def drawn(profile):
    """A new model's weights in a file's order, as the source draws them."""
    words = iter((numpy.frombuffer(numpy.random.RandomState(1313).bytes(40000), "<u4") + 0.5) / 2.0**31 - 1)

    def normals(rows, columns, std):
        out = []
        while len(out) < rows * columns:
            x, y = next(words), next(words)
            r = x * x + y * y
            out += [x * math.sqrt(-2 * math.log(r) / r)] if 0 < r <= 1 else []
        return std * numpy.array(out).reshape(rows, columns)

    std, last = (math.sqrt(1 / 8), 4 * math.sqrt(1 / 8)) if profile == "seed" else (0.5, 0.5)
    out = {"words": normals(5, 8, 1)[[2, 3, 4, 1, 0]]}
    for number in range(3):
        shapes = {"query": 8, "key": 8, "gate": 16, "value": 16}
        out |= {f"attentions.{number}.{name}": normals(rows, 8, std) for name, rows in shapes.items()}
        out[f"attentions.{number}.combiner"] = numpy.zeros((8, 256))
    return {f"{name}.weight": m for name, m in (out | {"head": normals(3, 8, last)}).items()} | {"head.bias": numpy.array([0, 0.25, 0.5])}


@pytest.mark.parametrize("name", ["seed", "head", "head_packed"])
def test_files_of_the_sources_programs_have_the_weights_that_were_drawn(tmp_path, name):
    profile = name.split("_")[0]
    options = ["--profile", profile, *(["--packed"] if "packed" in name else [])]
    weights, config = convert(tmp_path, (ROOT / "tests" / "data" / "3lin" / f"{name}.bin").read_bytes(), *options)
    want = drawn(profile)
    assert weights.keys() == want.keys()
    for key, m in want.items():
        assert numpy.abs(weights[key] - m).max() <= (2.0**-10 if "packed" in name and key != "head.bias" else 1e-6), key
    hyper = pytest.approx(20 / 3)
    layers = {"seed": [[(0, hyper, 6)], [(0, 0, 9), (0, pytest.approx(40 / 3), 6)]], "head": [[(0, 0, 1)], [(0.5, 0.25, 4), (0, 0, 6)]]}
    assert [[(a["slope"], a["hyper"], a["window"]) for a in layer] for layer in config["attentions"]] == layers[profile]
    assert (config["train_embeddings"], config["train_head"]) == (profile == "head", profile == "seed")


def wide(m):
    return numpy.zeros((len(m), m.shape[1] + 1), "<f4")


REFUSED = {"ABS_POSITIONS and HASHED_EMBED": {"flags": 0x801}, "MLM_BERT and PPM": {"flags": 0x402}, "no slope": {"flags": 0x400, "labels": V + 66}, "USE_DOC_START_TOKEN": {"flags": 4}, "GROK_BINARY_OP is not built here (--one-document": {"flags": 0x100}, "HASHED_EMBED and MLM_BERT": {"flags": 0x401},
           "Flags: 0x1000": {"flags": 0x1000}, "SIM_QUANT_2BIT and SIM_QUANT_4BIT": {"flags": 0xC0}, "LabelCount": {"labels": V + 3}, "TTDim": {"TTDim": 24}, "QDim": {"QDim": 5},
           "HeadCount": {"HeadCount": 0}, "AttentionWidthId": {"windows": (2,)}, "rows of LayerArr[0][0].QK": {"QDim": 6}, "columns of LayerArr[0][0].Combiner": {"arrays": 4},
           "columns of LabelEmbed": {"Dim": 5}, "Layers": {"layers": []}}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_does_not_fit_is_refused_by_name(tmp_path, capsys, problem):
    options = dict(REFUSED[problem])
    if "arrays" in options:
        options["arrays"] = matrices()
        options["arrays"][1][0][4] = wide(options["arrays"][1][0][4])
    with pytest.raises(SystemExit) as refusal:
        convert(tmp_path, saved("head", **options), "--profile", "head")
    assert problem in str(refusal.value) and "model.bin" in str(refusal.value) and not (tmp_path / "model").exists()


def test_a_file_that_is_cut_too_long_or_of_another_kind_is_refused(tmp_path):
    head, wrong = saved("head"), {}
    for size in range(0, len(head), 1 + len(head) // 97):
        wrong[f"ends at byte {size}"] = (head[:size], "--profile", "head")
    wrong |= {"3 bytes are left over": (head + b"abc", "--profile", "head"), "is the file of this profile": (head, "--profile", "seed"),
              "HeadCount: 5": (saved("seed"), "--profile", "head"), "no such files": (head, "--profile", "seed", "--packed"),
              "--weight-bits": (saved("head", flags=0x40), "--profile", "head", "--weight-bits", "32")}
    for problem, (blob, *options) in wrong.items():
        with pytest.raises(SystemExit, match=problem):
            convert(tmp_path, blob, *options)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("mine")
    with pytest.raises(SystemExit, match="config.json"):
        convert(tmp_path, head, "--profile", "head")
    assert (tmp_path / "model" / "config.json").read_text() == "mine"
    (tmp_path / "model" / "config.json").unlink()
    for flag in (4, 0x100):
        assert convert(tmp_path, saved("head", flags=flag), "--profile", "head", "--one-document")[1]["weight_bits"] == 8
        (tmp_path / "model" / "config.json").unlink()


# --- statistics of the optimiser ----------------------------------------------------------------


def kept(tmp_path):
    """row_squares, by our tables, and the file's own metadata."""
    arrays, about = tensors.read(tmp_path / "model" / "optimizer.safetensors")
    rows, at, out = arrays["row_squares"], 0, {}
    weights = tensors.read(tmp_path / "model" / "model.safetensors")[0]
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    parts = [name for name in ("words", "matches", "positions") if f"{name}.weight" in weights and config["train_embeddings"]]
    attentions = [f"attentions.{n}.{part}" for n in range(sum(map(len, config["attentions"]))) for part in ("query", "key", "gate", "value", "combiner")]
    for name in [*parts, *attentions, *(["head"] if config["train_head"] else [])]:
        out[name] = rows[at : at + len(weights[f"{name}.weight"])]
        at += len(out[name])
    assert at == len(rows) and rows.dtype == numpy.float32
    return out, about


@pytest.mark.parametrize("profile, where", [(profile, where) for profile in TOY for where in ("cpu", "gpu")])
def test_statistics_are_those_of_the_mean_gradient_and_lie_where_the_rows_lie(tmp_path, profile, where):
    convert(tmp_path, saved(profile, flags=8 | 0x10), "--profile", profile, "--step-tokens", "30", "--trained-on", where)
    rows, about = kept(tmp_path)
    unit = 30 / (4 if profile == "seed" else 4096)
    bare = {"words": where == "gpu", "head": where == "gpu" or profile == "head"}
    places = {"words": numpy.array([2, 3, 4, 1, 0]), "head": numpy.arange(V)}
    # 7 updates have a sum of weights of 6.79; the file says 7, between which and the nearest number of updates the rest is a factor.
    ours = sum(0.99**i for i in range(int(about["updates"])))
    assert about == {"optimizer": "normalized_sgd", "measure": "norm" if profile == "seed" else "rms", "updates": "7"}
    for name, place in places.items():
        factor = unit * (math.sqrt(D) if bare[name] else 1)
        assert rows[name] / ours == pytest.approx(place / 7 / factor**2, rel=1e-5), name
    assert not any(rows[name].any() for name in rows if name not in places)


def test_statistics_are_left_out_where_nothing_says_how_many_tokens_a_step_had_or_no_table_is_trained(tmp_path):
    blobs = [(saved("seed", flags=8 | 0x10), []), (saved("seed"), ["--step-tokens", "30"])]
    for blob, options in blobs:
        convert(tmp_path, blob, "--profile", "seed", *options)
        assert not (tmp_path / "model" / "optimizer.safetensors").exists()
        (tmp_path / "model" / "config.json").unlink()


@pytest.mark.parametrize("flags, names", [(0x10 | 2, ["words", "matches"]), (0x10 | 0x800, ["words", "positions"])])
def test_statistics_of_matches_and_positions_are_with_their_tables_and_packed_files_have_them_too(tmp_path, flags, names):
    places = 5 if flags & 0x800 else 0
    layers = [[(0, 0, 0)], [(0, 0, 0)]]
    arrays = matrices(layers, 2 * V + 3 if flags & 2 else V + 2 + places)
    windows = (places,) if places else (2, 64)
    options = dict(layers=layers, flags=flags, labels=len(arrays[0]), windows=windows)
    rows = numpy.arange(len(arrays[0]), dtype=float)
    for packing in (False, True):
        blob = packed(arrays, **options) if packing else saved("head", arrays, **options)
        convert(tmp_path, blob, "--profile", "head", "--step-tokens", "4096", "--trained-on", "cpu", *(["--packed"] if packing else []))
        found, about = kept(tmp_path)
        first = 1 + places
        order = {"words": [*range(first + 1, first + 1 + V), first, 0], "positions": [*range(1, first)], "matches": [V + 3, V + 4, V + 5, V + 2]}
        total = len(rows) if packing else 7
        for name in names:
            assert found[name] / sum(0.99**i for i in range(int(about["updates"]))) == pytest.approx(rows[order[name]] / total, rel=1e-5)
        (tmp_path / "model" / "config.json").unlink()


def test_statistics_that_no_run_leaves_are_refused(tmp_path):
    good = saved("seed", flags=8)
    at = good.rindex(vector(BIAS)) - 4 * V
    wrong = {"FinalLayer.RowDisp": good[:at] + struct.pack("<f", -1) + good[at + 4 :], "FinalLayer.SumWeight": good[: at - 12] + struct.pack("<f", 200) + good[at - 8 :]}
    for problem, blob in wrong.items():
        with pytest.raises(SystemExit, match=problem):
            convert(tmp_path, blob, "--profile", "seed", "--step-tokens", "1")
        assert not (tmp_path / "model").exists()
    for number in ("0", "-1", "x"):
        with pytest.raises(SystemExit):
            convert(tmp_path, good, "--profile", "seed", "--step-tokens", number)


STEPS = further.files("seeds/3lin_s_train_tune_step1.safetensors") + further.files("seeds/3lin_s_train_tune_step10.safetensors")


def source_file(arrays, config, step):
    """Return the file that the source would have saved after this number of the set's steps."""
    def of(name):
        return arrays[f"w{step}.{name}"].astype("<f4")

    layers = [[(slope, hyper, bool(wide))] for slope, hyper, wide in config["layers"]]
    out = header("seed", layers, config["flags"], config["labels"], (config["window"], config["wide_window"]),
                 Dim=config["D"], QDim=config["Q"], TTDim=config["T"], VocabSize=config["V"])
    table = [matrix(of(t)) + of(f"{t}.sum_weight").tobytes() + vector(of(f"{t}.row_disp")) for t in ("E", "F")]
    out += table[0] + integers(len(layers))
    for l in range(len(layers)):
        out += integers(1) + b"".join(matrix(of(f"L{l}.{m}")) for m in ("QK", "QV", "K", "V", "C"))
    return out + table[1] + vector(arrays["w0.bias"])


def continued(service, tmp_path, name, blob, texts, letters, recipe, *options):
    """The weights of a job that begins with a converted file."""
    folder = tmp_path / name
    folder.mkdir()
    convert(folder, blob, *options)
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(letters)}, "merges": []}}
    (folder / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    push = subprocess.run([PROGRAM.parent / "additive", "--url", service.url, "models", "push", folder / "model", name], capture_output=True, text=True)
    assert push.returncode == 0, push.stderr
    file = service.upload("".join(json.dumps({"text": text}) + "\n" for text in texts), "text.jsonl")
    recipe = {"batch_size": len(texts), "optimizer": "normalized_sgd", "schedule": "constant", "warmup_steps": 0, "validation_fraction": 0, "reset_at_document": True, **recipe}
    done = service.wait_job(service.ok("POST", "/v1/fine_tuning/jobs", {"model": name, "training_file": file, "seed": 1, "additive": recipe})["id"])
    assert done["status"] == "succeeded", done
    (folder / "result").write_bytes(service.request("GET", f"/v1/models/{done['fine_tuned_model']}/files/model.safetensors")[1])
    return tensors.read(folder / "result")[0]


def far(got, want):
    return {part: float(numpy.abs(got[f"{part}.weight"] - m).max()) for part, m in want.items()}


@pytest.mark.skipif(len(STEPS) < 2, reason="the source's steps are in a folder of further golden sets (ADDITIVE_GOLDEN)")
def test_a_job_goes_on_from_a_converted_model_with_the_steps_of_the_run_that_was_not_interrupted(own_service, tmp_path):
    (first, _), (last, about) = map(tensors.read, STEPS)
    config = json.loads(about["config"])
    letters = "abcdefghijk"
    texts = ["".join(letters[t] for t in first[f"tokens_frag{i}"]) for i in range(2)]
    recipe = {"sequence_length": 22, "max_steps": 9, "step_size": "norm", "learning_rate": config["lr"]}
    want = {"head": last["w10.F"], "words": last["w10.E"][[*range(2, 13), 1, 0]]}
    want |= {f"attentions.{l}.{ours}": last[f"w10.L{l}.{theirs}"] for l in range(2) for ours, theirs in
             (("query", "QK"), ("key", "QV"), ("gate", "K"), ("value", "V"), ("combiner", "C"))}
    blob, common = source_file(first, config, 1), ["--profile", "seed", "--weight-bits", "32"]
    kept = far(continued(own_service, tmp_path, "kept", blob, texts, letters, recipe, *common, "--step-tokens", "29", "--trained-on", "cpu"), want)
    anew = far(continued(own_service, tmp_path, "anew", blob, texts, letters, recipe, *common), want)
    assert max(kept.values()) <= 1e-5, kept
    assert anew["words"] > 1e-2 and anew["head"] > 1e-2, anew


def test_a_job_goes_on_as_the_sources_program_did_within_the_rounding_of_its_gradients(own_service, tmp_path):
    """Three steps of the profile "head" by its CPU program, which moves gradients as whole numbers of 8 bits, and three more."""
    before, after = ((ROOT / "tests" / "data" / "3lin" / f"head_step{n}.bin").read_bytes() for n in (3, 6))
    (tmp_path / "after").mkdir()
    want = {name.removesuffix(".weight"): m for name, m in convert(tmp_path / "after", after, "--profile", "head")[0].items() if name.endswith(".weight")}
    recipe = {"sequence_length": 14, "max_steps": 3, "step_size": "rms", "learning_rate": 0.05}
    texts, common = ["abcadbcaabcdda", "ccbdadbacbdabd"], ["--profile", "head"]
    runs = {"kept": ["--step-tokens", "26", "--trained-on", "cpu"], "other factors": ["--step-tokens", "26"], "anew": []}
    found = {name: far(continued(own_service, tmp_path, name.split()[0], before, texts, "abcd", recipe, *common, *options), want) for name, options in runs.items()}
    assert max(found["kept"].values()) <= 0.02 and found["kept"]["words"] <= 0.01 and found["kept"]["head"] <= 0.01, found
    assert all(found[name]["words"] > 0.05 and found[name]["head"] > 0.02 for name in ("other factors", "anew")), found
