#!/usr/bin/env python3
"""make test-gpu: what must hold on a real CUDA device.

    test_gpu.py [--kit FOLDER] [--only PART,…] [--programs NAME,…] [--logs FOLDER] [--limit SECONDS] [--shared FOLDER]

    units      tests/unit/cuda on the device: the op table against the CPU's reference with poisoned outputs, larger
               shapes, memory, recording, training against PyTorch's losses, bf16 beside fp32, sessions, equal bits twice
    golden     additive-eval against golden numbers, in fp32 and in bf16
    service    `additive serve --backend cuda`: trains, streams, explains, serves while it trains
    memcheck   compute-sanitizer over the op table
    racecheck  the same, for shared memory

First what all others need: the device, libraries that load. Programs of units run in the order in which they build on each
other. One that fails runs again with ADDITIVE_CUDA_WAIT=1, which names the kernel that faults, then under
compute-sanitizer. --logs keeps all output.

The kit is made by `make gpu-kit` and can be carried to a machine that has a driver, a CUDA toolkit and Python with numpy.
Fails where there is no device.
"""

import argparse
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import kit as gpu_kit

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ("units", "golden", "service", "memcheck", "racecheck")
ORDER = ("backend", "elementwise", "ops", "gemm", "linear_panels", "additive_attention", "softmax_attention", "linear_cross_entropy",
         "streams", "fusion", "serving", "training", "attribution")
TOOLKIT = os.environ.get("CUDA_HOME", "/usr/local/cuda")


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


class Run:
    def __init__(self, kit, logs, limit):
        self.kit, self.logs, self.limit, self.failed = kit, logs, limit, []
        path = f"{kit / 'lib'}:{TOOLKIT}/lib64:{os.environ.get('LD_LIBRARY_PATH', '')}"
        self.environment = {**os.environ, "LD_LIBRARY_PATH": path, "ADDITIVE_PLUGIN_DIR": str(kit / "bin"),
                            "ADDITIVE_BIN": str(kit / "bin"), "PYTHONPATH": str(kit / "python"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                            "OMP_WAIT_POLICY": "passive"}
        self.environment.pop("ADDITIVE_EMULATOR", None)

    def command(self, name, command, limit=None, **environment):
        """Run it: whether it passed, and what it printed. Prints one line, and the output's end when it failed."""
        began = time.monotonic()
        with subprocess.Popen([str(c) for c in command], cwd=ROOT, env={**self.environment, **environment}, start_new_session=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
            try:
                output, code = process.communicate(timeout=limit or self.limit)[0], process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                output, code = process.communicate()[0], f"killed after {limit or self.limit} s"
        if self.logs:
            (self.logs / re.sub(r"[^\w.-]+", "_", f"{name}.log")).write_text(output)
        passed = len(re.findall(r"^\[       OK \]", output, re.M))
        note = f", {passed} tests" if passed else ""
        print(f"{'ok  ' if code == 0 else 'FAIL'} {name} ({time.monotonic() - began:.1f} s{note})", flush=True)
        if code != 0:
            self.failed.append(name)
            print("\n".join("     " + line[:200] for line in [*output.splitlines()[-24:], f"exit status: {code}"]), flush=True)
        return code == 0, output

    def libraries(self):
        """Does everything load, with this machine's C library and this toolkit's?"""
        programs = [*(self.kit / "bin").iterdir(), *(self.kit / "unit").glob("test_*")]
        found = {line.strip() for program in programs
                 for line in subprocess.run(["ldd", program], capture_output=True, text=True, env=self.environment).stdout.splitlines()
                 + subprocess.run(["ldd", program], capture_output=True, text=True, env=self.environment).stderr.splitlines()
                 if "not found" in line}
        for line in sorted(found):
            print(f"FAIL {line}", flush=True)
        if found:
            self.failed.append("libraries")

    def units(self, names):
        programs = sorted((self.kit / "unit").glob("test_*"), key=rank)
        if names:
            programs = [p for p in programs if p.name.removeprefix("test_") in names]
        if not programs:
            self.failed.append("units: the kit has none of them")
        for program in programs:
            passed, output = self.command(program.name, [program])
            if passed:
                continue
            # One test alone, where a fault of the device has made all that came after it fail.
            self.command(f"{program.name}, each launch by itself", [program], ADDITIVE_CUDA_WAIT="1")
            if "is lost" in output or "killed" in output:
                self.sanitizer("memcheck", program)

    def golden(self, shared):
        files = sorted(glob.glob(str(ROOT / "tests/data/golden/*.safetensors")))
        files += sorted(glob.glob(str(shared / "golden" / "*.safetensors")))
        for precision in ("fp32", "bf16"):
            for file in files:
                print(self.command(f"golden {pathlib.Path(file).stem} {precision}",
                                   [sys.executable, "tests/reference/check_golden.py", "--bin", self.kit / "bin",
                                    "--backend", "cuda", "--precision", precision, file])[1].strip(), flush=True)

    def service(self):
        self.command("service", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/test_cuda.py"], limit=300)

    def sanitizer(self, tool, program):
        tools = shutil.which("compute-sanitizer") or shutil.which(f"{TOOLKIT}/bin/compute-sanitizer")
        if not tools:
            print(f"FAIL {tool}: compute-sanitizer is not in the CUDA toolkit here", flush=True)
            self.failed.append(tool)
            return
        self.command(f"{tool} {program.name}", [tools, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20", program],
                     limit=300)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kit", default=ROOT / "build" / "gpu-kit", type=pathlib.Path)
    parser.add_argument("--shared", default=ROOT.parent / "shared", type=pathlib.Path, help="folder with more golden files")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--programs", default="", help="of units, these alone")
    parser.add_argument("--logs", type=pathlib.Path, help="folder for the output of each program")
    parser.add_argument("--limit", type=float, default=60, help="seconds that a program may take")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    print(describe_device(), flush=True)
    gpu_kit.unpack(arguments.kit)
    if arguments.logs:
        arguments.logs.mkdir(parents=True, exist_ok=True)
    run = Run(arguments.kit.resolve(), arguments.logs, arguments.limit)
    run.libraries()
    if "units" in parts:
        run.units(arguments.programs.split(",") if arguments.programs else [])
    if "golden" in parts:
        run.golden(arguments.shared)
    if "service" in parts:
        run.service()
    for tool in ("memcheck", "racecheck"):
        if tool in parts:
            run.sanitizer(tool, run.kit / "unit" / "test_ops")
    print(f"test-gpu: {len(run.failed)} failed" + "".join(f"\n  {name}" for name in run.failed))
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
