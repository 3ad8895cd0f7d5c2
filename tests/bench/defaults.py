"""Small tasks trained by one command each, with defaults alone: the share of right answers, and the time.

    defaults.py [--bin DIR] [--tasks words chat ...] [--seeds 1 2 3] [-- FURTHER OPTIONS OF additive train]

Each run prints a line of JSON. It has the task, its seed, the share of right answers to held-out questions, the job's
last numbers, and the seconds from the command to the new model. Options after `--` are added to every command.
"""

import argparse
import json
import pathlib
import random
import subprocess
import tempfile
import time
import urllib.request

ADJECTIVES = "old red cold dark green quiet small bright narrow heavy".split()
NOUNS = "mill river stranger road hill garden tower bridge well field".split()
PLACES = ("by the river|beside the house|over the hill|at the back|on the left|near the wood|in the yard|past the field|under the bridge|"
          "in the tower").split("|")
FILLER = "time long away stranger a then quiet hills morning into when the again river she said was gone before it came".split()
CLASSES = {"fruit": "apple", "metal": "copper", "bird": "sparrow"}


def rows(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def sentence(draw, least, most):
    return [draw.choice(FILLER) for _ in range(draw.randint(least, most))]


def labelled(draw, count, least, most):
    for _ in range(count):
        label = draw.choice(sorted(CLASSES))
        words = sentence(draw, least, most)
        words.insert(draw.randint(0, len(words)), CLASSES[label])
        yield {"text": " ".join(words), "label": label}


def two_texts(draw, count):
    for _ in range(count):
        label = draw.choice(["yes", "no"])
        words = sentence(draw, 3, 8)
        words.insert(draw.randint(0, len(words)), "never" if label == "no" else "surely")
        yield {"text": " ".join(sentence(draw, 3, 8)), "text_pair": " ".join(words), "label": label}


def pairs(draw, count):
    for _ in range(count):
        text = f"{draw.choice(ADJECTIVES)} {draw.choice(NOUNS)}"
        yield {"source": text, "target": text.upper()}


def lines(draw, count):
    for _ in range(count):
        i = draw.randrange(len(NOUNS))
        yield f"The {draw.choice(ADJECTIVES)} {NOUNS[i]} is {PLACES[i]}."


def talks(draw, count):
    for _ in range(count):
        i = draw.randrange(len(NOUNS))
        yield {"messages": [{"role": "user", "content": f"Where is the {NOUNS[i]}?"},
                            {"role": "assistant", "content": f"The {NOUNS[i]} is {PLACES[i]}."}]}


def request(url, method, path, body=None):
    asked = urllib.request.Request(url + path, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return json.load(answer)


def share(found):
    found = list(found)
    return sum(found) / len(found)


def classified(url, model, records):
    answer = request(url, "POST", "/v1/classify", {"model": model, "input": [
        {k: r[k] for k in ("text", "text_pair")} if "text_pair" in r else r["text"] for r in records]})
    return share(a["label"] == r["label"] for a, r in zip(answer["data"], records))


def completed(url, model, prompt, tokens):
    return request(url, "POST", "/v1/completions",
                          {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0})["choices"][0]["text"]


def translated(url, model, records):
    return share(completed(url, model, r["source"], 24) == r["target"] for r in records)


def filled(url, model, records):
    answer = request(url, "POST", "/v1/fill-mask", {"model": model, "input": [text.replace(" is ", " [MASK]s ", 1) for text in records]})
    return share(found["masks"][0]["candidates"][0]["token"] == "i" for found in answer["data"])


def continued(url, model, records):
    return share(completed(url, model, text.split(" is ")[0] + " is ", 24).split(".")[0] == text.split(" is ")[1][:-1] for text in records)


def chatted(url, model, records):
    return share(request(url, "POST", "/v1/chat/completions", {"model": model, "messages": r["messages"][:1], "max_tokens": 40, "temperature": 0})
                 ["choices"][0]["message"]["content"].strip() == r["messages"][1]["content"] for r in records)


# file, records, questions, options of the command, the share that is right
TASKS = {
    "words": ("words.jsonl", lambda d: labelled(d, 900, 3, 14), 60, ["--objective", "classification", "--epochs", "2"], classified),
    "words_auto": ("words.jsonl", lambda d: labelled(d, 900, 3, 14), 60, ["--objective", "classification"], classified),
    "two_texts": ("two.jsonl", lambda d: two_texts(d, 900), 60, ["--objective", "classification"], classified),
    "long_texts": ("long.jsonl", lambda d: labelled(d, 900, 40, 90), 60, ["--objective", "classification"], classified),
    "pairs": ("pairs.jsonl", lambda d: pairs(d, 1000), 40, ["--objective", "sequence_to_sequence"], translated),
    "masks": ("lines.txt", lambda d: lines(d, 4000), 40, ["--objective", "fill_mask"], filled),
    "prose": ("lines.txt", lambda d: lines(d, 4000), 40, [], continued),
    "chat": ("chat.jsonl", lambda d: talks(d, 400), 20, ["--epochs", "3"], chatted),
    "chat_auto": ("chat.jsonl", lambda d: talks(d, 400), 20, [], chatted),
}


def run(url, arguments, name, seed, folder):
    file, make, asked, options, score = TASKS[name]
    draw = random.Random(7)
    records = list(make(draw))
    questions = list(make(random.Random(8)))[:asked]
    path = folder / file
    path.write_text("\n".join(records) + "\n" if isinstance(records[0], str) else rows(records))
    began = time.monotonic()
    done = subprocess.run([arguments.bin / "additive", "train", path, *options, "--seed", str(seed), "--url", url, "--no-curve", *arguments.more],
                          capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        return {"task": name, "seed": seed, "error": done.stderr.strip().splitlines()[-1]}
    model = done.stdout.split()[-1]
    job = next(j for j in request(url, "GET", "/v1/fine_tuning/jobs?limit=5")["data"] if j["fine_tuned_model"] == model)
    ours = job["additive"]
    shown = {k: ours.get(k) for k in ("step", "result_step", "train_loss", "valid_loss", "accuracy", "exact", "bits_per_byte") if ours.get(k) is not None}
    parameters = request(url, "GET", f"/v1/models/{model}")["additive"]["parameters"]
    return {"task": name, "seed": seed, "right": round(score(url, model, questions), 3), "seconds": round(seconds, 1), "parameters": parameters, **shown}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/bin"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("more", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        service = subprocess.Popen([arguments.bin / "additive", "serve", "--listen", "127.0.0.1:0", "--data", folder / "data"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            url = service.stdout.readline().split()[1].rstrip("/")
            for name in arguments.tasks:
                for seed in arguments.seeds:
                    print(json.dumps(run(url, arguments, name, seed, folder)), flush=True)
        finally:
            service.terminate()
            service.wait()


if __name__ == "__main__":
    main()
