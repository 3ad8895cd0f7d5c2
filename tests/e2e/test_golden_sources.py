"""additive-eval --golden: every value of a source's golden numbers, and the errors of a set by file and tensor."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "reference"))

import further  # noqa: E402
import tensors  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("ADDITIVE_BIN", ROOT / "build" / "bin")) / "additive-eval"
GOLDEN = ROOT / "tests" / "data" / "golden"
LANGUAGE = sorted(path.stem for path in GOLDEN.glob("*.safetensors"))
SETS = {name: [GOLDEN / f"{name}.safetensors"] for name in LANGUAGE}
SETS |= {name: [GOLDEN / "sources" / f"{name}.safetensors"]
         for name in ("module", "causal_square", "causal_wide", "causal_narrow", "dilated_cases", "dilated_mixture", "dilated_module", "cirilla", "trilinear")}
TRANSFORMERS = sorted(path.stem for path in (GOLDEN / "sources").glob("xt_*.safetensors"))
SETS |= {name: [GOLDEN / "sources" / f"{name}.safetensors"] for name in TRANSFORMERS}
SETS |= {f"bart_{name}": [GOLDEN / "sources" / f"bart_{part}.safetensors" for part in ("weights", name)] for name in ("inputs", "steps")}
SETS["cirilla_steps"] = [GOLDEN / "sources" / f"{name}.safetensors" for name in ("cirilla", "cirilla_steps")]
SETS |= {f"trilinear_{name}": [GOLDEN / "sources" / f"trilinear_{name}.safetensors"] for name in ("multi", "codes")}
SETS["trilinear_zero"] = [GOLDEN / "sources" / f"trilinear_zero_step{step}.safetensors" for step in (1, 10)]
FORGETTING = [f"additive2_{name}" for name in ("data", "const", "none", "bare", "ring")]
SETS |= {name: [GOLDEN / "sources" / f"{name}.safetensors"] for name in FORGETTING}
SETS["encoder"] = [GOLDEN / "sources" / f"encoder_{part}.safetensors" for part in ("weights", "inputs")]
# In the folder of further sets.
FURTHER = {"g1": ["g1"], **{name: [f"seeds/{name}"] for name in (
    "bart_linear_attention", "bart_causal_linear", "longnet_n32", "longnet_n22", "longnet_small", "longnet_learned", "longnet_module")},
          "trilinear_causal": ["seeds/3lin_s_fwd_weights", "seeds/3lin_s_fwd_out"], "trilinear_grad": ["seeds/3lin_s_grad_weights", "seeds/3lin_s_grad_out"],
          "trilinear_generate": ["seeds/3lin_s_generate"], "trilinear_steps": [f"seeds/3lin_s_train_tune_step{step}" for step in (1, 10)],
          "trilinear_first_step": ["seeds/3lin_s_train_tune_step1"],
          "bart_forward": ["seeds/bart_weights", "seeds/bart_forward"],
          "cirilla_forward": ["seeds/cirilla_weights", "seeds/cirilla_forward", "seeds/cirilla_grads"],
          "cirilla_adam": ["seeds/cirilla_weights", "seeds/cirilla_forward", "seeds/cirilla_adam"],
          "cirilla_fillmask": ["seeds/cirilla_fillmask"],
          **{f"bart_grads_{policy}": ["seeds/bart_weights", "seeds/bart_forward", f"seeds/bart_grads_{policy}"]
             for policy in ("ignore", "mask_keys")}}
# Images and sequences of numbers are not models of text; filters have a test of their own.
OTHERS = ("captioning", "continuous_ar", "continuous_enc", "sampling", "vit")
FURTHER |= {path.stem: [f"xt/{path.stem}"] for path in further.files("xt/xt_*.safetensors") if path.stem[3:] not in OTHERS}
FURTHER |= {path.stem: [f"additive2/{path.stem}"] for path in further.files("additive2/*.safetensors")}
# A further set never replaces one of the repository.
SETS |= {f"{name}_further" if name in SETS else name: paths for name, paths in further.named(FURTHER).items()}
# Logits of which some are removed; their inputs have the name of other sets' values.
FILTERS = {"sampling": [GOLDEN / "sources" / "sampling.safetensors"]} | further.named({"xt_sampling": ["xt/xt_sampling"]})
# Sets without sessions, with part of the message; sets that give values which no session supports.
NO_SESSIONS = {"encoder": "token by token", "both_ways": "token by token", "scaled": "token by token", "placed": "a session has no \"pos\"", "encoder_memory_tokens": "token by token", "encoder_rel_pos": "token by token",
               "all_keys_masked": "self_attn_context_mask", "mask_prob": "self_attn_context_mask", "attn_mask_2d": "attn_mask", "cross_context": "context",
               "cross_tokens_dropout": "keep_index", "layer_dropout": "layer_skip", "prepend_embeds": "prepend_embeds",
               "cross_attender": "recurrent form", "tables": "recurrent form"}
NO_SESSIONS = {f"xt_{name}": reason for name, reason in NO_SESSIONS.items() if f"xt_{name}" in SETS}
SESSIONS = [name for name in SETS if name.startswith("xt_") and name not in NO_SESSIONS]
# Values that sessions lack, because they give only values of tokens. The last segment of a session has one length, and
# no segment exists for a prompt.
WHOLE = ("ar_loss", "attn", "embeddings", "encodings", "hidden", "mems", "scores")
FORGETTING += [name for name in SETS if name.startswith("additive2-")]
CAUSAL = [name for name in SETS if "causal" in name or name == "trilinear"] + FORGETTING
UNSEEN = -1e30  # a score of a window before the softmax where the reader does not look; inexact in float32
NOT_KEPT = -1e8  # a log-normalizer of LongNet where a branch has none
INPUTS = {"module": ["x", "dy", "keep", "q_proj.weight", "v_proj.bias"], "encoder": ["input_ids", "attention_mask"],
          "causal_wide": ["q", "k", "v", "dO", "key_keep"], "dilated_cases": ["odd.q", "gap.k", "gap.dO"],
          "dilated_mixture": ["alpha", "q", "v"], "trilinear": ["L1.QV", "bias"], "dilated_module": ["x", "dy", "inner_attn_ln.bias"], "odd": ["input_ids"], "bart_inputs": ["attention_mask"],
          "bart_steps": ["labels"]}
WEIGHTS = {"encoder": ["model.encoder.layers.1.fc1.bias", "model.shared.weight"],
           "bart_inputs": ["model.decoder.layers.0.encoder_attn.k_proj.bias"], "odd": ["fastformer_model.decoders.2.boom.weight"]}
OUTPUT, GRADIENT = 1e-5, 1e-4  # relative to the largest number if that is over 1; relative to the norm
NOISE = 1e-12  # a gradient that is 0 but for rounding in float64
# an exact zero may have this value in float32; for a bias, relative to the norm of its matrix's gradient
ZERO, CANCELLED = 1e-7, 1e-6


def load(name):
    """The tensors of all files, and the metadata of the last."""
    arrays, metadata = {}, {}
    for path in (SETS | FILTERS)[name]:
        part, metadata = tensors.read(path)
        arrays |= part
    return arrays, metadata


def is_scaled_by_length(name):
    """True if values depend on the length of the whole text (rotary_xpos); a session takes that to be max_seq_len."""
    return json.loads(load(name)[1]["config"]).get("Decoder", {}).get("rotary_xpos", False)


def session_values(name):
    """Return the values of a set of x-transformers that sessions must reproduce: values of tokens, greedy
    continuations."""
    arrays = load(name)[0]
    want = {key: array for key, array in values(arrays).items() if not is_gradient(key) and not key.startswith(WHOLE)}
    if "ids.0" in arrays:
        want = {key: array for key, array in want.items() if not key.startswith("gen")}
    if is_scaled_by_length(name):
        want = {key: array for key, array in want.items() if key.startswith("gen")}
    return want


def run(folder, paths, *options):
    files = [part for path in paths for part in ("--golden", path)]
    command = [PROGRAM, *files, "--outputs", folder / "outputs", *options]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60)


def not_computed(name):
    """The note on a set: rows before the token shift are not in the state of a model without token shift."""
    arrays = load(name)[0]
    rows = [key for key in arrays if re.fullmatch(r"step\.\w+\.layer\d+\.last", key)] if name in FORGETTING else []
    if not rows or any(key.endswith(".mu") for key in arrays):
        return []
    return sorted(rows)


def note_on(name):
    rows = not_computed(name)
    return f"additive-eval: note: not computed: {', '.join(rows)}\n" if rows else ""


def evaluate(folder, name, *options):
    done = run(folder, (SETS | FILTERS)[name], *options)
    assert done.returncode == 0, done.stderr
    return tensors.read(folder / "outputs")[0], done.stderr


def is_gradient(name):
    last = name.rsplit(".")[-1]
    return ("grad." in name or ".d." in name or last == "dalpha" or last.startswith(("dx", "dq", "dk", "dv"))
            or name.startswith(("d.", "model.", "classification_head.")))  # gradients under the names of weights


def values(arrays):
    """Return the computed values: gpt2's are f32, tokens and buckets integers, and everything else f64 except the rates
    of training and weights w.NAME."""
    words = ("grad.", "logits", "loss", "padded.logits", "padded.loss", "bucket.bidir", "bucket.causal", "label_", "narrow_", "wide_", "target_", "full.ids", "trunc.ids")
    return {name: array for name, array in arrays.items()
            if name != "lr" and not name.startswith("w.") and array.dtype == numpy.float64 or name.startswith(words) or name.endswith((".tokens", "_codes"))}


def disagreements(found, want):
    """Names whose values are absent, of another shape or not near enough."""
    wrong = []
    for name, array in want.items():
        got = found.get(name)
        if got is None or got.shape != array.shape:
            wrong.append(name)
            continue
        error = got.astype(float) - array
        if is_gradient(name):
            norm = numpy.linalg.norm(array)
            matrix = numpy.linalg.norm(want.get(name.removesuffix("bias") + "weight", 0))
            good = numpy.linalg.norm(error) <= (GRADIENT * norm if norm > NOISE else max(ZERO, CANCELLED * matrix))
        else:
            unseen = array == UNSEEN
            size = numpy.abs(array[(array != NOT_KEPT) & ~unseen]).max(initial=1)
            good = numpy.abs(error[~unseen]).max(initial=0) <= OUTPUT * size and bool((got[unseen] == numpy.float32(UNSEEN)).all())
        if not good:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("backend", ["cpu", "reference", pytest.param("cuda", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SETS)
def test_every_value_of_a_set_is_computed(tmp_path, name, backend, monkeypatch):
    """On the emulated device, unless ADDITIVE_PLUGIN_DIR names a real one's plug-in."""
    if backend == "cuda" and "ADDITIVE_PLUGIN_DIR" not in os.environ:
        monkeypatch.setenv("ADDITIVE_PLUGIN_DIR", str(PROGRAM.parent.parent / "emulator"))
    found, note = evaluate(tmp_path, name, "--gradients", "--backend", backend)
    want = {key: array for key, array in values(load(name)[0]).items() if key not in not_computed(name)}
    assert len(want) > 3 and disagreements(found, want) == [] and note == note_on(name)


def test_the_three_matrices_of_a_window_layer_are_in_one_tensor_of_their_shape(tmp_path):
    def rotate(arrays, _):
        arrays["w.layers.1.mix.Wqkv"] = numpy.roll(arrays["w.layers.1.mix.Wqkv"], 12, 0)

    assert write(tmp_path, "additive2_ring", rotate).returncode == 0
    wrong = disagreements(tensors.read(tmp_path / "outputs")[0], values(load("additive2_ring")[0]))
    assert {"logits", "layer1.scores", "step.before.layer1.keys", "step.after.layer1.values"} <= set(wrong)
    assert not any(name.startswith(("layer0.", "step.before.layer0.", "step.after.layer0.")) for name in wrong)
    (tmp_path / "outputs").unlink()
    done = write(tmp_path, "additive2_ring", lambda arrays, _: arrays.update({"w.layers.1.mix.Wqkv": arrays["w.layers.1.mix.Wqkv"][1:].copy()}))
    assert_fails(tmp_path, done, "w.layers.1.mix.Wqkv", "[35, 12]", "[36, 12]")
    done = write(tmp_path, "additive2_ring", lambda arrays, _: arrays.pop("w.layers.1.mix.Wqkv"))
    assert_fails(tmp_path, done, "w.layers.1.mix.Wq", "missing")


def test_a_drawn_number_is_the_count_of_blanks_between_one_and_three(tmp_path):
    drawn = numpy.array([0, 0.9, -0.41675785, 1.3, -1.99, 2, -2.5, 3, 7.15451389, -40])
    tensors.write(tmp_path / "set", {"normal": drawn, "words": numpy.full(10, 13, numpy.int32)})
    done = run(tmp_path, [tmp_path / "set"])
    assert done.returncode == 0, done.stderr
    assert tensors.read(tmp_path / "outputs")[0]["n_blank"].tolist() == [1, 1, 1, 1, 1, 2, 2, 3, 3, 3]


def test_codes_of_a_matrix_have_a_step_of_its_own_and_those_of_few_bits_a_table(tmp_path):
    matrix = numpy.random.default_rng(4).normal(size=(5, 7)).astype(numpy.float32)
    step = numpy.float32(numpy.sqrt((matrix.astype(float) ** 2).mean()) / 32)
    codes = numpy.clip(numpy.rint(matrix / step), -128, 127).astype(numpy.int8)
    every = numpy.arange(-128, 128).astype(numpy.int8)
    two = numpy.select([every < -24, every < 0, every <= 24], [-36, -12, 12], 36)
    four = 9 * numpy.clip(numpy.trunc((every.astype(int) + 76) / 9), 0, 15) - 68
    tensors.write(tmp_path / "set", {"m": matrix, "m.q": codes, "codes_in": every, "recode_2bit": every, "recode_4bit": every,
                                    "recode_158bit": every, "mt1313_u32": numpy.zeros(3, int)})
    done = run(tmp_path, [tmp_path / "set"])
    assert done.returncode == 0, done.stderr
    found = tensors.read(tmp_path / "outputs")[0]
    assert found["m.step"] == step and numpy.array_equal(found["m.q"], codes)
    assert numpy.array_equal(found["recode_2bit"], two) and numpy.array_equal(found["recode_4bit"], four)
    assert numpy.array_equal(found["recode_158bit"], numpy.select([every < -15, every <= 15], [-32, 0], 32))
    assert numpy.array_equal(found["mt1313_u32"], numpy.frombuffer(numpy.random.RandomState(1313).bytes(12), "<u4")) and found["mt1313_u32"].dtype == numpy.int64


def test_a_set_may_have_weights_their_codes_and_what_is_computed_from_either(tmp_path):
    paths = [*SETS["trilinear"], *SETS["trilinear_codes"]]
    done, want = run(tmp_path, paths, "--gradients"), load("trilinear_codes")[0]
    assert done.returncode == 0 and done.stderr == ""
    found = tensors.read(tmp_path / "outputs")[0]
    codes = [name for name in want if name.startswith(("q.", "step."))]
    assert len(codes) == 34 and all(numpy.array_equal(found[name], want[name]) for name in codes)
    assert disagreements(found, values(load("trilinear")[0]) | values(want)) == []


@pytest.mark.parametrize("between, nested", [(".", True), ("_att", False), (None, True)])
def test_attentions_of_one_layer_have_two_numbers_in_any_form_or_are_counted_through(tmp_path, between, nested):
    def rename(key):
        layer, index = re.search(r"L(\d)A(\d)", key).groups() if "A" in key else (0, 0)
        return re.sub(r"L\dA\d", f"L{2 * int(layer) + int(index)}" if between is None else f"L{layer}{between}{index}", key)

    def change(arrays, config):
        for key in list(arrays):
            arrays[rename(key)] = arrays.pop(key)
        arrays[rename("L1A1.C")] = numpy.zeros_like(arrays[rename("L1A0.C")])
        config["layers"] = config["layers"] if nested else [attention for layer in config["layers"] for attention in layer]

    done = write(tmp_path, "trilinear_multi", change, "--gradients")
    assert done.returncode == 0 and done.stderr == ""
    found = tensors.read(tmp_path / "outputs")[0]
    assert disagreements(found, {rename(key): array for key, array in values(load("trilinear_multi")[0]).items()}) == []


@pytest.mark.skipif(not further.files("*"), reason="ADDITIVE_GOLDEN names no folder of further golden sets, so none of them is tested")
def test_there_are_further_golden_sets():
    assert any(set(paths) & set(further.files("**/*.safetensors")) for paths in SETS.values())


@pytest.mark.parametrize("path", [path for name in ("quant_rng", "graph") for path in further.files(f"seeds/3lin_s_{name}.safetensors")],
                         ids=lambda path: path.stem)
def test_integers_of_3lin_are_those_of_the_source(tmp_path, path):
    done, want = run(tmp_path, [path]), tensors.read(path)[0]
    assert done.returncode == 0, done.stderr
    found = tensors.read(tmp_path / "outputs")[0]
    assert len(found) > 25 and done.stderr == ""
    for key, array in found.items():
        assert array.shape == want[key].shape and numpy.abs(array - want[key]).max(initial=0) <= (1e-6 if want[key].dtype.kind == "f" else 0), key


@pytest.mark.parametrize("name", FILTERS)
def test_filters_remove_the_logits_that_the_source_removes(tmp_path, name):
    found, note = evaluate(tmp_path, name)
    want = {key: array for key, array in load(name)[0].items() if not key.startswith("logits")}
    kinds = {key.split(".")[0] for key in want}
    assert {"top_k", "top_p", "top_a", "top_a_row", "probs_top_k_0_8"} <= kinds and set(found) == set(want) and note == ""
    for key, array in want.items():
        assert found[key].shape == array.shape and numpy.array_equal(numpy.isneginf(found[key]), numpy.isneginf(array)), key
        kept = numpy.isfinite(array)
        numpy.testing.assert_allclose(found[key][kept], array[kept], rtol=0, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", CAUSAL + LANGUAGE)
def test_the_recurrent_form_gives_the_same_values(tmp_path, name):
    parallel, _ = evaluate(tmp_path, name)
    recurrent, note = evaluate(tmp_path, name, "--recurrent")
    assert set(recurrent) == set(parallel) and note == note_on(name)
    assert disagreements(recurrent, {key: numpy.where(array == numpy.float32(UNSEEN), UNSEEN, array.astype(float)) for key, array in parallel.items()}) == []
    want = {key: array for key, array in values(load(name)[0]).items() if not is_gradient(key) and key not in not_computed(name)}
    assert disagreements(recurrent, want) == []


@pytest.mark.parametrize("backend", ["cpu", pytest.param("reference", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SESSIONS)
def test_sessions_give_logits_losses_and_greedy_tokens_of_sets_of_x_transformers(tmp_path, name, backend, monkeypatch):
    if backend == "cuda" and "ADDITIVE_PLUGIN_DIR" not in os.environ:
        monkeypatch.setenv("ADDITIVE_PLUGIN_DIR", str(PROGRAM.parent.parent / "emulator"))
    want = session_values(name)
    assert want
    for chunk in (1, 3, 8):
        found, _ = evaluate(tmp_path, name, "--recurrent", "--chunk", chunk, "--backend", backend)
        assert disagreements(found, want) == [], f"by {chunk}"


@pytest.mark.parametrize("name", NO_SESSIONS)
def test_a_set_that_no_session_reads_is_refused_by_what_stands_against_it(tmp_path, name):
    done = run(tmp_path, SETS[name], "--recurrent")
    assert done.returncode == 1 and NO_SESSIONS[name] in done.stderr


def test_a_value_that_is_off_is_noticed_by_these_tests(tmp_path):
    found, _ = evaluate(tmp_path, "module", "--gradients")
    want = values(load("module")[0])
    for name, wrong in (("ignore.y", numpy.nan), ("ignore.z0", 1e-3), ("mask_keys.dx", 1e-2)):
        assert disagreements(found, {**want, name: want[name] + wrong}) == [name]


@pytest.mark.parametrize("name", ["odd", "module", "causal_square"])
def test_gradients_are_computed_when_asked_for_only(tmp_path, name):
    found, note = evaluate(tmp_path, name)
    want = values(load(name)[0])
    assert not any(is_gradient(key) for key in found) and note == ""
    assert disagreements(found, {key: array for key, array in want.items() if not is_gradient(key)}) == []


def write(folder, name, change, *options):
    """Run a set of which `change` has changed the arrays and the config, as one file."""
    arrays, metadata = load(name)
    config = json.loads(metadata["config"])
    change(arrays, config)
    tensors.write(folder / "set", arrays, {**metadata, "config": json.dumps(config)})
    return run(folder, [folder / "set"], *options)


def test_values_that_the_program_cannot_compute_are_listed(tmp_path):
    def add(arrays, _):
        arrays |= {"ignore.dec.x0": numpy.zeros((3, 9, 12)), "vanilla.logits": numpy.zeros((3, 3)),
                   "labels": numpy.zeros(3, numpy.int32)}

    done = write(tmp_path, "encoder", add)
    assert done.returncode == 0
    assert done.stderr == "additive-eval: note: not computed: ignore.dec.x0, vanilla.logits\n"
    assert disagreements(tensors.read(tmp_path / "outputs")[0], values(load("encoder")[0])) == []


@pytest.mark.parametrize("name", ["odd", "module", "causal_wide", "encoder", "dilated_cases", "dilated_module"])
def test_values_are_computed_without_their_golden_numbers(tmp_path, name):
    def strip(arrays, _):
        for key in values(arrays):
            del arrays[key]

    assert write(tmp_path, name, strip, *([] if name == "encoder" else ["--gradients"])).returncode == 0
    found = tensors.read(tmp_path / "outputs")[0]
    assert disagreements(found, values(load(name)[0])) == []


@pytest.mark.parametrize("name", ["odd", "module", "causal_wide"])
def test_a_set_may_lie_in_several_files(tmp_path, name):
    arrays, metadata = load(name)
    parts = [dict(list(arrays.items())[part::3]) for part in range(3)]
    for i, part in enumerate(parts):
        tensors.write(tmp_path / str(i), part, metadata if i == 1 else None)
    assert run(tmp_path, [tmp_path / str(i) for i in range(3)], "--gradients").returncode == 0
    assert disagreements(tensors.read(tmp_path / "outputs")[0], values(arrays)) == []


@pytest.mark.parametrize("code", ["i1", "u1", "?", "<i4", "<i8"])
def test_integers_may_have_any_type(tmp_path, code):
    def change(arrays, _):
        arrays["key_keep"] = arrays["key_keep"].astype(code)

    assert write(tmp_path, "causal_square", change).returncode == 0
    found = tensors.read(tmp_path / "outputs")[0]
    assert numpy.array_equal(found["mask_keys.out"], evaluate(tmp_path, "causal_square")[0]["mask_keys.out"])


@pytest.mark.parametrize("name", ["encoder", "bart_steps"])
def test_names_may_lack_the_prefix_of_the_model(tmp_path, name):
    def strip(arrays, _):
        for name in [name for name in arrays if name.startswith("model.")]:
            arrays[name.removeprefix("model.")] = arrays.pop(name)

    assert write(tmp_path, name, strip).returncode == 0
    assert disagreements(tensors.read(tmp_path / "outputs")[0], values(load(name)[0])) == []


# --- what is wrong with a set ---------------------------------------------------------------------


def assert_fails(folder, done, *words):
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("additive-eval: ") and done.stderr.count("\n") == 1
    for word in words:
        assert str(word) in done.stderr
    assert not (folder / "outputs").exists()


NAMES = [(name, tensor) for table in (INPUTS, WEIGHTS) for name, names in table.items() for tensor in names]


@pytest.mark.parametrize("name, tensor", NAMES)
def test_a_missing_tensor_is_named(tmp_path, name, tensor):
    done = write(tmp_path, name, lambda arrays, _: arrays.pop(tensor))
    assert_fails(tmp_path, done, tmp_path / "set", f'"{tensor}" is missing')


@pytest.mark.parametrize("name, tensor", NAMES)
def test_a_tensor_of_another_shape_is_named(tmp_path, name, tensor):
    def change(arrays, _):
        arrays[tensor] = arrays[tensor][None]

    assert_fails(tmp_path, write(tmp_path, name, change), tmp_path / "set", tensor)


@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf, 1e300])
@pytest.mark.parametrize("name, tensor", [("sampling", "logits"), ("module", "x"), ("causal_wide", "k"), ("encoder", WEIGHTS["encoder"][0])])
def test_a_number_that_is_not_finite_is_named(tmp_path, name, tensor, bad):
    def change(arrays, _):
        arrays[tensor] = arrays[tensor].astype(float)
        arrays[tensor].flat[2] = bad

    assert_fails(tmp_path, write(tmp_path, name, change), tmp_path / "set", tensor, "element 2", "finite")


@pytest.mark.parametrize("name, tensor, bad", [
    ("module", "keep", 2), ("causal_wide", "key_keep", -1), ("encoder", "input_ids", 19), ("encoder", "attention_mask", 2),
    ("odd", "input_ids", 37), ("odd", "padded.attention_mask", 2),
])
def test_an_integer_out_of_range_is_named(tmp_path, name, tensor, bad):
    def change(arrays, _):
        arrays[tensor] = arrays[tensor].copy()
        arrays[tensor].flat[1] = bad

    assert_fails(tmp_path, write(tmp_path, name, change), tmp_path / "set", tensor, str(bad))


@pytest.mark.parametrize("name, tensor", [("module", "keep"), ("encoder", "input_ids"), ("odd", "input_ids")])
def test_fractions_are_no_integers(tmp_path, name, tensor):
    def change(arrays, _):
        arrays[tensor] = arrays[tensor].astype(numpy.float32)

    assert_fails(tmp_path, write(tmp_path, name, change), tmp_path / "set", tensor)


@pytest.mark.parametrize("name, tensor", [("module", "mask_keys.M1"), ("causal_square", "S"), ("encoder", "ignore.enc.x1"),
                                          ("odd", "padded.logits"), ("sampling", "top_p_wide.0_5")])
def test_a_value_of_another_shape_than_what_is_computed_is_named(tmp_path, name, tensor):
    def change(arrays, _):
        arrays[tensor] = arrays[tensor][:-1]

    assert_fails(tmp_path, write(tmp_path, name, change), tmp_path / "set", tensor, "shape")


@pytest.mark.parametrize("name, key, bad", [
    ("module", "heads", 4), ("module", "heads", 0), ("module", "heads", "3"), ("module", "eps", "small"),
    ("module", "eps", -1), ("dilated_module", "dilated_pad", "zeros"), ("dilated_module", "segment", None), ("dilated_module", "dilation", [1]),
    ("cirilla_steps", "adam", {"lr": "small"}), ("cirilla_steps", "adam", {"steps": 0}), ("cirilla_steps", "adam", {"betas": [-1]}),
    ("encoder", "d_model", 13), ("encoder", "ffn", None), ("encoder", "act", "relu"),
    ("sampling", "functions", None), ("encoder", "pos_offset", 0), ("encoder", "eps", 1e-12), ("encoder", "max_positions", 4), ("odd", "n_heads", 4),
])
def test_a_config_that_does_not_fit_is_an_error(tmp_path, name, key, bad):
    done = write(tmp_path, name, lambda _, config: config.update({key: bad}))
    assert_fails(tmp_path, done, tmp_path / "set")


@pytest.mark.parametrize("name, problem", [
    ("top_k_narrow.0_5", "logits_narrow"), ("top_a_row.2_1.5", "a row that"), ("probs_top_k_1.temp_1", "no logits"),
])
def test_a_filter_without_logits_is_named(tmp_path, name, problem):
    assert_fails(tmp_path, write(tmp_path, "sampling", lambda arrays, _: arrays.update({name: numpy.zeros(3)})), problem)


def test_names_that_are_no_filters_are_listed(tmp_path):
    names = ["probs_top_k_0_8.temp_0", "top_a.2", "top_a_row.2_1.0p5", "top_a_row.2_1.99999999999999999999", "top_k.0_5_", "top_k.1_5", "top_p.", "top_q.0_5"]
    done = write(tmp_path, "sampling", lambda arrays, _: arrays.update({name: numpy.zeros(3) for name in names}))
    assert done.returncode == 0 and done.stderr == f"additive-eval: note: not computed: {', '.join(sorted(names))}\n"


def test_a_set_of_no_known_source_is_an_error(tmp_path):
    tensors.write(tmp_path / "set", {"x": numpy.zeros(3)}, {"config": '{"D": 3}'})
    assert_fails(tmp_path, run(tmp_path, [tmp_path / "set"]), tmp_path / "set", "no reader recognises")
    tensors.write(tmp_path / "set", {"x": numpy.zeros(3)})
    assert_fails(tmp_path, run(tmp_path, [tmp_path / "set"]), tmp_path / "set", "no reader recognises")


def test_a_tensor_that_two_files_have_with_other_numbers_is_an_error(tmp_path):
    arrays, metadata = load("module")
    tensors.write(tmp_path / "a", arrays, metadata)
    tensors.write(tmp_path / "b", {"dy": arrays["dy"] + 1})
    assert_fails(tmp_path, run(tmp_path, [tmp_path / "a", tmp_path / "b"]), tmp_path / "a", tmp_path / "b", '"dy"')
    tensors.write(tmp_path / "b", {"dy": arrays["dy"]})
    assert run(tmp_path, [tmp_path / "a", tmp_path / "b"]).returncode == 0


def test_configs_that_differ_are_an_error(tmp_path):
    arrays, metadata = load("module")
    tensors.write(tmp_path / "a", arrays, metadata)
    tensors.write(tmp_path / "b", {"more": arrays["dy"]}, {"config": '{"heads": 5}'})
    assert_fails(tmp_path, run(tmp_path, [tmp_path / "a", tmp_path / "b"]), tmp_path / "b", '"heads"')


@pytest.mark.parametrize("config", ["[]", "{", '{"heads": 3, "heads": 3}'])
def test_a_config_that_is_no_object_is_an_error(tmp_path, config):
    tensors.write(tmp_path / "set", load("module")[0], {"config": config})
    assert_fails(tmp_path, run(tmp_path, [tmp_path / "set"]), tmp_path / "set", "config")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert_fails(tmp_path, run(tmp_path, [tmp_path / "absent"]), tmp_path / "absent")
    (tmp_path / "set").write_bytes(b"nonsense")
    assert_fails(tmp_path, run(tmp_path, [*SETS["module"], tmp_path / "set"]), tmp_path / "set")


def test_a_loss_of_every_step_of_training_stands_for_that_of_the_first_in_any_order_of_files(tmp_path):
    done = run(tmp_path, SETS["cirilla_steps"][::-1], "--gradients")
    assert done.returncode == 0 and done.stderr == ""
    assert disagreements(tensors.read(tmp_path / "outputs")[0], values(load("cirilla_steps")[0])) == []


def test_a_recipe_may_say_the_steps_and_a_set_the_rate_of_each(tmp_path):
    def change(arrays, config):
        del arrays["loss"]
        config["adam"]["steps"] = 1

    assert write(tmp_path, "cirilla_steps", change).returncode == 0
    found, want = tensors.read(tmp_path / "outputs")[0], load("cirilla_steps")[0]
    shown = {name: array for name, array in want.items() if name.startswith("w1.")}
    assert disagreements(found, {**shown, "loss": want["loss"][:1]}) == [] and len(shown) == 6
    assert write(tmp_path, "cirilla_steps", lambda arrays, _: arrays.update({"lr": numpy.zeros(5)})).returncode == 0
    found = tensors.read(tmp_path / "outputs")[0]
    assert disagreements(found, {**{f"w5.{name[3:]}": want[name[3:]] for name in shown}, "loss": numpy.full(5, want["loss"][0])}) == []


def test_a_query_that_sees_no_key_gets_zeros_of_attention_and_masks_may_be_left_out(tmp_path):
    def change(arrays, _):
        del arrays["hide_mask.dec_self_mask"], arrays["hide_mask.cross_mask"]

    found, _ = evaluate(tmp_path, "cirilla")
    arrays = load("cirilla")[0]
    for mask, name in (("enc_mask", "enc.att0"), ("cross_mask", "dec.cross1"), ("dec_self_mask", "dec.selfatt1")):
        blind = ~arrays[f"hide_mask.{mask}"].any(-1)
        assert blind.sum() == 1 and not found[f"hide_mask.{name}"][blind].any() and found[f"hide_mask.{name}"][~blind].all()
    assert write(tmp_path, "cirilla", change).returncode == 0
    partly = tensors.read(tmp_path / "outputs")[0]
    names = ("hide_mask.enc_out", "hide_mask.logits", "logits")
    assert disagreements(partly, {name: found[name].astype(float) for name in names}) == ["hide_mask.logits"]


def test_padding_of_segments_may_be_hidden_from_a_module_of_dilated_attention(tmp_path):
    done = write(tmp_path, "dilated_module", lambda _, config: config.update({"dilated_pad": "mask"}), "--gradients")
    wrong = disagreements(tensors.read(tmp_path / "outputs")[0], values(load("dilated_module")[0]))
    assert done.returncode == 0 and "bidir.y" in wrong and not any(name.startswith("causal.") for name in wrong)


def test_a_module_of_dilated_attention_may_lack_the_norm(tmp_path):
    """Each segment has one row, which attends to itself alone."""
    def change(arrays, config):
        for name in [name for name in arrays if "inner_attn_ln" in name or name.startswith(("bidir.", "causal."))]:
            del arrays[name]
        arrays |= {"x": arrays["x"][:, :1], "dO": arrays.pop("dy")[:, :1]}
        config |= {"segment_length": config.pop("segment"), "dilated_ratio": config.pop("dilation")}

    assert write(tmp_path, "dilated_module", change, "--gradients").returncode == 0
    found, arrays = tensors.read(tmp_path / "outputs")[0], load("dilated_module")[0]
    h = arrays["x"][:, :1].astype(float)
    for name in ("v_proj", "out_proj"):
        h = h @ arrays[f"{name}.weight"].astype(float).T + arrays[f"{name}.bias"]
    want = {"bidir.y": h, "causal.y": h, "bidir.d.out_proj.bias": arrays["dy"][:, :1].astype(float).sum((0, 1))}
    assert disagreements(found, want) == [] and len(found) == 20


def test_tied_weights_must_agree(tmp_path):
    def change(arrays, _):
        arrays["proj_logits.weight"] = arrays["proj_logits.weight"] + 1

    assert_fails(tmp_path, write(tmp_path, "odd", change), "proj_logits.weight", "tied")


def test_gradients_may_lie_in_a_file_of_their_own_under_the_names_of_the_weights(tmp_path):
    arrays, metadata = load("bart_inputs")
    gradients = {name.removeprefix("mask_keys.grad."): array for name, array in arrays.items() if name.startswith("mask_keys.grad.")}
    tensors.write(tmp_path / "of_mask_keys.safetensors", gradients, metadata)
    paths = [*SETS["bart_inputs"], tmp_path / "of_mask_keys.safetensors"]
    done = run(tmp_path, paths, "--gradients")
    assert done.returncode == 0 and done.stderr == "" and gradients
    assert disagreements(tensors.read(tmp_path / "outputs")[0], gradients) == []
    tensors.write(tmp_path / "again", {"model.shared.weight": gradients["model.shared.weight"]}, metadata)
    (tmp_path / "outputs").unlink()
    assert_fails(tmp_path, run(tmp_path, [*paths, tmp_path / "again"]), "model.shared.weight")


def test_a_row_without_the_token_at_which_it_is_read_is_named(tmp_path):
    def change(arrays, _):
        arrays["input_ids"] = numpy.where(numpy.arange(3)[:, None] == 1, 5, arrays["input_ids"]).astype(numpy.int32)

    assert_fails(tmp_path, write(tmp_path, "bart_inputs", change), "row 1", "input_ids", "token 2")


@pytest.mark.parametrize("name", ["module", "encoder"])
def test_what_has_no_recurrent_form_says_so(tmp_path, name):
    assert_fails(tmp_path, run(tmp_path, SETS[name], "--recurrent"), "recurrent form")


def test_positions_of_a_set_are_those_of_its_tokens(tmp_path):
    def change(arrays, _):
        arrays["pos"] = arrays["pos"][:, ::-1].copy()

    done = write(tmp_path, "xt_placed", change)
    assert done.returncode == 0 and "logits" in disagreements(tensors.read(tmp_path / "outputs")[0], {"logits": load("xt_placed")[0]["logits"]})

    (tmp_path / "outputs").unlink()

    def beyond(arrays, _):
        arrays["pos"] = numpy.where(arrays["pos"] == 0, 16, arrays["pos"])

    assert_fails(tmp_path, write(tmp_path, "xt_placed", beyond), "pos")


@pytest.mark.parametrize("options", [[], ["--recurrent"]])
def test_segments_of_a_model_that_keeps_no_memory_are_refused_by_name(tmp_path, options):
    def change(arrays, config):
        config["TransformerWrapper"]["max_mem_len"] = 0
        arrays["ids.0"], arrays["labels.0"] = arrays.pop("ids"), arrays.pop("labels")
        del arrays["mask"]

    assert_fails(tmp_path, write(tmp_path, "xt_placed", change, *options), "max_mem_len")


@pytest.mark.parametrize("options", [
    ["--model", "m"], ["--model", "m", "--inputs", "i"], ["--loss-only"], ["--dtype", "int8"], ["--precision", "bf16"],
    ["--label-smoothing", "0.1"], ["--gradients", "--recurrent"], ["--chunk", "2"], ["stray"], ["--golden"],
    [part for i in range(64) for part in ("--golden", str(i))],
])
def test_options_that_exclude_golden_files_are_wrong_usage(tmp_path, options):
    done = run(tmp_path, SETS["module"], *options)
    assert done.returncode == 2 and "usage:" in done.stderr
