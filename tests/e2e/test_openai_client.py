"""The official OpenAI client, unmodified, does its whole job here."""

import subprocess

import openai
import pytest

from conftest import BIN, SMALL, TEXT


def test_models_are_listed_and_retrieved(client, model):
    assert model in [m.id for m in client.models.list()]
    one = client.models.retrieve(model)
    assert one.object == "model" and one.additive["architecture"] == "additive"


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="no-such-model", prompt="x")


def test_a_completion_has_text_usage_and_a_finish_reason(client, model):
    answer = client.completions.create(model=model, prompt="99 bottles", max_tokens=12, temperature=0)
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len("99 bottles")
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_stream_is_the_same_text_in_pieces(client, model):
    ask = dict(model=model, prompt="99 bottles of ", max_tokens=20, temperature=0.9, seed=7, logit_bias={"1": -100})
    whole = client.completions.create(**ask).choices[0].text
    chunks = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 20
    assert len(chunks) > 5


def test_several_prompts_and_samples_are_numbered(client, model):
    answer = client.completions.create(model=model, prompt=["ab", "cd"], n=2, max_tokens=4, seed=1, temperature=1)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]


def test_log_probabilities_have_openais_shape(client, model):
    answer = client.completions.create(model=model, prompt="bottles", max_tokens=5, logprobs=3, temperature=0,
                                       logit_bias={"1": -100})
    lp = answer.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 5
    for chosen, top in zip(lp.token_logprobs, lp.top_logprobs):
        assert chosen <= 0 and len(top) >= 3
        assert abs(max(top.values()) - chosen) < 1e-6  # greedy: the chosen token is the likeliest


def test_a_stop_string_ends_the_text_before_it(client, model):
    ask = dict(model=model, prompt="12 bottles of beer", temperature=0)
    whole = client.completions.create(max_tokens=40, **ask).choices[0].text
    stop = whole[10:13]
    cut = client.completions.create(max_tokens=40, stop=[stop], **ask)
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].text == whole[:whole.index(stop)]


def test_files_go_in_and_come_out_unchanged(client):
    made = client.files.create(file=("notes.txt", TEXT.encode()), purpose="fine-tune")
    assert made.object == "file" and made.bytes == len(TEXT.encode()) and made.filename == "notes.txt"
    assert made.id in [f.id for f in client.files.list()]
    assert client.files.retrieve(made.id).id == made.id
    assert client.files.content(made.id).read() == TEXT.encode()
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)


def test_a_fine_tuning_job_runs_to_a_usable_model(client, service):
    file = client.files.create(file=("corpus.txt", TEXT.encode()), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="additive", training_file=file.id, suffix="client", seed=3,
                                         extra_body={"additive": dict(SMALL, max_steps=20)})
    assert job.status in ("validating_files", "queued", "running")
    service.wait_job(job.id)
    job = client.fine_tuning.jobs.retrieve(job.id)
    assert job.status == "succeeded" and job.fine_tuned_model and job.trained_tokens == 20 * 4 * 64
    assert job.id in [j.id for j in client.fine_tuning.jobs.list()]
    events = list(client.fine_tuning.jobs.list_events(job.id))
    assert any(e.type == "metrics" for e in events)
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id))
    assert checkpoints and checkpoints[0].step_number == 20
    assert client.completions.create(model=job.fine_tuned_model, prompt="9", max_tokens=3).choices[0].text is not None
    again = client.fine_tuning.jobs.create(model=job.fine_tuned_model, training_file=file.id,
                                           hyperparameters={"n_epochs": 1, "batch_size": 4})
    assert service.wait_job(again.id)["status"] == "succeeded"


def test_a_cancelled_job_says_so(client):
    file = client.files.create(file=("corpus.txt", TEXT.encode()), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="additive", training_file=file.id,
                                         extra_body={"additive": dict(SMALL, max_steps=100000)})
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    with pytest.raises(openai.ConflictError):
        client.fine_tuning.jobs.cancel(job.id)


def test_a_job_may_hold_nulls_everywhere(service):
    def job(**config):
        nulls = dict.fromkeys(("hyperparameters", "method", "integrations", "validation_file", "suffix", "x"))
        return service.ok("POST", "/v1/fine_tuning/jobs", {
            "model": "gpt2", "dry_run": True, **nulls, "metadata": {"a": None},
            "additive": {"config": {"n_embd": 32, "n_head": 4, "n_layer": 2, **config}, "tokenizer": None, "size": {"layers": None}, "betas": None}})

    assert job(vocab_size=None, n_inner=None, tie_word_embeddings=None, hidden_size=None, chat_template=None) == job()


def test_a_bad_field_is_named(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt="x", extra_body={"temprature": 1})
    assert caught.value.code == "unknown_parameter" and caught.value.param == "temprature"


# --- the prompt in the answer, and the best of several ----------------------------------------------


def test_an_echo_begins_the_text_with_the_prompt(client, model):
    for prompt in ("99 b☃", [102, 103, 104]):
        ask = dict(model=model, prompt=prompt, max_tokens=5, temperature=0, n=2)
        plain, echoed = client.completions.create(**ask), client.completions.create(echo=True, **ask)
        text = prompt if isinstance(prompt, str) else "cde"
        assert [c.text for c in echoed.choices] == [text + c.text for c in plain.choices]
        assert echoed.usage == plain.usage
        chunks = list(client.completions.create(echo=True, stream=True, **ask))
        assert "".join(c.choices[0].text for c in chunks if c.choices[0].index == 1) == echoed.choices[1].text


def test_a_prompt_is_scored_with_max_tokens_0(client, model):
    ask = dict(model=model, max_tokens=0, echo=True, logprobs=2)
    answer = client.completions.create(prompt=["99 b☃ttles", "9"], **ask)
    first, second = answer.choices
    assert (first.text, second.text) == ("99 b☃ttles", "9")
    assert answer.usage.completion_tokens == 0 and first.finish_reason == second.finish_reason == "length"
    lp = first.logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == len("99 b☃ttles".encode())
    assert lp.tokens[0] == "9" and lp.token_logprobs[0] is None and lp.top_logprobs[0] is None and lp.text_offset[:3] == [0, 1, 2]
    assert second.logprobs.token_logprobs == [None]
    # Text that the model has written gets the scores that it was written with.
    written = client.completions.create(model=model, prompt="99", max_tokens=8, temperature=0, logprobs=0, logit_bias={"1": -100})
    scored = client.completions.create(prompt="99" + written.choices[0].text, **ask).choices[0].logprobs
    assert scored.tokens[2:] == written.choices[0].logprobs.tokens
    assert scored.token_logprobs[2:] == pytest.approx(written.choices[0].logprobs.token_logprobs, abs=1e-4)
    assert scored.text_offset[2:] == [2 + i for i in written.choices[0].logprobs.text_offset]


def test_a_scored_prompt_goes_on_with_what_is_sampled(client, model):
    ask = dict(model=model, prompt="99 bottles", max_tokens=6, temperature=0, logprobs=1, logit_bias={"1": -100})
    plain, echoed = client.completions.create(**ask).choices[0], client.completions.create(echo=True, **ask).choices[0]
    assert echoed.text == "99 bottles" + plain.text
    assert echoed.logprobs.tokens == list("99 bottles") + plain.logprobs.tokens
    assert echoed.logprobs.token_logprobs[10:] == pytest.approx(plain.logprobs.token_logprobs, abs=1e-4)


def test_the_log_probabilities_of_a_prompt_have_vllms_form_and_those_of_an_echo(service, client, model):
    prompt = "99 b☃ttles"
    ask = dict(model=model, prompt=[prompt, "9"], max_tokens=6, temperature=0, logit_bias={"1": -100})
    echoed = client.completions.create(echo=True, logprobs=3, **ask).choices
    plain = client.completions.create(**ask)
    ids = service.ok("POST", "/v1/tokenize", {"model": model, "input": prompt})["tokens"]
    for wanted in (0, 2, 3):
        answer = client.completions.create(extra_body={"prompt_logprobs": wanted}, **ask)
        assert [c.text for c in answer.choices] == [c.text for c in plain.choices] and answer.usage == plain.usage
        assert all(c.logprobs is None for c in answer.choices)
        first, second = (c.prompt_logprobs for c in answer.choices)
        assert second == [None] and first[0] is None and len(first) == len(ids)
        for i in range(1, len(ids)):
            own = first[i][str(ids[i])]
            assert own["logprob"] == pytest.approx(echoed[0].logprobs.token_logprobs[i], abs=1e-5)
            assert own["decoded_token"] == echoed[0].logprobs.tokens[i]
            ranked = sorted(first[i].values(), key=lambda d: d["rank"])
            assert [d["rank"] for d in ranked[:wanted]] == list(range(1, wanted + 1))
            assert len(ranked) == wanted + (own["rank"] > wanted) and all(a["logprob"] >= b["logprob"] for a, b in zip(ranked, ranked[1:]))
            top = sorted(echoed[0].logprobs.top_logprobs[i].values(), reverse=True)
            assert [d["logprob"] for d in ranked[:wanted]] == pytest.approx(top[:wanted], abs=1e-5)
    # Beside an echo and other numbers of alternatives each has its own.
    both = client.completions.create(echo=True, logprobs=1, extra_body={"prompt_logprobs": 2}, **ask).choices[0]
    assert both.text == echoed[0].text and both.logprobs.token_logprobs == echoed[0].logprobs.token_logprobs
    assert [at and max(at, key=at.get) for at in both.logprobs.top_logprobs] == [at and max(at, key=at.get) for at in echoed[0].logprobs.top_logprobs]
    assert both.prompt_logprobs[1:] == client.completions.create(extra_body={"prompt_logprobs": 2}, **ask).choices[0].prompt_logprobs[1:]
    unheard = client.completions.create(model=model, prompt=prompt, max_tokens=0, echo=True, extra_body={"prompt_logprobs": 0}).choices[0]
    assert unheard.text == prompt and unheard.logprobs is None and len(unheard.prompt_logprobs) == len(ids)
    best = client.completions.create(model=model, prompt=prompt, max_tokens=3, best_of=3, n=1, seed=1, extra_body={"prompt_logprobs": 0}).choices[0]
    assert best.text == client.completions.create(model=model, prompt=prompt, max_tokens=3, best_of=3, n=1, seed=1).choices[0].text
    assert len(best.prompt_logprobs) == len(ids)


def test_a_chat_has_the_log_probabilities_of_its_prompt(client, model):
    ask = dict(model=model, messages=[{"role": "user", "content": "99"}], max_tokens=3, temperature=0, n=2)
    plain, answer = client.chat.completions.create(**ask), client.chat.completions.create(extra_body={"prompt_logprobs": 1}, **ask)
    assert answer.choices == plain.choices
    assert len(answer.prompt_logprobs) == plain.usage.prompt_tokens and answer.prompt_logprobs[0] is None
    assert all(1 <= len(at) <= 2 for at in answer.prompt_logprobs[1:])


@pytest.mark.parametrize("more, param", [({"prompt_logprobs": 21}, "prompt_logprobs"), ({"prompt_logprobs": -1}, "prompt_logprobs"),
                                         ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
                                         ({"prompt_logprobs": 1, "num_beams": 2}, "prompt_logprobs")])
def test_prompt_logprobs_that_are_not_offered_are_refused_by_name(service, model, more, param):
    status, answer, _ = service.request("POST", "/v1/completions", {"model": model, "prompt": "ab", **more})
    assert (status, answer["error"]["param"]) == (400, param)


def test_the_answer_of_a_beam_search_is_the_same_streamed_and_on_the_command_line(service, client, model):
    ask = dict(model=model, prompt="99 bottles", max_tokens=20, extra_body={"num_beams": 4, "length_penalty": 0})
    best = client.completions.create(n=2, logprobs=0, **ask)
    sums = [sum(c.logprobs.token_logprobs) for c in best.choices]
    assert sums[0] >= sums[1] and best.choices[0].text != best.choices[1].text
    chunks = list(client.completions.create(n=2, stream=True, **ask))
    for i in range(2):
        assert "".join(c.choices[0].text for c in chunks if c.choices[0].index == i) == best.choices[i].text
    options = ["--num-beams", "4", "--length-penalty", "0", "--max-tokens", "20"]
    shown = subprocess.run([BIN / "additive", "--url", service.url, "generate", "--model", model, *options, "99 bottles"],
                           capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.rstrip("\n") == best.choices[0].text.rstrip("\n")


def test_the_best_of_several_samples_are_the_answer_best_first(client, model):
    ask = dict(model=model, prompt=["99", "12 bottles"], max_tokens=6, temperature=1.2, seed=5, logit_bias={"1": -100})
    every = client.completions.create(n=4, logprobs=0, **ask)
    mean = [sum(c.logprobs.token_logprobs) / 6 for c in every.choices]
    ranked = [sorted(range(at, at + 4), key=lambda i: -mean[i]) for at in (0, 4)]
    wanted = [every.choices[i].text for best in ranked for i in best[:2]]
    for more in ({}, {"logprobs": 1}):
        best = client.completions.create(n=2, best_of=4, **ask, **more)
        assert [c.text for c in best.choices] == wanted and [c.index for c in best.choices] == [0, 1, 2, 3]
        assert best.usage.completion_tokens == every.usage.completion_tokens
        assert all((c.logprobs is not None) == bool(more) for c in best.choices)
    with pytest.raises(openai.BadRequestError, match="best_of"):
        client.completions.create(n=2, best_of=1, **ask)
