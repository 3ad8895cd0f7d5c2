"""Requirements of a kit's programs, read when the kit is made, and a check that a machine meets them.

Three things come from the machine and not from the kit: the C library, the NVIDIA driver, the CUDA toolkit's libraries.
A program that needs a newer version of one of them fails in each test with a message of the dynamic linker. The check
reports that once, before any test runs.
"""

import ctypes
import json
import os
import pathlib
import platform
import re
import subprocess

FILE = "versions.json"
OF_CUDA = ("libcuda", "libcublas", "libnvidia")  # libcudart too; not libcurl


def of(text):
    """'2.38' -> (2, 38)"""
    return tuple(int(part) for part in text.split("."))


def shown(version):
    return ".".join(map(str, version))


def of_cuda(number):
    """CUDA counts 1000 x major + 10 x minor."""
    return number // 1000, number % 1000 // 10


# --- what is needed ---------------------------------------------------------------------------------


def readelf(option, file):
    """Return readelf's output; empty for a file that is not a program."""
    return subprocess.run(["readelf", "-W", option, file], capture_output=True, text=True).stdout


def glibc_needed(file):
    """The newest version of the C library's symbols that a program or library uses; () of none."""
    return max((of(v) for v in re.findall(r"Name: GLIBC_([\d.]+)", readelf("-V", file))), default=())


def libraries_needed(file):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", file))


def toolkit_version(toolkit):
    """That of the CUDA runtime which nvcc links; None where there is no toolkit."""
    header = pathlib.Path(toolkit) / "include" / "cuda_runtime_api.h"
    found = re.search(r"#define CUDART_VERSION\s+(\d+)", header.read_text()) if header.exists() else None
    return found and shown(of_cuda(int(found[1])))


def needs(files, toolkit):
    """Return the joint requirements of these programs and libraries, in the form of versions.json."""
    newest = max(files, key=glibc_needed)
    return {"machine": platform.machine(), "glibc": shown(glibc_needed(newest)), "glibc_by": newest.name,
            "cuda": toolkit_version(toolkit),
            "libraries": sorted({name for file in files for name in libraries_needed(file) if name.startswith(OF_CUDA)})}


# --- what there is ------------------------------------------------------------------------------------


def glibc_here():
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    return of(version) if name == "glibc" and re.fullmatch(r"\d+(\.\d+)+", version) else None


def library_here(name, folders):
    """The path by which a library loads, or the reason why it does not: (path, None) or (None, reason). The folders are
    searched first."""
    reason = "not found"
    for place in [*(pathlib.Path(folder) / name for folder in folders if folder), pathlib.Path(name)]:
        if place.parent.parts and not place.exists():
            continue
        try:
            ctypes.CDLL(str(place))
            return str(place), None
        except OSError as error:
            reason = str(error)
    return None, reason


def driver_here(folders):
    """The CUDA version that the driver serves; None where there is no driver."""
    path, version = library_here("libcuda.so.1", folders)[0], ctypes.c_int()
    if not path or ctypes.CDLL(path).cuDriverGetVersion(ctypes.byref(version)) or not version.value:
        return None
    return of_cuda(version.value)


# --- does it fit --------------------------------------------------------------------------------------


def misfits(needed, folders, emulated=False):
    """Return (reasons why the kit cannot run here, notes), both lists of sentences. folders: where libraries are looked
    for."""
    wrong, notes = [], []
    here, glibc = platform.machine(), glibc_here()
    if needed["machine"] != here:
        wrong.append(f"the kit's programs are for {needed['machine']}, this machine is {here}")
    if glibc is None:
        wrong.append("this machine's C library is not glibc, which the kit's programs are linked with")
    elif needed["glibc"] and glibc < of(needed["glibc"]):
        wrong.append(f"the kit needs glibc {needed['glibc']} ({needed['glibc_by']}), this machine has {shown(glibc)}: "
                     "make the kit on a system no newer than this one")
    else:
        notes.append(f"glibc {shown(glibc)}, {needed['glibc'] or 'none'} needed")
    if emulated:
        return wrong, notes
    driver, cuda = driver_here(folders), needed["cuda"] and of(needed["cuda"])
    if driver is None:
        wrong.append("libcuda.so.1 does not load: there is no NVIDIA driver here")
    elif cuda and driver[0] < cuda[0]:
        wrong.append(f"the driver serves CUDA {shown(driver)}, the kit was built with CUDA {needed['cuda']}: a driver of {cuda[0]}.x is needed")
    elif cuda:
        notes.append(f"driver of CUDA {shown(driver)}, kit of CUDA {needed['cuda']}"
                     + ("; PTX of the kit will not compile, machine code runs" if driver < cuda else ""))
    for name in needed["libraries"]:
        path, reason = library_here(name, folders)
        if path:
            notes.append(f"{name}: {path}")
        else:
            wrong.append(f"{name} of the CUDA toolkit does not load: {reason}")
    return wrong, notes


def check(kit, folders, emulated=False):
    """misfits of a kit; one without versions.json is judged by its programs alone, later."""
    file = kit / FILE
    if not file.exists():
        return [], [f"the kit has no {FILE}: versions are not compared"]
    return misfits(json.loads(file.read_text()), folders, emulated)
