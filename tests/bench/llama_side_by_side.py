#!/usr/bin/env python3
"""Beside llama.cpp's server over HTTP: the same GPT-2 weights under the same load, in turns.

    llama_side_by_side.py PROGRAMS LLAMA_SERVER --gguf-py FOLDER [--clients 1,8,64] [--seconds 8] [--rounds 2]

PROGRAMS: the folder of additive, additived and additive-httpd. LLAMA_SERVER: the program. FOLDER: `gguf-py` of its sources,
which needs NumPy. The model has width 128, 6 layers, random weights in fp32, and bytes as tokens. Both servers use THREADS
threads and have at least as many places as there are clients. `additive load` sends prompts of 8 to 32 random letters, each answered with 4, 16
or 32 greedy tokens. Both servers run at once; one waits while the other is under load. Prints a table with medians of the rounds:
requests and tokens a second, milliseconds to the first text and between two pieces of text. The last column is the memory of a
server's processes after its load; of a page that several processes share, each has its part. The model is trained by a service that has ended.

A text may end early, on both sides alike. Both servers keep the beginnings of prompts, as is their default."""

import argparse
import json
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from contest import Failure
from http_load import TEXT, Service, train, upload

CONFIG = {"n_embd": 128, "n_head": 4, "n_layer": 6, "n_positions": 1024}
SETTINGS = {"config": CONFIG, "sequence_length": 64, "batch_size": 1, "max_steps": 1}
END = 1  # id in the byte tokenizer, whose bytes follow its special tokens
PARTS = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
WHOLE = {"wte.weight": "token_embd.weight", "wpe.weight": "position_embd.weight", "ln_f.weight": "output_norm.weight", "ln_f.bias": "output_norm.bias"}


def tensors(path):
    """The tensors of a safetensors file, all of which are float32."""
    import numpy
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for name, about in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, end = about["data_offsets"]
            yield name.removeprefix("transformer."), numpy.frombuffer(data[start + first:start + end], "<f4").reshape(about["shape"])


def gguf_name(name):
    if name in WHOLE:
        return WHOLE[name]
    _, layer, *part, what = name.split(".")
    return f"blk.{layer}.{PARTS['.'.join(part)]}.{what}"


def byte_tokens():
    """GPT-2's printable character for each byte."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def convert(folder, out):
    import gguf
    config = json.loads((folder / "config.json").read_text())
    w = gguf.GGUFWriter(out, "gpt2")
    w.add_block_count(config["n_layer"])
    w.add_context_length(config["n_positions"])
    w.add_embedding_length(config["n_embd"])
    w.add_feed_forward_length(4 * config["n_embd"])
    w.add_head_count(config["n_head"])
    w.add_layer_norm_eps(config["layer_norm_epsilon"])
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    special = config["vocab_size"] - 256
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([f"<|{i}|>" for i in range(special)] + byte_tokens())
    w.add_token_types([gguf.TokenType.CONTROL] * special + [gguf.TokenType.NORMAL] * 256)
    w.add_token_merges([" ".join(byte_tokens()[:2])])  # required; the bytes 0 and 1 are in no text, and their pair is no token
    w.add_eos_token_id(END)
    w.add_add_bos_token(False)
    for name, values in tensors(folder / "model.safetensors"):
        matrix = values.ndim == 2 and name not in WHOLE
        w.add_tensor(gguf_name(name), values.T.copy() if matrix else values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Llama:
    name = "llama.cpp"

    def __init__(self, program, model, clients, threads, log):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.address, self.model = f"127.0.0.1:{port}", "any"
        with open(log, "w") as output:
            self.process = subprocess.Popen([program, "-m", model, "--host", "127.0.0.1", "--port", str(port), "-np", str(clients), "-c",
                                             str(clients * CONFIG["n_positions"]), "-t", str(threads), "-tb", str(threads)], stdout=output, stderr=output)
        deadline = time.monotonic() + 60
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise Failure(f"{program} did not start: {pathlib.Path(log).read_text()[-400:]}")
            time.sleep(0.1)

    def ready(self):
        try:
            return urllib.request.urlopen(f"http://{self.address}/health", timeout=5).status == 200
        except OSError:
            return False

    def processes(self):
        return {"server": self.process.pid}

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def memory(pid):
    found = re.search(r"^Pss: *(\d+) kB", pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) * 1024


def loaded(programs, server, clients, seconds):
    done = subprocess.run([programs / "additive", "load", server.model, "--url", f"http://{server.address}", "--json", "--no-compare", "--clients",
                           str(clients), "--seconds", str(seconds)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{server.name}: {(done.stderr or done.stdout).strip()[-300:]}")
    found = json.loads(done.stdout)
    return [found["requests"] / found["seconds"], found["tokens_per_second"], *(found[f"{what}_ms"][p] for what in ("first", "gap") for p in ("p50", "p99")),
            sum(map(memory, server.processes().values())) / 1e6]


def row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def compare(options, folder, service, gguf, clients):
    llama = Llama(options.llama, gguf, clients, options.threads, folder / "llama.log")
    try:
        found = {server: [] for server in (service, llama)}
        for number in range(options.rounds):
            for server in list(found)[::1 if number % 2 == 0 else -1]:
                found[server].append(loaded(options.programs, server, clients, options.seconds))
    finally:
        llama.stop()
    for server, rounds in found.items():
        row([str(clients), server.name, *(f"{statistics.median(values):,.1f}" for values in zip(*rounds))])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("llama", type=pathlib.Path, metavar="LLAMA_SERVER")
    parser.add_argument("--gguf-py", type=pathlib.Path, required=True)
    parser.add_argument("--clients", type=lambda text: [int(word) for word in text.split(",")], default=[1, 8, 64])
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    sys.path.insert(0, str(options.gguf_py))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        settings = ["--backend", "cpu", "--threads", options.threads, "--max-generations", max(options.clients)]
        service = Service(options.programs, folder, settings)
        try:
            model = train(service, "gpt2", upload(service, TEXT * 200), SETTINGS)
            service.stop()
            service = Service(options.programs, folder, settings)
            service.name, service.model = "additive", model
            subprocess.run([options.programs / "additive", "models", "pull", service.model, folder / "model", "--url", f"http://{service.address}"],
                           check=True, capture_output=True)
            convert(folder / "model", folder / "model.gguf")
            row(["clients", "server", "requests/s", "tokens/s", "first p50 ms", "p99", "gap p50 ms", "p99", "MB"])
            row(["---"] * 9)
            for clients in options.clients:
                compare(options, folder, service, folder / "model.gguf", clients)
        finally:
            service.stop()


if __name__ == "__main__":
    main()
