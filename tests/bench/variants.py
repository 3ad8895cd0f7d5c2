"""Find the fastest form of a peer on this machine: variants of its program are tried, then the best under other
systems.

A system is the environment of a Python process. It has an allocator: glibc's, with and without returning large blocks
to the kernel at once, or jemalloc or tcmalloc where they are installed. On AMD processors it may also have MKL with its
AVX-512 kernels. PyTorch's matrix products are MKL's, and MKL runs narrower kernels on processors that are not Intel's,
unless a function of it is replaced. That is not PyTorch as shipped, so such systems have a separate champion.
"""

import glob
import json
import os
import subprocess
import sys

from contest import Contestant, Failure

PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers.py")
VOCAB, CONTEXT = 8192, 2048
MKL_SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }"


def allocators():
    """Environments by name."""
    found = {"glibc": {}, "glibc without mmap": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}}
    for name, library in (("jemalloc", "libjemalloc.so.2"), ("tcmalloc", "libtcmalloc_minimal.so.4")):
        paths = glob.glob(f"/usr/lib/*/{library}") + glob.glob(f"/usr/lib/{library}")
        if paths:
            found[name] = {"LD_PRELOAD": paths[0]}
    return found


def mkl_override(out):
    """The library that makes MKL use AVX-512, or None where it would change nothing or cannot be made."""
    with open("/proc/cpuinfo") as file:
        if "AuthenticAMD" not in file.read():
            return None
    path = os.path.join(out, "mkl_avx512.so")
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path]
    try:
        subprocess.run(command, input=MKL_SOURCE, text=True, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return path


class Search:
    """Trials of a peer: {"variant": options, "allocator": name, "mkl": bool, "seconds": median}; those that were
    refused or failed have no seconds."""

    def __init__(self, bench, name, case, steps):
        self.bench, self.name, self.case, self.steps = bench, name, case, steps
        self.trials = []
        self.override = mkl_override(bench.options.out)

    def open(self, trial):
        options = {"threads": self.bench.threads, "vocab": VOCAB, "length": CONTEXT, **trial["variant"]}
        system = dict(allocators()[trial["allocator"]])
        if trial["mkl"]:
            system["LD_PRELOAD"] = " ".join(filter(None, [self.override, system.get("LD_PRELOAD")]))
        system["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(self.bench.options.out, "inductor")
        command = [sys.executable, PEERS, self.case, json.dumps(options)]
        return Contestant(command, options["threads"], system, self.bench.log)

    def attempt(self, variant, allocator="glibc", mkl=False, steps=None):
        trial = {"variant": variant, "allocator": allocator, "mkl": mkl}
        if any(all(trial[key] == other[key] for key in trial) for other in self.trials):
            return
        try:
            with self.open(trial) as c:
                trial["facts"] = c.facts
                if c.able:
                    c.bout(steps or self.steps)
                    trial["seconds"] = c.median()
        except Failure as failure:
            trial["failed"] = str(failure)
        self.trials.append(trial)
        outcome = f"{trial['seconds'] * 1e3:.2f} ms" if "seconds" in trial else "refused" if "facts" in trial else "failed"
        self.bench.note(f"{self.name}, {self.describe(trial)}: {outcome}")

    def ranking(self, mkl=False):
        return sorted((t for t in self.trials if "seconds" in t and t["mkl"] == mkl), key=lambda t: t["seconds"])

    def best_variants(self, count):
        """The fastest variants whatever the allocator, without MKL's replacement."""
        found = []
        for trial in self.ranking():
            if trial["variant"] not in found:
                found.append(trial["variant"])
        return found[:count]

    def refine(self, **changes):
        """The best so far with something changed."""
        for variant in self.best_variants(1):
            self.attempt({**variant, **changes})

    def tune(self, count):
        """The best `count` variants under every allocator, then with MKL's AVX-512 under the best one and tcmalloc."""
        for variant in self.best_variants(count):
            for allocator in allocators():
                self.attempt(variant, allocator)
        if self.override:
            systems = {trial["allocator"] for trial in self.ranking()[:1]} | {"tcmalloc"}
            for variant in self.best_variants(count):
                for allocator in sorted(systems & set(allocators())):
                    self.attempt(variant, allocator, mkl=True)

    def champions(self):
        """The fastest trial of PyTorch as shipped, and of PyTorch with MKL's AVX-512."""
        names = {False: self.name, True: self.name + ", MKL with AVX-512"}
        return {names[mkl]: self.ranking(mkl)[0] for mkl in names if self.ranking(mkl)}

    @staticmethod
    def describe(trial):
        words = [f"{key} {value}" for key, value in trial["variant"].items()] + [trial["allocator"]]
        return ", ".join(words + (["MKL with AVX-512"] if trial["mkl"] else []))


def training_additive(bench):
    s = Search(bench, "PyTorch additive", "train-additive", 4)
    s.attempt({"rounds": "definition", "warmup": 0}, steps=1)
    s.attempt({"rounds": "difference"})
    if not bench.options.quick:
        for rounds in ("banded", "chunked", "sdpa"):
            s.attempt({"rounds": rounds})
        s.attempt({"rounds": "banded", "compile": "default"})
        s.attempt({"rounds": "doubling", "compile": "default"})
    s.attempt({"rounds": "doubling"})
    s.attempt({"rounds": "doubling", "head_rows": 512})
    s.attempt({"rounds": "doubling", "head_rows": 512, "compile": "default"})
    if not bench.options.quick:
        s.refine(compile="max-autotune-no-cudagraphs")
        s.refine(threads=1)
    s.tune(2)
    return s


def training_additive2(bench):
    s = Search(bench, "PyTorch additive 2", "train-additive2", 4)
    for chunk in (64, 128):
        s.attempt({"chunk": chunk})
        s.attempt({"chunk": chunk, "compile": "default"})
    if not bench.options.quick:
        s.attempt({"chunk": 256})
    s.tune(1)
    return s


def training_gpt2(bench):
    s = Search(bench, "PyTorch GPT-2", "train-gpt2", 3)
    s.attempt({"attention": "sdpa"})
    s.attempt({"attention": "sdpa", "compile": "default"})
    if not bench.options.quick:
        s.attempt({"attention": "eager", "warmup": 1}, steps=1)
        s.attempt({"attention": "eager", "compile": "default"})
        s.attempt({"attention": "sdpa", "compile": "max-autotune-no-cudagraphs"})
    s.tune(1)
    return s


def training_rotary(bench):
    s = Search(bench, "PyTorch rotary SwiGLU", "train-rotary", 3)
    s.attempt({"merged": True, "compile": "default"})
    s.attempt({"merged": True, "head_rows": 512, "compile": "default"})
    if not bench.options.quick:
        s.attempt({"merged": False, "compile": "default"})
        s.attempt({"merged": True, "head_rows": 512})
        s.refine(compile="max-autotune-no-cudagraphs")
    s.tune(1)
    return s


def decoding_gpt2(bench):
    s = Search(bench, "PyTorch GPT-2", "decode-gpt2", 256)
    s.attempt({"threads": 1, "cache": "dynamic"})
    s.attempt({"threads": 1, "cache": "static"})
    s.attempt({"threads": 1, "cache": "static", "compile": "default"})
    if not bench.options.quick:
        s.attempt({"threads": 1, "cache": "dynamic", "attention": "eager"})
        s.attempt({"threads": 1, "cache": "dynamic", "compile": "default"})
        s.attempt({"threads": 1, "cache": "static", "compile": "default", "attention": "eager"})
        s.attempt({"threads": 1, "cache": "static", "compile": "max-autotune-no-cudagraphs", "freezing": True})
    s.refine(threads=bench.threads)
    s.tune(1)
    return s
