"""The benefit of carrying state from block to block: the validation loss of jobs with and without `carry_state`.

    carry_state.py URL [--text FILE] [--model additive] [--steps 600] [--seeds 1 2]

Without --text the jobs read documents of 256 to 1,024 bytes, which begin with one of 16 letters, said 16 times. The
letter must be predicted after every 128 bytes of a constant filler; its last occurrence is then two blocks of 64 bytes
back. A model that sees only its block loses ln 16 nats at each answer, 0.0217 nats a byte. The lines are JSON objects,
and each document begins with nothing (`reset_at_document`).
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "clients" / "python"))
from additive_client import Client  # noqa: E402

BLOCK, EVERY, SAID = 64, 128, 16


def document(letter, answers):
    filler = "the answer to this is far away, and nothing here says what it was. "
    line = (filler * EVERY)[:EVERY - 2]
    return letter * SAID + "".join(line[SAID * (i == 0):] + "=" + letter for i in range(answers))


def documents(count, seed):
    source = random.Random(seed)
    return "".join(json.dumps({"text": document(source.choice("ABCDEFGHIJKLMNOP"), source.randint(2, 8))}) + "\n" for _ in range(count))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--model", default="additive")
    parser.add_argument("--config", type=json.loads, default={"position_embedding": "learned"})
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    client = Client(arguments.url)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.text
        if not path:
            path = pathlib.Path(folder) / "answers.jsonl"
            path.write_text(documents(1500, 7))
        file = client.files.upload(path)["id"]
    for seed in arguments.seeds:
        for carries in (False, True):
            recipe = {"size": {"hidden": 64, "heads": 4, "layers": 3, "dropout": 0}, "config": arguments.config, "sequence_length": BLOCK, "batch_size": 16,
                      "max_steps": arguments.steps, "learning_rate": arguments.rate, "warmup_steps": arguments.steps // 10, "eval_every": arguments.steps // 3,
                      "carry_state": carries, "reset_at_document": not arguments.text}
            job = client.jobs.create(arguments.model, file, seed=seed, additive=recipe)
            done = client.jobs.wait(job["id"], progress=False)
            print(json.dumps({"model": arguments.model, "seed": seed, "carry_state": carries, "valid_loss": done["additive"]["valid_loss"],
                              "status": done["status"], "error": done["error"]}), flush=True)


if __name__ == "__main__":
    main()
