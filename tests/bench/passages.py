"""Classification tasks built from running texts, as JSON lines for the objective `classification`.

    passages.py source  OUT_TRAIN OUT_VALID TEXT TEXT …   {"text", "label"}: which of the texts a passage comes from
    passages.py follows OUT_TRAIN OUT_VALID TEXT …        {"text", "text_pair", "label"}: does the second follow the first?

Passages have --bytes bytes (default 120) and begin anywhere, at the boundary of a character. Those for validation come from the last
tenth of each text, those for training from the rest. In half of the pairs the second passage comes from elsewhere in the same part of
the same text. --train and --valid are the numbers of examples, --seed selects them.
"""

import argparse
import json
import os
import random

TENTH = 10


def passage(text, begin, size):
    return text[begin : begin + size].decode("utf-8", "ignore")


def source(texts, size, count, draw):
    for _ in range(count):
        name, text = draw.choice(texts)
        yield {"text": passage(text, draw.randrange(len(text) - size), size), "label": name}


def follows(texts, size, count, draw):
    for _ in range(count):
        _, text = draw.choice(texts)
        begin = draw.randrange(len(text) - 2 * size)
        second, label = passage(text, begin + size, size), "yes"
        if draw.random() < 0.5:
            _, other = draw.choice(texts)
            second, label = passage(other, draw.randrange(len(other) - size), size), "no"
        yield {"text": passage(text, begin, size), "text_pair": second, "label": label}


def write(path, task, texts, size, count, draw):
    with open(path, "w", encoding="utf-8") as file:
        for record in task(texts, size, count, draw):
            if record["text"] and record.get("text_pair", "x"):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["source", "follows"])
    parser.add_argument("train_path")
    parser.add_argument("valid_path")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--bytes", type=int, default=120)
    parser.add_argument("--train", type=int, default=20000)
    parser.add_argument("--valid", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    whole = []
    for path in a.texts:
        with open(path, "rb") as file:
            whole.append((os.path.basename(path), file.read()))
    task, draw = {"source": source, "follows": follows}[a.task], random.Random(a.seed)
    cut = [(name, text, len(text) - len(text) // TENTH) for name, text in whole]
    write(a.train_path, task, [(name, text[:at]) for name, text, at in cut], a.bytes, a.train, draw)
    write(a.valid_path, task, [(name, text[at:]) for name, text, at in cut], a.bytes, a.valid, draw)


if __name__ == "__main__":
    main()
