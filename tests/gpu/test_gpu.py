#!/usr/bin/env python3
"""make test-gpu: what must hold on a real CUDA device.

    test_gpu.py [--kit FOLDER] [--only PART,…] [--shared FOLDER]

    units      tests/unit/cuda on the device: the op table against the CPU's reference with poisoned outputs, larger
               shapes, memory, recording, training against PyTorch's losses, bf16 beside fp32, sessions, equal bits twice
    golden     additive-eval against golden numbers, in fp32 and in bf16
    service    `additive serve --backend cuda`: trains, streams, explains, serves while it trains
    memcheck   compute-sanitizer over the op table
    racecheck  the same, for shared memory

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


def describe_device():
    """One line about the device; exits without one."""
    smi = shutil.which("nvidia-smi")
    if smi:
        asked = subprocess.run([smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                               capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.strip():
            return asked.stdout.strip()
    sys.exit("test-gpu: there is no NVIDIA GPU here (nvidia-smi finds none)")


class Run:
    def __init__(self, kit):
        self.kit, self.failed = kit, []
        toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        path = f"{kit / 'lib'}:{toolkit}/lib64:{os.environ.get('LD_LIBRARY_PATH', '')}"
        self.environment = {**os.environ, "LD_LIBRARY_PATH": path, "ADDITIVE_PLUGIN_DIR": str(kit / "bin"),
                            "ADDITIVE_BIN": str(kit / "bin"), "PYTHONPATH": str(kit / "python"), "OMP_WAIT_POLICY": "passive"}
        self.environment.pop("ADDITIVE_EMULATOR", None)

    def command(self, name, command, timeout=1200):
        """Run it; prints one line, and the output's end when it failed."""
        began = time.monotonic()
        try:
            done = subprocess.run([str(c) for c in command], cwd=ROOT, env=self.environment, timeout=timeout,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            code, output = "timeout", (late.stdout or b"").decode(errors="replace")
        passed = len(re.findall(r"^\[       OK \]", output, re.M))
        note = f", {passed} tests" if passed else ""
        print(f"{'ok  ' if code == 0 else 'FAIL'} {name} ({time.monotonic() - began:.1f} s{note})", flush=True)
        if code != 0:
            self.failed.append(name)
            print("\n".join("     " + line for line in output.splitlines()[-40:]), flush=True)
        return output

    def units(self):
        programs = sorted((self.kit / "unit").glob("test_*"))
        if not programs:
            self.failed.append("units: the kit has none")
        for program in programs:
            self.command(program.name, [program])

    def golden(self, shared):
        files = sorted(glob.glob(str(ROOT / "tests/data/golden/*.safetensors")))
        files += sorted(glob.glob(str(shared / "golden" / "*.safetensors")))
        for precision in ("fp32", "bf16"):
            for file in files:
                print(self.command(f"golden {pathlib.Path(file).stem} {precision}",
                                   [sys.executable, "tests/reference/check_golden.py", "--bin", self.kit / "bin",
                                    "--backend", "cuda", "--precision", precision, file]).strip(), flush=True)

    def service(self):
        self.command("service", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/test_cuda.py"])

    def sanitizer(self, tool):
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        program = shutil.which("compute-sanitizer") or shutil.which(f"{home}/bin/compute-sanitizer")
        if not program:
            print(f"FAIL {tool}: compute-sanitizer is not in the CUDA toolkit here", flush=True)
            self.failed.append(tool)
            return
        self.command(tool, [program, "--tool", tool, "--error-exitcode", "9", self.kit / "unit" / "test_ops"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kit", default=ROOT / "build" / "gpu-kit", type=pathlib.Path)
    parser.add_argument("--shared", default=ROOT.parent / "shared", type=pathlib.Path, help="folder with more golden files")
    parser.add_argument("--only", default=",".join(PARTS))
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    print(describe_device(), flush=True)
    gpu_kit.unpack(arguments.kit)
    run = Run(arguments.kit.resolve())
    if "units" in parts:
        run.units()
    if "golden" in parts:
        run.golden(arguments.shared)
    if "service" in parts:
        run.service()
    for tool in ("memcheck", "racecheck"):
        if tool in parts:
            run.sanitizer(tool)
    print(f"test-gpu: {len(run.failed)} failed" + "".join(f"\n  {name}" for name in run.failed))
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
