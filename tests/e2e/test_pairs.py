"""Pairs of a source and its target, and text with words hidden: encoder-decoders trained at a shell."""

import json
import random
import subprocess

from conftest import BIN

SIZES = ("--hidden", "16", "--heads", "2", "--layers", "1", "--sequence", "6", "--source-length", "5", "--batch", "8", "--steps", "4")


def additive(service, *args):
    return subprocess.run([BIN / "additive", "--url", service.url, *args], capture_output=True, text=True, timeout=120)


def test_the_command_line_trains_an_encoder_decoder_for_pairs(service, tmp_path):
    words = ["".join(random.Random(i).choices("abcd", k=4)) for i in range(80)]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"source": w, "target": w[::-1]}) + "\n" for w in words))
    done = additive(service, "train", pairs, "--objective", "sequence_to_sequence", *SIZES)
    assert done.returncode == 0, done.stderr
    made = service.ok("GET", f"/v1/models/{done.stdout.split()[-1]}")["additive"]
    assert made["architecture"] == "transformer" and made["config"]["stack"] == "encoder_decoder"
    assert made["config"]["encoder"]["max_seq_len"] == 5 and made["config"]["decoder_start_token_id"] == 0
    job = service.ok("GET", "/v1/fine_tuning/jobs?limit=1")["data"][0]
    assert 0 <= job["additive"]["exact"] <= 1 and job["additive"]["accuracy"] is not None


def test_the_command_line_trains_an_encoder_decoder_to_write_texts_of_which_words_are_masked(service, tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"text": f"{n} bottles of beer on the wall"}) + "\n" for n in range(90, 10, -1)))
    done = additive(service, "train", lines, "--objective", "text_infilling", "--reset-at-document", "--label-smoothing", "0.1", "--hidden", "16",
                    "--heads", "2", "--layers", "1", "--sequence", "33", "--batch", "8", "--steps", "4")
    assert done.returncode == 0, done.stderr
    model = done.stdout.split()[-1]
    made = service.ok("GET", f"/v1/models/{model}")["additive"]
    assert made["config"]["stack"] == "encoder_decoder" and made["config"]["mask_token_id"] == 259
    job = service.ok("GET", "/v1/fine_tuning/jobs?limit=1")["data"][0]
    assert 0 <= job["additive"]["blank_accuracy"] <= 1 and job["additive"]["perplexity"] > 1
    written = additive(service, "generate", "--model", model, "--max-tokens", "3", "--temperature", "0", "9 [MASK] of beer")
    assert written.returncode == 0 and written.stderr == ""
    usage = service.ok("POST", "/v1/completions", {"model": model, "prompt": "9 [MASK] of beer", "max_tokens": 3})["usage"]
    assert usage["prompt_tokens"] == len("9 M of beer") + 1  # and the end


def test_a_file_without_targets_is_refused_by_its_line(service, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"source": "a", "target": "b"}\n{"source": "c", "text": "d"}\n')
    done = additive(service, "train", bad, "--objective", "sequence_to_sequence", *SIZES)
    assert done.returncode != 0 and 'line 2: needs a string "target"' in done.stderr
