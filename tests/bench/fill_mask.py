"""How often an encoder fills in a mask rightly, beside a guess by the frequencies of the tokens.

    fill_mask.py TEXT [--option VALUE …]

Trains a `transformer` encoder on the first nine tenths of a text, as bytes, through the engine, and asks it about the last tenth: of each
block of --length bytes a share of --masks is masked, all at once, as in training. top-1 and top-5: the byte that was there is the likeliest
candidate, or one of the five likeliest. The guess is the most frequent byte of the training part, or one of the five most frequent.
"""

import argparse
import collections
import json
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "api"))
from engine_client import Daemon

FIRST_BYTE, TOP, BATCH = 3, 5, 64


def blocks(text, length):
    """Whole blocks of plain ASCII, which masks can stand in everywhere."""
    cut = [text[i : i + length] for i in range(0, len(text) - length + 1, length)]
    return [b for b in cut if b.isascii() and b"[MASK]" not in b and 0 not in b]


def masked(block, share, draw):
    places = sorted(draw.sample(range(len(block)), max(1, round(share * len(block)))))
    text = "".join("[MASK]" if i in set(places) else chr(b) for i, b in enumerate(block))
    return text, [block[i] for i in places]


def train(engine, text, a):
    done = engine.wait_job(engine.call("job.create", {
        "model": "transformer", "training_file": engine.add_file(text), "seed": a.seed, "additive": {
            "config": {"stack": "encoder", **json.loads(a.config)}, "sequence_length": a.length, "batch_size": a.batch,
            "max_steps": a.steps, "eval_every": 0, **({"learning_rate": a.rate} if a.rate else {}),
            "size": {"hidden": a.hidden, "heads": a.heads, "layers": a.layers, "dropout": 0}}})["id"], seconds=a.patience)
    assert done["status"] == "succeeded", done
    return done


def measure(engine, model, held_out, guess, a):
    draw, count = random.Random(a.seed), collections.Counter()
    tasks = [masked(block, a.masks, draw) for block in draw.sample(held_out, min(a.blocks, len(held_out)))]
    for i in range(0, len(tasks), BATCH):
        some = tasks[i : i + BATCH]
        answer = engine.call("fill_mask", {"model": model, "input": [text for text, _ in some], "top_k": TOP})
        for (_, truth), item in zip(some, answer["data"], strict=True):
            for byte, mask in zip(truth, item["masks"], strict=True):
                found = [c["id"] - FIRST_BYTE for c in mask["candidates"]]
                count.update(masks=1, top1=found[0] == byte, top5=byte in found, guess1=guess[0] == byte, guess5=byte in guess)
    return {"masks": count["masks"], **{k: round(count[k] / count["masks"], 4) for k in ("top1", "top5", "guess1", "guess5")}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    for name, usual in (("length", 128), ("batch", 16), ("steps", 2000), ("hidden", 128), ("heads", 4), ("layers", 4), ("blocks", 400),
                        ("seed", 1), ("patience", 3600), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--masks", type=float, default=0.15)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--config", default="{}", help="further keys of the model's configuration")
    a = parser.parse_args()
    text = a.text.read_bytes()
    cut = len(text) - len(text) // 10
    guess = [byte for byte, _ in collections.Counter(text[:cut]).most_common(TOP)]
    with tempfile.TemporaryDirectory() as folder, Daemon(pathlib.Path(folder) / "data", "--threads", a.threads) as daemon:
        with daemon.connect() as engine:
            done = train(engine, text[:cut], a)
            found = measure(engine, done["fine_tuned_model"], blocks(text[cut:], a.length), guess, a)
    print(json.dumps({**found, **{k: done["additive"][k] for k in ("valid_loss", "perplexity", "accuracy")}}))


if __name__ == "__main__":
    main()
