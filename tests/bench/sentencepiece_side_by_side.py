"""Encoding beside the `sentencepiece` package, on the same text and the same threads, in turn.

    make build/bench/bench_encode
    pip install sentencepiece
    python tests/bench/sentencepiece_side_by_side.py TEXT [--threads 2] [--rounds 15] [--models FOLDER...]

Without --models a unigram (nmt_nfkc, 7,000 pieces) and a BPE model (identity, byte fallback, 7,000 pieces) are trained on TEXT. Lines
are encoded in one batch call of the package (num_threads) and on as many threads of ours; the numbers of tokens are compared. Reported: medians in
MB/s and the median of the ratios of neighbouring rounds. Then single texts of growing length: seconds and peak memory of ours.
"""
import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

import sentencepiece

BENCH = pathlib.Path(__file__).parents[2] / "build" / "bench" / "bench_encode"
TRAINED = {"unigram": dict(model_type="unigram"),
           "bpe": dict(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True)}


def ours(folder, text, threads, *more, repeats=1):
    out = subprocess.run([BENCH, folder, text, str(threads), str(repeats), *more], check=True, capture_output=True, text=True).stdout
    return [[float(x) for x in line.split()] for line in out.splitlines()][-1]


def side_by_side(folder, text, threads, rounds):
    (file,) = folder.glob("*.model")
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    lines = text.read_text().split("\n")
    mine, theirs = [], []
    for _ in range(rounds):
        _, tokens, _, seconds = ours(folder, text, threads, repeats=2)
        mine.append(seconds)
        begun = time.perf_counter()
        ids = model.encode(lines, num_threads=threads)
        theirs.append(time.perf_counter() - begun)
        assert sum(map(len, ids)) == tokens, "other tokens"
    size = text.stat().st_size / 1e6
    ratios = [t / m for t, m in zip(theirs, mine)]
    print(f"{folder.name}: {size / statistics.median(mine):.1f} MB/s, sentencepiece {sentencepiece.__version__} "
          f"{size / statistics.median(theirs):.1f} MB/s, ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})")


def lengths(folder, text):
    line = text.read_text().replace("\n", " ").encode()
    for name, unit, sizes in (("a line", line, (1, 10, 100)), ("spaces", b" ", (1, 10)), ("one letter", b"a", (1, 10))):
        for megabytes in sizes:
            with tempfile.NamedTemporaryFile() as file:
                file.write((unit * (megabytes * 10**6 // len(unit) + 1))[:megabytes * 10**6])
                file.flush()
                _, tokens, peak, seconds = ours(folder, file.name, 1, "whole")
            print(f"{folder.name}: {name} of {megabytes} MB: {seconds:.2f} s, {tokens:.0f} tokens, peak {peak / 1024:.0f} MiB")


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("text", type=pathlib.Path)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--rounds", type=int, default=15)
    ask.add_argument("--models", type=pathlib.Path, nargs="*")
    given = ask.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folders = given.models or []
        for name, options in TRAINED.items() if not given.models else ():
            folder = pathlib.Path(made) / name
            folder.mkdir()
            sentencepiece.SentencePieceTrainer.train(input=str(given.text), model_prefix=str(folder / "tokenizer"), vocab_size=7000, minloglevel=2, **options)
            folders.append(folder)
        for folder in folders:
            side_by_side(folder, given.text, given.threads, given.rounds)
            lengths(folder, given.text)


main()
