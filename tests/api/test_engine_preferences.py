"""additived: jobs that learn from preferences, whole models and adapters of them."""

import json
import math
import random

import pytest

from engine_client import EngineError, daemon, engine, own_daemon  # noqa: F401
from test_engine_adapters import KILLS, kill_during, weights

NAMES = ["Ada", "Bo", "Cy", "Di", "Ed", "Flo"]
GREETINGS = ["Good day, {}.", "Hey {}!"]  # the first one is preferred
TEXT = "".join(f"{q} {random.Random(i).choice(GREETINGS).format(n)}\n" for i in range(120) for n in NAMES for q in ("Greet", "Welcome"))


def line(prompt, chosen, rejected):
    return json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}) + "\n"


def preferences(n, seed=1):
    draw = random.Random(seed)
    pairs = ((draw.choice(("Greet", "Welcome")), draw.choice(NAMES)) for _ in range(n))
    return "".join(line(q, *(f" {g.format(name)}" for g in GREETINGS)) for q, name in pairs)


def make_base(engine):
    ask = {"model": "additive2", "training_file": engine.add_file(TEXT), "seed": 7,
           "additive": {"config": {"hidden_size": 32, "n_heads": 2, "n_layer": 2}, "sequence_length": 48, "batch_size": 8, "max_steps": 120}}
    return finished(engine, ask)["fine_tuned_model"]


@pytest.fixture(scope="module")
def base(engine):
    return make_base(engine)


@pytest.fixture(scope="module")
def file(engine):
    return engine.add_file(preferences(64))


@pytest.fixture(scope="module")
def validation(engine):
    return engine.add_file(preferences(10, 2))


def finished(engine, ask):
    done = engine.wait_job(engine.call("job.create", ask)["id"])
    assert done["status"] == "succeeded", done
    return done


def params(base, file, steps=30, method=None, **more):
    return {"model": base, "training_file": file, "seed": 7, "method": method or {"type": "dpo"},
            "additive": {"batch_size": 4, "learning_rate": 1e-3, "max_steps": steps, **more}}


def log_probability(engine, model, prompt, completion):
    """Return the sum over a completion and its end, and the number of tokens."""
    ids = [[c + 3 for c in text.encode()] for text in (prompt, completion)]
    ask = {"model": model, "prompt": ids[0] + ids[1] + [1], "max_tokens": 0, "echo": True, "logprobs": 1}
    found = [x for e in engine.begin("completion.create", ask, credit=1 << 20).events() for x in e["logprobs"]["token_logprobs"]]
    own = found[len(ids[0]):]
    assert len(own) == len(ids[1]) + 1
    return sum(own), len(own)


def losses(engine, base, model, lines, beta):
    """The three losses of TRL, and the metrics of a validation, from the log-probabilities that the models give."""
    ratios = []
    for l in map(json.loads, lines.splitlines()):
        both = [[log_probability(engine, m, l["prompt"], l[key]) for m in (model, base)] for key in ("chosen", "rejected")]
        ratios.append([(new - old, tokens) for (new, tokens), (old, _) in both])
    sigmoid = lambda x: 1 / (1 + math.exp(-x))
    mean = lambda values: sum(values) / len(ratios)
    kl = [max(0, mean([r[i][0] for r in ratios])) for i in (0, 1)]
    return {"dpo": mean([-math.log(sigmoid(beta * (c - r))) for (c, _), (r, _) in ratios]),
            "ipo": mean([(c / m - r / n - 1 / (2 * beta)) ** 2 for (c, m), (r, n) in ratios]),
            "kto": mean([1 - (sigmoid(beta * (c - kl[1])) + sigmoid(beta * (kl[0] - r))) / 2 for (c, _), (r, _) in ratios]),
            "accuracy": mean([c > r for (c, _), (r, _) in ratios]), "chosen_reward": mean([beta * c for (c, _), _ in ratios]),
            "rejected_reward": mean([beta * r for _, (r, _) in ratios])}


# --- what is learned -------------------------------------------------------------------------

@pytest.mark.parametrize("loss", ["dpo", "ipo", "kto"])
def test_the_chosen_completions_become_more_likely_and_every_number_is_that_of_the_models(engine, base, file, validation, loss):
    ask = params(base, file, preference_loss=loss, beta=0.3, batch_size=10, eval_every=15)
    done = finished(engine, {**ask, "validation_file": validation})
    ours, want = done["additive"], losses(engine, base, done["fine_tuned_model"], preferences(10, 2), 0.3)
    assert ours["valid_loss"] == pytest.approx(want[loss], rel=1e-4)
    for metric in ("accuracy", "chosen_reward", "rejected_reward"):
        assert ours[metric] == pytest.approx(want[metric], rel=1e-4, abs=1e-4), metric
    assert ours["margin"] == pytest.approx(want["chosen_reward"] - want["rejected_reward"], rel=1e-3)
    assert ours["accuracy"] == 1 and ours["margin"] > 0.5
    assert done["trained_tokens"] == 30 * 10 * 2 * ours["resolved"]["sequence_length"]
    point, = engine.call("job.checkpoints", {"id": done["id"]})["data"][:1]
    assert point["metrics"]["accuracy"] == 1 and point["metrics"]["valid_mean_token_accuracy"] is None
    first = finished(engine, params(base, file, 1, preference_loss=loss, beta=0.3))["additive"]["train_loss"]
    assert first == pytest.approx({"dpo": math.log(2), "ipo": (1 / 0.6) ** 2, "kto": 0.5}[loss], rel=1e-6)  # the model is the reference


def test_the_method_is_openais_and_says_what_was_used(engine, base, file):
    method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.25, "n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": "auto"}}}
    done = finished(engine, {"model": base, "training_file": file, "method": method})
    used, resolved = done["method"]["dpo"]["hyperparameters"], done["additive"]["resolved"]
    assert done["method"]["type"] == "dpo" and (used["beta"], used["n_epochs"], used["batch_size"]) == (0.25, 2, 8)
    assert (resolved["objective"], resolved["preference_loss"], resolved["beta"]) == ("preference", "dpo", 0.25)
    ours = finished(engine, {"model": base, "training_file": file, "additive": {"objective": "preference", "beta": 0.5, "max_steps": 2}})
    assert ours["method"]["type"] == "dpo" and ours["method"]["dpo"]["hyperparameters"]["beta"] == 0.5


def test_messages_are_rendered_by_the_models_template_and_equal_their_text(engine, base):
    def messages(prompt, chosen, rejected):
        says = lambda role, text: {"role": role, "content": text}
        asked, answers = [says("user", prompt)], [[says("assistant", text)] for text in (chosen, rejected)]
        return ({"prompt": asked, "chosen": answers[0], "rejected": answers[1]},
                {"input": {"messages": asked, "parallel_tool_calls": True}, "preferred_output": answers[0], "non_preferred_output": answers[1]})

    data = [("Greet Ada", "Good day, Ada.", "Hey Ada!"), ("Greet Bo", "Good day, Bo.", "Hey Bo!")] * 4
    files = ["".join(json.dumps(messages(*d)[i]) + "\n" for d in data) for i in (0, 1)]
    made = [weights(engine, finished(engine, params(base, engine.add_file(f, "a.jsonl"), 3))["fine_tuned_model"]) for f in files]
    assert made[0] == made[1]


@pytest.mark.parametrize("adapter", [{"kind": "state"}, {"kind": "lora", "rank": 4}])
def test_an_adapter_learns_preferences_and_leaves_the_model(engine, base, file, validation, adapter):
    before = weights(engine, base)
    rate = 0.5 if adapter["kind"] == "state" else 0.01
    ask = params(base, file, 30, {"type": "adapter", "adapter": adapter}, objective="preference", learning_rate=rate)
    done = finished(engine, {**ask, "validation_file": validation})
    assert done["additive"]["adapter"] and done["additive"]["valid_loss"] < math.log(2) - 0.01 and done["additive"]["accuracy"] > 0.6
    assert weights(engine, base) == before


# --- a job that is interrupted -------------------------------------------------------------

@KILLS
def test_a_job_that_is_killed_ends_with_the_bytes_of_an_undisturbed_one(own_daemon, kills):
    daemon = own_daemon()
    with daemon.connect() as e:
        base = make_base(e)
        ask = params(base, e.add_file(preferences(200)), 40 * (kills + 1), checkpoint_every=5, eval_every=20)
        expected = weights(e, finished(e, ask)["fine_tuned_model"])
        job = e.call("job.create", ask)["id"]
    kill_during(daemon, job, kills)
    with daemon.connect() as e:
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        assert weights(e, done["fine_tuned_model"]) == expected


# --- what is refused -------------------------------------------------------------------------

def test_a_request_that_does_not_fit_is_refused_by_its_field(engine, base, file):
    plain = engine.add_file(TEXT)
    cases = [({"model": "additive2"}, "model"),
             ({"training_file": plain}, "training_file"),
             ({"additive": {"objective": "next_token"}}, "additive.objective"),
             ({"additive": {"preference_loss": "ipo", "label_smoothing": 0.1}}, "additive.label_smoothing"),
             ({"additive": {"loss_on": "completion"}}, "additive.loss_on"),
             ({"additive": {"beta": 0}}, "additive.beta"),
             ({"method": {"type": "dpo", "supervised": {}}}, "method.supervised"),
             ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": -1}}}}, "method.dpo.hyperparameters.beta"),
             ({"method": {"type": "supervised"}, "additive": {"beta": 0.1}}, "additive.beta"),
             ({"method": {"type": "supervised"}}, "additive.objective")]
    for change, param in cases:
        with pytest.raises(EngineError) as e:
            engine.call("job.create", {"model": base, "training_file": file, "method": {"type": "dpo"}, **change})
        assert e.value.status == 400 and e.value.param == param, (change, e.value.param, e.value.message)


def test_a_bad_line_is_named_with_its_member(engine, base):
    message = {"role": "assistant", "content": "b"}
    for bad, said in (({"prompt": "a", "chosen": "b"}, '"rejected"'), ({"prompt": 1, "chosen": "b", "rejected": "c"}, '"prompt"'),
                      ({"prompt": "a", "chosen": [message], "rejected": "c"}, '"chosen"'),
                      ({"prompt": [{"role": "user", "content": "a"}], "chosen": [message] * 2, "rejected": [message]}, '"chosen"'),
                      ({"input": {"messages": "a"}, "preferred_output": [message], "non_preferred_output": [message]}, "input.messages")):
        text = line("a", "b", "c") + json.dumps(bad) + "\n"
        with pytest.raises(EngineError) as e:
            engine.call("job.create", params(base, engine.add_file(text, "a.jsonl")))
        assert e.value.param == "training_file" and "line 2" in e.value.message and said in e.value.message, e.value.message


def test_statistics_count_both_sequences_of_a_line(engine, base):
    found = engine.call("file.statistics", {"id": engine.add_file(preferences(5), "a.jsonl"), "model": base})
    assert (found["kind"], found["documents"]) == ("preferences", 10)
