#!/usr/bin/env python3
"""Encoding the lines of a text here and by Hugging Face's `tokenizers`, which take turns.

    tokenizers_side_by_side.py bench_tokenizer FOLDER TEXT [--threads N] [--turns 7]

FOLDER holds a tokenizer.json. The library encodes by encode_batch_fast, its parallel mode without offsets, and by encode_batch.
Prints JSON: medians in MB/s, and ours over the faster of theirs; both must make the same number of tokens.

Needs `tokenizers`."""

import argparse
import json
import os
import statistics
import subprocess
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("text")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=7)
    return parser.parse_args()


def main():
    args = parse()
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import tokenizers

    library = tokenizers.Tokenizer.from_file(os.path.join(args.folder, "tokenizer.json"))
    library.encode_special_tokens = True
    with open(args.text, encoding="utf-8", newline="\n") as file:
        text = file.read()
    lines = text.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    size = len(text.encode())
    ours = subprocess.Popen([args.program, args.folder, args.text, str(args.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    facts = json.loads(ours.stdout.readline())
    theirs = {"encode_batch_fast": lambda: library.encode_batch_fast(lines, add_special_tokens=False),
              "encode_batch": lambda: library.encode_batch(lines, add_special_tokens=False)}
    assert sum(len(e.ids) for e in theirs["encode_batch"]()) == facts["tokens"], "the libraries make different tokens"
    times = {name: [] for name in ["here", *theirs]}
    for _ in range(args.turns):
        ours.stdin.write("3\n")
        ours.stdin.flush()
        times["here"] += [ns * 1e-9 for ns in json.loads(ours.stdout.readline())["ns"]]
        for name, encode in theirs.items():
            began = time.monotonic()
            encode()
            times[name].append(time.monotonic() - began)
    ours.stdin.close()
    ours.wait()
    speed = {name: size / 1e6 / statistics.median(t) for name, t in times.items()}
    print(json.dumps({"tokenizers": tokenizers.__version__, "threads": args.threads, "bytes": size, "lines": len(lines), "tokens": facts["tokens"],
                      "open_ms": round(facts["open_ms"], 1), "MB_per_s": {name: round(s, 2) for name, s in speed.items()},
                      "ratio": round(speed["here"] / max(speed[name] for name in theirs), 2)}, indent=1))


if __name__ == "__main__":
    main()
