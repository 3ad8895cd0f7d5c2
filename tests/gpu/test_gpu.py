#!/usr/bin/env python3
"""make test-gpu: the tests that a real CUDA device must pass.

    test_gpu.py [--kit FOLDER] [--only PART,…] [--programs NAME,…] [--jobs N] [--logs FOLDER] [--limit SECONDS] [--golden FOLDER]
                [--emulated]

    units      tests/unit/cuda on the device: the op table against the CPU's reference with poisoned outputs, larger
               shapes, memory, recording, sums by NCCL (of one rank), training against PyTorch's losses, bf16 beside fp32, sessions, equal bits twice
    golden     additive-eval against golden numbers, in fp32 and in bf16
    service    `additive serve --backend cuda`: trains, streams, explains, serves while it trains
    memcheck   compute-sanitizer over the op table
    racecheck  the same, for shared memory

First what all others need: the device, the versions of driver, toolkit and C library (machine.py), libraries that load; where
one is missing nothing else runs. Programs of units run in the order in which they build on each other, --jobs of them at a
time. One that fails runs again, alone, with ADDITIVE_CUDA_WAIT=1, which names the kernel that faults. Where that passes it runs
with CUDA_LAUNCH_BLOCKING=1: recordings and early launches are as before, work of two streams is not side by side. Where the device was
lost or the program killed, it runs under compute-sanitizer.

Closes with a table of all programs. --logs keeps all output and the table as summary.json. --emulated runs units on the
emulated device of ADDITIVE_EMULATOR, or else of KIT/emulator, to try the harness.

The kit is made by `make gpu-kit` and can be carried to a machine that has a driver, a CUDA toolkit and Python with numpy.
Fails where there is no device.
"""

import argparse
import concurrent.futures
import dataclasses
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import kit as gpu_kit
import machine

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ("units", "golden", "service", "memcheck", "racecheck")
ORDER = ("backend", "collective", "elementwise", "ops", "gemm", "linear_panels", "program", "additive_attention", "softmax_attention", "linear_cross_entropy",
         "streams", "fusion", "background", "look_back", "serving", "serving_kinds", "decoding", "training", "look_back_training",
         "attribution", "launches", "traffic")
TOOLKIT = os.environ.get("CUDA_HOME", "/usr/local/cuda")
NOTE = "note: "  # prefix of a program's lines that are shown although it passed


def describe_device():
    """One line about the device; exits without one."""
    smi = shutil.which("nvidia-smi")
    if smi:
        asked = subprocess.run([smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                               capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.strip():
            return asked.stdout.strip()
    sys.exit("test-gpu: there is no NVIDIA GPU here (nvidia-smi finds none)")


def rank(program):
    name = program.name.removeprefix("test_")
    return ORDER.index(name) if name in ORDER else len(ORDER), name


@dataclasses.dataclass
class Result:
    """One run of one program."""

    name: str
    seconds: float
    status: int | str  # exit status, or "killed after 60 s"
    output: str
    tests: dict[str, int]  # passed, failed, skipped; as far as it says so

    @property
    def ok(self):
        return self.status == 0

    @property
    def lost(self):
        """True if the device was lost, or the program was killed by a signal or after its time limit."""
        return not isinstance(self.status, int) or self.status < 0 or "is lost" in self.output


def count_tests(output):
    """From cmocka's lines. A test that has begun and not ended has failed."""
    ends = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
    tests, running = dict.fromkeys(ends.values(), 0), None
    for what, name in re.findall(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] (\S+)", output, re.M):
        if what == "RUN":
            tests["failed"] += running is not None
            running = name
        elif name == running:  # the closing lists name tests once more
            tests[ends[what]] += 1
            running = None
    tests["failed"] += running is not None
    return tests


class Run:
    def __init__(self, kit, logs, limit, emulated):
        self.kit, self.logs, self.limit, self.results, self.wrong = kit, logs, limit, [], []
        self.folders = [str(kit / "lib"), f"{TOOLKIT}/lib64", *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(self.folders), "ADDITIVE_BIN": str(kit / "bin"),
                            "PYTHONPATH": str(kit / "python"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_WAIT_POLICY": "passive"}
        for name in ("ADDITIVE_CUDA_WGMMA", "ADDITIVE_CUDA_WGMMA_ATTENTION"):
            self.environment.setdefault(name, "1") # off by default until a GPU has run them
        if emulated:
            self.environment.pop("ADDITIVE_PLUGIN_DIR", None)
            self.environment.setdefault("ADDITIVE_EMULATOR", str(kit / "emulator" / "checked"))
        else:
            self.environment.pop("ADDITIVE_EMULATOR", None)
            self.environment["ADDITIVE_PLUGIN_DIR"] = str(kit / "bin")

    # --- programs ---

    def command(self, name, command, limit=None, **environment):
        """Run it, and keep its output where logs are kept."""
        began, limit = time.monotonic(), limit or self.limit
        with subprocess.Popen([str(c) for c in command], cwd=ROOT, env={**self.environment, **environment}, start_new_session=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
            try:
                output, status = process.communicate(timeout=limit)[0], process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                output, status = process.communicate()[0], f"killed after {limit:g} s"
        if self.logs:
            (self.logs / re.sub(r"[^\w.-]+", "_", f"{name}.log")).write_text(output)
        return Result(name, time.monotonic() - began, status, output, count_tests(output))

    def report(self, result):
        """One line, and the output's end when it failed."""
        self.results.append(result)
        counts = ", ".join(f"{n} {what}" for what, n in result.tests.items() if n)
        print(f"{'ok  ' if result.ok else 'FAIL'} {result.name} ({result.seconds:.1f} s{', ' if counts else ''}{counts})", flush=True)
        lines = result.output.splitlines()
        shown = [line for line in lines if line.startswith(NOTE)] if result.ok else [*lines[-24:], f"exit status: {result.status}"]
        print("".join(f"     {line[:200]}\n" for line in shown), end="", flush=True)

    def refuse(self, what):
        """Something is wrong that is no program's."""
        self.wrong.append(what)
        print(f"FAIL {what}", flush=True)

    # --- parts ---

    def machine(self, emulated):
        """Check that this machine meets the kit's requirements and that everything loads. Otherwise no other test
        runs."""
        wrong, notes = machine.check(self.kit, self.folders, emulated)
        for line in notes:
            print(f"     {line}", flush=True)
        for line in wrong or sorted(set(self.missing_libraries())):
            self.refuse(line)

    def missing_libraries(self):
        for program in [*(self.kit / "bin").glob("*"), *(self.kit / "unit").rglob("test_*")]:
            asked = subprocess.run(["ldd", program], capture_output=True, text=True, env=self.environment)
            yield from (line.strip() for line in (asked.stdout + asked.stderr).splitlines() if "not found" in line)

    def units(self, names, jobs):
        folder = self.kit / "unit" / "cuda" if (self.kit / "unit" / "cuda").exists() else self.kit / "unit"  # a build folder is a kit, too
        programs = sorted((p for p in folder.glob("test_*") if os.access(p, os.X_OK)), key=rank)
        if names:
            programs = [p for p in programs if p.name.removeprefix("test_") in names]
            missing = set(names) - {p.name.removeprefix("test_") for p in programs}
            if missing:
                self.refuse(f"units: no {', '.join(sorted(missing))} in the kit")
        elif not programs:
            self.refuse("units: the kit has none of them")
        failed = []
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for program, result in zip(programs, pool.map(lambda p: self.command(p.name, [p]), programs)):
                self.report(result)
                if not result.ok:
                    failed.append((program, result))
        for program, result in failed:  # once all have run: nothing else is on the device then
            self.again(program, result)

    def again(self, program, result):
        """Find out more about a failure."""
        waited = self.command(f"{program.name}, each launch by itself", [program], ADDITIVE_CUDA_WAIT="1")
        self.report(waited)
        if waited.ok:
            self.report(self.command(f"{program.name}, blocking", [program], CUDA_LAUNCH_BLOCKING="1"))
        if result.lost:
            self.sanitizer("memcheck", program)

    def golden(self, further):
        files = sorted(glob.glob(str(ROOT / "tests/data/golden/*.safetensors")))
        files += sorted(map(str, further.glob("*.safetensors"))) if further else []
        for precision in ("fp32", "bf16"):
            for file in files:
                result = self.command(f"golden {pathlib.Path(file).stem} {precision}",
                                      [sys.executable, "tests/reference/check_golden.py", "--bin", self.kit / "bin",
                                       "--backend", "cuda", "--precision", precision, file])
                self.report(result)
                print(result.output.strip(), flush=True)

    def service(self):
        self.report(self.command("service", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/test_cuda.py"],
                                 limit=300))

    def sanitizer(self, tool, program):
        tools = shutil.which("compute-sanitizer") or shutil.which(f"{TOOLKIT}/bin/compute-sanitizer")
        if not tools:
            self.refuse(f"{tool} {program.name}: compute-sanitizer is not in the CUDA toolkit here")
            return
        self.report(self.command(f"{tool} {program.name}", [tools, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20", program],
                                 limit=300))

    # --- the end ---

    def failed(self):
        return [*self.wrong, *(r.name for r in self.results if not r.ok)]

    def summary(self, device, seconds):
        """Print the table; keep it where logs are kept."""
        rows = [("program", "passed", "failed", "skipped", "seconds", "")]
        rows += [(r.name, *map(str, r.tests.values()), f"{r.seconds:.1f}", "" if r.ok else f"exit status: {r.status}") for r in self.results]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        for row in rows:
            print("  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, 5)), row[5]]).rstrip())
        failed = self.failed()
        print(f"test-gpu: {len(failed)} failed, {seconds:.0f} s" + "".join(f"\n  {name}" for name in failed), flush=True)
        if self.logs:
            programs = [{"name": r.name, "seconds": round(r.seconds, 2), "status": r.status, **r.tests,
                         "notes": [line.removeprefix(NOTE) for line in r.output.splitlines() if line.startswith(NOTE)]} for r in self.results]
            (self.logs / "summary.json").write_text(json.dumps({"device": device, "seconds": round(seconds, 1), "programs": programs,
                                                                "failed": failed}, indent=1) + "\n")
        return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kit", default=ROOT / "build" / "gpu-kit", type=pathlib.Path)
    parser.add_argument("--golden", type=pathlib.Path, help="folder with further golden files")
    parser.add_argument("--only", help="of the parts, these alone")
    parser.add_argument("--programs", default="", help="of units, these alone")
    parser.add_argument("--jobs", type=int, default=1, help="programs of units at a time")
    parser.add_argument("--logs", type=pathlib.Path, help="folder for the output of each program")
    parser.add_argument("--limit", type=float, default=60, help="seconds that a program may take")
    parser.add_argument("--emulated", action="store_true", help="units on the emulated device")
    arguments = parser.parse_args()
    able = PARTS[:1] if arguments.emulated else PARTS
    parts = arguments.only.split(",") if arguments.only else able
    if not set(parts) <= set(able):
        parser.error(f"parts are {', '.join(able)}")
    if arguments.jobs < 1:
        parser.error("--jobs is at least 1")
    began, device = time.monotonic(), "emulated device" if arguments.emulated else describe_device()
    print(device, flush=True)
    gpu_kit.unpack(arguments.kit)
    if arguments.logs:
        arguments.logs.mkdir(parents=True, exist_ok=True)
    run = Run(arguments.kit.resolve(), arguments.logs, arguments.limit, arguments.emulated)
    run.machine(arguments.emulated)
    if run.wrong:
        return run.summary(device, time.monotonic() - began)
    if "units" in parts:
        run.units(arguments.programs.split(",") if arguments.programs else [], arguments.jobs)
    if "golden" in parts:
        run.golden(arguments.golden)
    if "service" in parts:
        run.service()
    for tool in ("memcheck", "racecheck"):
        if tool in parts:
            run.sanitizer(tool, run.kit / "unit" / "test_ops")
    return run.summary(device, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
