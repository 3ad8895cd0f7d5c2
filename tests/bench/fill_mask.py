"""Accuracy of an encoder that fills in masks, compared with a guess by the frequencies of the tokens.

    fill_mask.py TEXT [--tokenizer SPEC] [--words] [--option VALUE …]

Trains a `transformer` encoder on the first nine tenths of a text through the engine, by default as bytes, and tests it
on the last tenth. In each block of --length tokens a share of --masks is masked, all at once, as in training. With
--words whole words are hidden in training, and those that are one token are tested: a token of text that begins and
ends with a letter or digit. top-1 and top-5: the original token is the most likely candidate, or one of the five most
likely. The guess is the most frequent token of the training part among those that can be tested, or one of the five
most frequent.
"""

import argparse
import collections
import json
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "api"))
from engine_client import RESULT, Daemon

TOP, BATCH, PIECE = 5, 64, 1 << 14


def tokens_of(engine, model, text):
    """(id, text) of each token; a text is cut at newlines to be sent."""
    found, at = [], 0
    while at < len(text):
        end = len(text) if len(text) - at <= PIECE else text.rindex("\n", at, at + PIECE) + 1
        ids = engine.call("tokenize", {"model": model, "text": text[at:end]})
        found += [(piece["id"], piece["text"]) for piece in ids["pieces"]]
        at = end
    return found


def is_word(tokens, i):
    """True if token i is a whole word."""
    own, after = tokens[i][1], tokens[i + 1][1] if i + 1 < len(tokens) else " "
    before = tokens[i - 1][1] if i else " "
    return own.strip().isalnum() and (own[0].isspace() or before[-1:].isspace() or i == 0) and not after[:1].isalnum()


def askable(tokens, words):
    """The places that can be asked for."""
    return [i for i in range(len(tokens)) if (is_word(tokens, i) if words else tokens[i][1])]


def blocks(tokens, length, words):
    """Whole blocks, and where they can be asked. Without words only of ASCII, where a token of bytes has a text."""
    for i in range(0, len(tokens) - length + 1, length):
        block = tokens[i : i + length]
        text = "".join(t for _, t in block)
        places = askable(block, words)
        if places and "[MASK]" not in text and (words or text.isascii()):
            yield block, places


def masked(block, places, share, draw):
    chosen = set(draw.sample(places, max(1, round(share * len(places)))))
    parts = [t[: len(t) - len(t.lstrip())] * (t.strip() != "") + "[MASK]" if i in chosen else t for i, (_, t) in enumerate(block)]
    return "".join(parts), [block[i][0] for i in sorted(chosen)]


def train(engine, text, a):
    kind, job, _ = engine.begin("job.create", {
        "model": "transformer", "training_file": engine.add_file(text), "seed": a.seed, "additive": {
            "config": {"stack": "encoder", **json.loads(a.config)}, "tokenizer": json.loads(a.tokenizer), "sequence_length": a.length,
            "batch_size": a.batch, "max_steps": a.steps, "eval_every": 0, "whole_words": a.words, "mask_fraction": a.masks,
            **({"learning_rate": a.rate} if a.rate else {}),
            "size": {"hidden": a.hidden, "heads": a.heads, "layers": a.layers, "dropout": a.dropout}}}).next(a.patience)  # a tokenizer that is trained takes its time
    assert kind == RESULT, job
    done = engine.wait_job(job["id"], seconds=a.patience)
    assert done["status"] == "succeeded", done
    return done


def measure(engine, model, held_out, guess, a):
    draw, count = random.Random(a.seed), collections.Counter()
    tasks = [masked(*block, a.masks, draw) for block in draw.sample(held_out, min(a.blocks, len(held_out)))]
    for i in range(0, len(tasks), BATCH):
        some = tasks[i : i + BATCH]
        answer = engine.call("fill_mask", {"model": model, "input": [text for text, _ in some], "top_k": TOP})
        for (_, truth), item in zip(some, answer["data"], strict=True):
            for token, mask in zip(truth, item["masks"], strict=True):
                found = [c["id"] for c in mask["candidates"]]
                count.update(masks=1, top1=found[0] == token, top5=token in found, guess1=guess[0] == token, guess5=token in guess)
    return {"masks": count["masks"], **{k: round(count[k] / count["masks"], 4) for k in ("top1", "top5", "guess1", "guess5")}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    for name, usual in (("length", 128), ("batch", 16), ("steps", 2000), ("hidden", 128), ("heads", 4), ("layers", 4), ("blocks", 400),
                        ("seed", 1), ("patience", 3600), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--masks", type=float, default=0.15)
    parser.add_argument("--dropout", type=float, default=0)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--words", action="store_true")
    parser.add_argument("--tokenizer", default='{"type": "bytes"}', help="the job's tokenizer, as JSON")
    parser.add_argument("--config", default="{}", help="further keys of the model's configuration")
    a = parser.parse_args()
    text = a.text.read_text()
    cut = text.rindex("\n", 0, len(text) - len(text) // 10) + 1
    with tempfile.TemporaryDirectory() as folder, Daemon(pathlib.Path(folder) / "data", "--threads", a.threads) as daemon:
        with daemon.connect() as engine:
            done = train(engine, text[:cut], a)
            model = done["fine_tuned_model"]
            read, held_out = (tokens_of(engine, model, t) for t in (text[:cut], text[cut:]))
            guess = [id for id, _ in collections.Counter(read[i][0] for i in askable(read, a.words)).most_common(TOP)]
            length = a.length - a.length // 8 * a.words  # masks may cut a text in more tokens
            found = measure(engine, model, list(blocks(held_out, length, a.words)), guess, a)
    print(json.dumps({**found, **{k: done["additive"][k] for k in ("valid_loss", "perplexity", "accuracy")}}))


if __name__ == "__main__":
    main()
