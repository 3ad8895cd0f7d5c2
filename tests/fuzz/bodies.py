"""Random bodies for jobs, evaluations and imports on the whole service:   bodies.py COUNT [SEED [FIRST]]

A body is a function of SEED and its number, so `bodies.py 1 SEED N` repeats body N. Every accepted job runs, and every
accepted model answers requests. A finding is a dead engine, a 5xx answer, or a job that fails after it was accepted,
unless its numbers became infinite. Findings are printed as lines of JSON; the exit status is 1 if there are any."""

import collections
import json
import pathlib
import random
import re
import struct
import sys
import tempfile
import time

import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from conftest import Service  # noqa: E402

SCHEMAS = yaml.safe_load((HERE.parents[1] / "proto" / "openapi.yaml").read_text())["components"]["schemas"]
ARCHITECTURES = ("additive", "gpt2", "linear", "dilated", "trilinear", "transformer", "linear_encoder")
OBJECTIVES = ("next_token", "fill_mask", "classification", "sequence_to_sequence", "span_corruption", "text_infilling")
OPTIMIZERS = ("adamw", "adamw_hf", "sgd", "muon", "normalized_sgd", "none")
DIVERGED = ("not finite", "not a number", "infinite", "diverge")
ODD = (None, "", "x", [], {}, True, 0, -1, 1, 0.5, 1e30, 2**31, 2**63, [1], {"a": 1}, "\0", 10**30)


def lines(*objects):
    return "\n".join(map(json.dumps, objects)) + "\n"


TEXTS = {
    "prose.txt": "".join(f"{n} bottles of beer on the wall. " for n in range(300)),
    "short.txt": "a few words", "one.txt": "a", "empty.txt": "",
    "pairs.jsonl": lines(*({"source": f"word {i}", "target": f"drow {i}"} for i in range(60))),
    "preferences.jsonl": lines(*({"prompt": f"{i}", "chosen": f" word {i}", "rejected": " no"} for i in range(60))),
    "classes.jsonl": lines(*({"text": f"text {i}", "label": "abc"[i % 3]} for i in range(60))),
    "numbers.jsonl": lines(*({"text": f"text {i}", "text_pair": "more", "label": i % 2} for i in range(60))),
    "one_class.jsonl": lines(*({"text": f"text {i}", "label": "a"} for i in range(20))),
    "prompts.jsonl": lines(*({"prompt": f"{i} + 1 =", "completion": f" {i + 1}"} for i in range(60))),
    "texts.json": json.dumps([{"text": f"text number {i}"} for i in range(80)], indent=1),
    "chat.jsonl": lines(*({"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "a", "weight": i % 2}]} for i in range(60))),
    "silent.jsonl": lines(*({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]} for i in range(60))),
    "alpaca.json": json.dumps([{"instruction": "add", "input": str(i), "output": str(i + 1)} for i in range(60)]),
    "empty_texts.jsonl": lines(*({"text": ""} for i in range(60))),
    "empty_answers.jsonl": lines(*({"prompt": f"{i}", "completion": ""} for i in range(60))),
    "broken.jsonl": '{"text": "a"}\n{"text": \n', "binary.bin": "\0\1\2" * 300, "table.csv": "a,b\n" * 200,
}


# --- values -----------------------------------------------------------------------------------

def resolve(schema):
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rsplit("/", 1)[1]]
    return schema


def number_of(r, schema):
    """Mostly small and valid; sometimes at a bound, sometimes beyond."""
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    high = schema.get("maximum", 1e9)
    if schema["type"] == "integer":
        return r.choices((r.randint(1, 8), low, low + 1, high, low - 1, high + 1, r.randint(1, 64)), (40, 6, 6, 1, 1, 1, 30))[0]
    near = schema.get("default", schema.get("x-default", low))
    return r.choices((min(near * r.choice((0.5, 1, 2)), high), r.uniform(low, min(high, low + 1)), low, high, low - 1, high * 2 + 1), (40, 30, 4, 4, 1, 1))[0]


def value_of(r, schema, depth=0):
    schema = resolve(schema)
    if r.random() < 0.01:
        return r.choice(ODD)
    if "anyOf" in schema:
        return value_of(r, r.choice(schema["anyOf"]), depth)
    if "enum" in schema:
        return r.choice(schema["enum"])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return number_of(r, schema)
    if kind == "boolean":
        return r.random() < 0.5
    if kind == "array":
        return [value_of(r, schema.get("items", {"type": "integer"}), depth + 1) for _ in range(r.choice((schema.get("minItems", 1),) * 8 + (1, 2, 3)))]
    if kind == "object":
        return {key: value_of(r, member, depth + 1) for key, member in schema.get("properties", {}).items() if r.random() < 0.3}
    return r.choice(("x", "auto", "a name", "\u2603"))


def changed(r, value):
    """Another value in place of one of a document: mostly a near one."""
    if r.random() < 0.2:
        return r.choice(ODD)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return r.choice((0, 1, 2, 3, -1, value + 1, value - 1, value * 2, value // 2, 1000003))
    if isinstance(value, float):
        return r.choice((0.0, 1.0, -value, value * 2, 0.5, 1e-30))
    if isinstance(value, str):
        return r.choice(("", value + "x", value.upper(), value[1:], "none", "relu"))
    if isinstance(value, list):
        return r.choice(([], value[:-1], value + value[-1:], value * 2))
    if isinstance(value, dict):
        return {key: member for key, member in value.items() if r.random() < 0.7}
    return r.choice((1, "x", True, []))


def places_of(document, path=()):
    """The path of every member."""
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = list(enumerate(document))[:200]
    else:
        items = []
    for key, member in items:
        yield (*path, key)
        yield from places_of(member, (*path, key))


def mutated(r, document, times):
    document = json.loads(json.dumps(document))
    for _ in range(times):
        places = list(places_of(document))
        if not places:
            break
        *path, last = r.choice(places)
        parent = document
        for key in path:
            parent = parent[key]
        if r.random() < 0.25:
            del parent[last]
        elif r.random() < 0.1 and isinstance(parent, dict):
            parent["another_key"] = r.choice(ODD)
        else:
            parent[last] = changed(r, parent[last])
    return document


# --- bodies ------------------------------------------------------------------------------------

class Trial:
    def __init__(self, service, seed):
        self.service, self.seed, self.pid = service, seed, service.engine_pid()
        self.found, self.counts = 0, collections.Counter()
        self.files = {name: service.upload(text, name) for name, text in TEXTS.items()}
        self.models = {}
        for name, body in self.base_bodies().items():
            state = service.wait_job(service.ok("POST", "/v1/fine_tuning/jobs", body)["id"])
            assert state["status"] == "succeeded", (name, state["error"])
            self.models[name] = state["fine_tuned_model"]
        self.folders = {name: self.download(model) for name, model in self.models.items()}
        self.configs = {name: json.loads(files["config.json"]) for name, files in self.folders.items()}

    def base_bodies(self):
        size = {"hidden": 16, "heads": 2, "layers": 2}
        train = {"max_steps": 2, "sequence_length": 16, "batch_size": 2, "size": size}

        def body(model, file, **more):
            return {"model": model, "training_file": self.files[file], "seed": 1, "additive": {**train, **more}}

        bodies = {name: body(name, "prose.txt") for name in ARCHITECTURES if name != "linear_encoder"}
        return {**bodies, "linear_encoder": body("linear_encoder", "classes.jsonl"),
                "encoder": body("transformer", "prose.txt", objective="fill_mask", config={"stack": "encoder"}),
                "pairs": body("transformer", "pairs.jsonl", objective="sequence_to_sequence", config={"stack": "encoder_decoder"}),
                "bpe": body("gpt2", "prose.txt", tokenizer={"type": "bpe", "vocab_size": 270}),
                "sentencepiece": body("additive", "prose.txt", tokenizer={"type": "sentencepiece", "vocab_size": 20, "model_type": "char"})}

    def download(self, model):
        files = {}
        for file in self.service.ok("GET", f"/v1/models/{model}/files")["data"]:
            data = self.service.ok("GET", f"/v1/models/{model}/files/{file['name']}")
            files[file["name"]] = data if isinstance(data, bytes) else json.dumps(data).encode()
        return files

    def report(self, number, what, **more):
        self.found += 1
        print(json.dumps({"body": number, "found": what, **more}), flush=True)

    def request(self, number, method, path, body=None, **more):
        """(status, answer); an answer of 5xx is a finding."""
        try:
            status, answer, _ = self.service.request(method, path, body, timeout=90, **more)
        except OSError as error:
            status, answer = 0, str(error)
        self.counts[f"{method} {re.sub('/[^/]*(-[0-9a-f]|:)[^/]*', '/ID', path)} {status}"] += 1
        if status >= 500 or status == 0:
            self.report(number, f"status {status}", request=f"{method} {path}", sent=body if isinstance(body, dict) else None, answer=repr(answer)[:500])
        if self.service.engine_pid() != self.pid:
            self.report(number, "the engine died", request=f"{method} {path}", sent=body if isinstance(body, dict) else None)
            deadline = time.monotonic() + 30
            while not self.service.answers() and time.monotonic() < deadline:
                time.sleep(0.1)
            self.pid = self.service.engine_pid()
        return status, answer

    def options(self, r, base):
        ours = {key: value_of(r, schema) for key, schema in resolve({"$ref": "/TrainingOptions"})["properties"].items()
                if key not in ("config", "size", "tokenizer", "training_files", "parallel") and r.random() < 0.15}
        if r.random() < 0.4:
            ours["objective"] = r.choice(OBJECTIVES)
        if "optimizer" in ours:
            ours["optimizer"] = r.choice(OPTIMIZERS)
        if r.random() < 0.1:
            ours["training_files"] = [{"file": r.choice(list(self.files.values())), "weight": r.choice((1, 0.5, 2))} for _ in range(r.randint(1, 3))]
        if base in ARCHITECTURES:
            ours["size"] = {"hidden": r.choice((8, 16, 32)), "heads": r.choice((1, 2, 4)), "layers": r.choice((1, 2))}
            ours["size"].update({key: value_of(r, schema) for key, schema in SCHEMAS["ModelSize"]["properties"].items()
                                 if key in ("positions", "dropout") and r.random() < 0.2})
            if r.random() < 0.5:
                config = self.configs[base]
                ours["config"] = {key: config[key] for key in config if r.random() < 0.2 and key != "id2label"}
                ours["config"] = mutated(r, ours["config"], r.choice((0, 1, 2, 3)))
            if base == "transformer" and r.random() < 0.5:
                ours.setdefault("config", {})["stack"] = r.choice(("decoder", "encoder", "encoder_decoder"))
            if r.random() < 0.2:
                ours["tokenizer"] = value_of(r, {"$ref": "/TokenizerOptions"})
        return ours

    def job(self, r, number):
        base = r.choice((*ARCHITECTURES, *self.models))
        model = base if base in ARCHITECTURES and r.random() < 0.7 else self.models[base]
        ours = self.options(r, base if model == base else None)
        file = r.choice(list(TEXTS))
        suited = {"linear_encoder": "classes.jsonl", "pairs": "pairs.jsonl"}
        if r.random() < 0.6:
            wanted = {"classification": "classes.jsonl", "sequence_to_sequence": "pairs.jsonl", "preference": "preferences.jsonl"}.get(ours.get("objective"))
            file = wanted or suited.get(base) or r.choice(("prose.txt", "chat.jsonl", "prompts.jsonl", "texts.json"))
        body = {"model": model, "training_file": self.files[file], "additive": ours}
        if r.random() < 0.15:
            body["validation_file"] = self.files[r.choice((file, r.choice(list(TEXTS))))]
        for key, name in (("hyperparameters", "Hyperparameters"), ("method", "FineTuningMethod")):
            if r.random() < 0.1:
                body[key] = value_of(r, {"$ref": f"/{name}"})
        if r.random() < 0.05:
            body = mutated(r, body, 1)
        dry = r.random() < 0.4
        if isinstance(body.get("additive"), dict) and not dry:
            body["additive"].update(max_steps=r.choice((1, 2, 3)), batch_size=r.choice((1, 2, 4)), sequence_length=r.choice((4, 8, 16, 33)))
            body["additive"]["gradient_accumulation"] = r.choice((1, 1, 2))
            body["additive"].pop("warmup_steps", None)
            if isinstance(body["additive"].get("source_length"), int):
                body["additive"]["source_length"] %= 64
        status, answer = self.repaired(number, "/v1/fine_tuning/jobs", body, dry_run=True)
        if dry or status not in (200, 400):
            return
        created, job = self.request(number, "POST", "/v1/fine_tuning/jobs", body)
        if (status == 200) != (created == 200) and created < 500:
            self.report(number, f"the dry run answers {status}, the request {created}", sent=body, answer=[answer, job])
        if created == 200:
            self.follow(number, "/v1/fine_tuning/jobs", job, body)

    def repaired(self, number, path, body, **more):
        """Remove refused fields until a body is accepted. The result is close to the limit of accepted bodies."""
        while True:
            status, answer = self.request(number, "POST", path, {**body, **more})
            *keys, last = re.findall(r"\w+", (answer["error"]["param"] or "") if status == 400 else "") or [""]
            holder = body
            for key in keys:
                holder = holder.get(key) if isinstance(holder, dict) else None
            if not isinstance(holder, dict) or last not in holder or last in ("model", "training_file", "file"):
                return status, answer
            del holder[last]

    def follow(self, number, path, job, body):
        deadline = time.monotonic() + 120
        state = job
        while state.get("status") not in ("succeeded", "failed", "cancelled", "completed", "paused") and time.monotonic() < deadline:
            time.sleep(0.03)
            _, state = self.request(number, "GET", f"{path}/{job['id']}")
            if not isinstance(state, dict):
                return
        self.counts[f"{path} {state.get('status')}"] += 1
        error = json.dumps(state.get("error"))
        if state.get("status") not in ("succeeded", "completed") and not any(word in error for word in DIVERGED):
            self.report(number, f"an accepted job is {state.get('status')}", sent=body, error=state.get("error"))
        self.request(number, "POST", f"{path}/{job['id']}/cancel") if time.monotonic() >= deadline else None
        model = state.get("fine_tuned_model")
        if model:
            self.use(number, model)
            self.request(number, "DELETE", f"/v1/models/{model}")

    def use(self, number, model):
        """A model's answer may be a refusal, but not a failure."""
        for path, body in (("/v1/completions", {"prompt": "ab", "max_tokens": 3, "logprobs": 2, "seed": 1}), ("/v1/embeddings", {"input": ["ab", "c"]}),
                           ("/v1/completions", {"prompt": "", "max_tokens": 2, "num_beams": 2}), ("/v1/classify", {"input": "ab"}),
                           ("/v1/fill-mask", {"input": "ab"}), ("/v1/explain", {"input": "ab"}), ("/v1/tokenize", {"text": "ab c"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2})):
            self.request(number, "POST", path, {"model": model, **body})

    def evaluation(self, r, number):
        body = {"model": r.choice(list(self.models.values())), "file": self.files[r.choice(list(TEXTS))]}
        if r.random() < 0.5:
            body["file"] = self.files[r.choice(("prose.txt", "chat.jsonl", "classes.jsonl", "pairs.jsonl"))]
        path = "/v1/evaluations"
        body.update({key: value_of(r, schema) for key, schema in SCHEMAS["EvaluationRequest"]["properties"].items()
                     if key not in body and r.random() < 0.3})
        if r.random() < 0.05:
            body = mutated(r, body, 1)
        status, answer = self.repaired(number, path, body)
        if status == 200:
            self.follow(number, path, answer, body)

    def model(self, r, number):
        files = dict(self.folders[r.choice(list(self.folders))])
        files.pop("README.md", None)
        tokenizers = [name for name in files if name.startswith("tokenizer")]
        which = r.choice(("config", "config", "config", "weights", *(["tokenizer"] if tokenizers else ())))
        if which == "config":
            files["config.json"] = json.dumps(mutated(r, json.loads(files["config.json"]), r.choice((1, 1, 2, 4)))).encode()
        elif which == "weights":
            files["model.safetensors"] = self.weights(r, files["model.safetensors"])
        else:
            files[tokenizers[0]] = self.tokenizer(r, files[tokenizers[0]])
        name = f"imported-{number}"
        boundary = "bodies-boundary"
        form = f'--{boundary}\r\nContent-Disposition: form-data; name="id"\r\n\r\n{name}\r\n'.encode()
        for file, data in files.items():
            form += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{file}"\r\n\r\n'.encode() + data + b"\r\n"
        status, _ = self.request(number, "POST", "/v1/models", form + f"--{boundary}--\r\n".encode(),
                                 headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})
        if status != 200:
            return
        self.use(number, name)
        for file in ("prose.txt", "classes.jsonl", "pairs.jsonl"):
            body = {"model": name, "training_file": self.files[file], "additive": {"max_steps": 1, "batch_size": 2, "sequence_length": 8}}
            created, job = self.request(number, "POST", "/v1/fine_tuning/jobs", body)
            if created == 200:
                self.follow(number, "/v1/fine_tuning/jobs", job, body)
        self.request(number, "DELETE", f"/v1/models/{name}")

    @staticmethod
    def weights(r, data):
        length = struct.unpack("<Q", data[:8])[0]
        kind = r.choice(("header", "header", "header", "cut", "length", "bytes"))
        if kind == "header":
            header = json.dumps(mutated(r, json.loads(data[8:8 + length]), r.choice((1, 1, 2)))).encode()
            return struct.pack("<Q", len(header)) + header + data[8 + length:]
        if kind == "cut":
            return data[:r.randrange(len(data))]
        if kind == "length":
            return struct.pack("<Q", r.choice((0, 1, length + 1, length - 1, 2**40, 2**63))) + data[8:]
        at = r.randrange(8 + length, len(data) - 4)
        return data[:at] + r.choice((b"\xff\xff\xff\xff", b"\0\0\x80\x7f", b"\0\0\xc0\x7f")) + data[at + 4:]

    @staticmethod
    def tokenizer(r, data):
        try:
            return json.dumps(mutated(r, json.loads(data), r.choice((1, 1, 2, 4)))).encode()
        except ValueError:  # a SentencePiece model
            at = r.randrange(len(data))
            return r.choice((data[:at], data[:at] + bytes([r.randrange(256)]) + data[at + 1:]))

    def run(self, first, count):
        for number in range(first, first + count):
            r = random.Random(f"{self.seed}-{number}")
            r.choices((self.job, self.evaluation, self.model), (50, 15, 35))[0](r, number)


def main(count, seed="1", first="0"):
    with tempfile.TemporaryDirectory() as folder:
        service = Service(pathlib.Path(folder) / "data", "--threads", "1")
        try:
            trial = Trial(service, seed)
            trial.run(int(first), int(count))
        finally:
            stopped = service.stop()
        print(json.dumps({"bodies": int(count), "seed": seed, "findings": trial.found, "answers": dict(sorted(trial.counts.items()))}, indent=1))
    return bool(trial.found or stopped)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
