"""tests/cuda_resources on texts as the compiler and the disassembler write them, with faults planted; and, among the slow
tests, on a kernel that nvcc compiles."""
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SOURCE = """
template <int N> __global__ void early_kernel(float *x) { … }
status run(backend *b) { return cuda_launch_early(b, early_kernel<3>, 1, 32, 0, x); }
"""
EARLY, OTHER = "_Z12early_kernelILi3EEvPf", "_Z12other_kernelPf"
SASS_WAIT, PTX_WAIT = "        /*0010*/                   ACQBULK ;", "griddepcontrol.wait;"
ARCHS = ("sm_80", "sm_90a", "sm_120")


def report(spilled):
    """spilled: {architecture: bytes}, of the early kernel"""
    lines = []
    for arch in ARCHS:
        for name in (EARLY, OTHER):
            bytes_ = spilled.get(arch, 0) if name == EARLY else 0
            lines += [f"ptxas info    : Compiling entry function '{name}' for '{arch}'",
                      f"ptxas info    : Function properties for {name}",
                      f"    {bytes_} bytes stack frame, {bytes_ // 2} bytes spill stores, {bytes_ // 2} bytes spill loads",
                      "ptxas info    : Used 18 registers, used 1 barriers, 64 bytes smem"]
    return "\n".join(lines) + "\n"


def disassembly(waits, ptx="sm_90"):
    """{arguments of the disassembler: its text}; waits: what has the wait"""
    head = "\nFatbin %s code:\n================\narch = %s\ncode version = [1,8]\n"
    texts = {arch: head % ("elf", arch) + f"\t\tFunction : {EARLY}\n" + (SASS_WAIT if arch in waits else "        /*0010*/   EXIT ;") + "\n"
             for arch in ARCHS}
    texts["-ptx"] = (head % ("ptx", ptx) + f".visible .entry {OTHER}(\n)\n.visible .entry {EARLY}(\n)\n" +
                     (PTX_WAIT if "ptx" in waits else "ret;") + "\n")
    return texts


@pytest.fixture
def run(tmp_path):
    def run(texts, spilled={}, listed="early_kernel\nother_kernel\n", source=SOURCE):
        (tmp_path / "cuda").mkdir(exist_ok=True)
        (tmp_path / "cuda/early.cu").write_text(source)
        (tmp_path / "early.o").write_text("")
        (tmp_path / "early.ptxas").write_text(report(spilled))
        (tmp_path / "list").write_text(listed)
        for name, text in texts.items():
            (tmp_path / f"text{name}").write_text(text)
        tool = tmp_path / "cuobjdump" # -sass -arch ARCH … or -ptx
        tool.write_text(f'#!/bin/sh\n[ "$1" = -ptx ] && exec cat "{tmp_path}/text-ptx"\nexec cat "{tmp_path}/text$3"\n')
        tool.chmod(0o755)
        return subprocess.run([ROOT / "tests/cuda_resources", tool, tmp_path / "list", tmp_path / "cuda", tmp_path / "early.o"],
                              text=True, capture_output=True)
    return run


WHOLE = {"sm_90a", "sm_120", "ptx"}


def test_kernels_that_wait_and_keep_their_registers_pass(run):
    done = run(disassembly(WHOLE))
    assert done.returncode == 0, done.stderr
    assert "3 pieces of code" in done.stdout


@pytest.mark.parametrize("lost", sorted(WHOLE))
def test_a_lost_wait_is_found_in_each_architecture_and_in_ptx(run, lost):
    done = run(disassembly(WHOLE - {lost}))
    assert done.returncode == 1
    where = "PTX for sm_90" if lost == "ptx" else f"machine code for {lost}"
    assert f"early_kernel<3> may begin early and has no wait in the {where}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_ptx_for_older_devices_needs_no_wait(run):
    assert run(disassembly(WHOLE - {"ptx"}, ptx="sm_80")).returncode == 0


@pytest.mark.parametrize("launch", ["cuda_launch_early", "cuda_launch_early_clusters"])
def test_an_early_kernel_that_was_not_compiled_is_named(run, launch):
    done = run(disassembly(WHOLE), source=SOURCE + f"{launch}(b,\n\trenamed_kernel, 1);")
    assert done.returncode == 1
    assert "cuda_launch_early of renamed_kernel: no kernel of this name was compiled" in done.stderr


@pytest.mark.parametrize("arch, passes", [("sm_80", 64), ("sm_90a", 0), ("sm_120", 64)])
def test_spilled_registers_are_found_in_each_architecture(run, arch, passes):
    assert run(disassembly(WHOLE), spilled={arch: passes}).returncode == 0
    done = run(disassembly(WHOLE), spilled={arch: passes + 8})
    assert done.returncode == 1
    assert f"early_kernel<3>: {passes + 8} bytes of stack, {passes + 8} bytes of spilled registers moved in {arch}" in done.stderr


def test_an_exception_is_of_one_architecture_and_so_many_bytes(run):
    listed = "early_kernel  sm_80:96 # why\n"
    assert run(disassembly(WHOLE), {"sm_80": 96}, listed).returncode == 0
    assert run(disassembly(WHOLE), {"sm_80": 104}, listed).returncode == 1
    assert run(disassembly(WHOLE), {"sm_120": 96}, listed).returncode == 1


def test_a_listed_name_that_no_kernel_has_is_found(run):
    done = run(disassembly(WHOLE), listed="early_kernel\ngone_kernel\n")
    assert done.returncode == 1
    assert "gone_kernel: no kernel's name begins so" in done.stderr


TOOLKIT = os.environ.get("ADDITIVE_CUDA")
DISASSEMBLER = next((ROOT / "build/cuda-venv").glob("lib/python*/site-packages/nvidia/cu*/bin"), None)
PLANTED = """
template <int N> __global__ void early_kernel(float *x)
{
#ifdef WAITS
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
	x[threadIdx.x] += N;
}
void use(float *x) { early_kernel<3><<<1, 32>>>(x); }
// cuda_launch_early(b, early_kernel<3>
"""


@pytest.mark.slow
@pytest.mark.skipif(not TOOLKIT, reason="no CUDA=FOLDER names a toolkit, so nothing is compiled for a GPU")
@pytest.mark.skipif(not DISASSEMBLER, reason="no disassembler; make cuda-check installs it")
@pytest.mark.parametrize("waits", [True, False])
def test_a_planted_kernel_without_its_wait_is_found_in_what_nvcc_makes(tmp_path, waits):
    nvcc = Path(TOOLKIT) / "bin/nvcc"
    path = os.pathsep.join([str(DISASSEMBLER), str(nvcc.parent), os.environ.get("PATH", "")])
    (tmp_path / "early.cu").write_text(PLANTED)
    (tmp_path / "list").write_text("early_kernel\n")
    target = ["-gencode", "arch=compute_90,code=sm_90", "-gencode", "arch=compute_90,code=compute_90"]
    said = subprocess.run([nvcc, "-c", *target, "-Xptxas", "-v", *(["-DWAITS"] if waits else []), "-o", tmp_path / "early.o",
                           tmp_path / "early.cu"], check=True, text=True, stderr=subprocess.PIPE).stderr
    (tmp_path / "early.ptxas").write_text(said)
    done = subprocess.run([ROOT / "tests/cuda_resources", "cuobjdump", tmp_path / "list", tmp_path, tmp_path / "early.o"],
                          text=True, capture_output=True, env={**os.environ, "PATH": path})
    assert done.returncode == (0 if waits else 1), done.stderr
    for where in ("machine code for sm_90", "PTX for sm_90"):
        assert waits == (f"has no wait in the {where}" not in done.stderr)
