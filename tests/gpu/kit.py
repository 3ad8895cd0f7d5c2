#!/usr/bin/env python3
"""make gpu-kit: everything that tests and measurements on a GPU need, in one folder that runs on a machine without our libraries.

    kit.py BUILD KIT

KIT/bin has the programs and the plug-in, KIT/unit the tests on a device, KIT/bench the measuring programs. KIT/lib has
their shared libraries (except the C library and CUDA's), KIT/python pytest, and KIT/versions.json the requirements of
all of these (machine.py). KIT.tar.xz is an archive of the folder. Run the kit from the repository's root.
"""

import importlib.util
import json
import lzma
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import machine

# The C library belongs to the machine, CUDA to its toolkit.
SYSTEM = ("ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libresolv", *machine.OF_CUDA)
PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging")


def libraries(program):
    for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        if path.startswith("/") and not name.startswith(SYSTEM):
            yield pathlib.Path(path.split()[0])


def copy_programs(build, kit):
    programs = [*build.glob("bin/*"), *build.glob("unit/cuda/*"), *build.glob("bench/bench_*"), *build.glob("bench/train_curve")]
    for program in programs:
        folder = kit / program.relative_to(build).parts[0]
        folder.mkdir(parents=True, exist_ok=True)
        copy = folder / program.name
        shutil.copy2(program, copy)
        subprocess.run(["strip", "--strip-debug", copy], check=True)
    (kit / "lib").mkdir(exist_ok=True)
    for library in {library for program in programs for library in libraries(program)}:
        shutil.copy2(library, kit / "lib")
    return len(programs)


def copy_pytest(kit):
    for name in PYTEST:
        found = importlib.util.find_spec(name)
        source = pathlib.Path(found.submodule_search_locations[0])
        shutil.copytree(source, kit / "python" / name, ignore=shutil.ignore_patterns("__pycache__"))


def write_versions(kit, toolkit=os.environ.get("CUDA_HOME", "/usr/local/cuda")):
    files = [file for folder in ("bin", "unit", "bench", "lib") for file in sorted((kit / folder).glob("*"))]
    (kit / machine.FILE).write_text(json.dumps(machine.needs(files, toolkit), indent=1) + "\n")


def main():
    build, kit = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    shutil.rmtree(kit, ignore_errors=True)
    count = copy_programs(build, kit)
    copy_pytest(kit)
    write_versions(kit)
    pack(kit)
    print(f"{kit}: {count} programs, {packed(kit)}: {packed(kit).stat().st_size / 2**20:.0f} MiB")


def pack(kit):
    """The programs link the same objects, so a dictionary of the size of the kit compresses them to a third."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 256 << 20}]
    with lzma.open(packed(kit), "w", filters=filters) as file, tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(kit, kit.name)


def packed(kit):
    return kit.with_name(kit.name + ".tar.xz")


def unpack(kit):
    """Where only the archive has been carried."""
    if not kit.exists() and packed(kit).exists():
        subprocess.run(["tar", "-xJf", packed(kit), "-C", kit.parent], check=True)


if __name__ == "__main__":
    main()
