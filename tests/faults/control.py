"""The control page of faults.so from the test's side, and the stacks that it writes. The layout is faults.h's."""

import errno
import mmap
import os
import pathlib
import re
import struct
import subprocess
import time

BUILD = pathlib.Path(os.environ.get("ADDITIVE_BIN", pathlib.Path(__file__).parents[2] / "build" / "bin")).resolve().parent
LIBRARY = pathlib.Path(os.environ.get("ADDITIVE_FAULTS", BUILD / "faults" / "faults.so"))
CLASSES = ["allocation", "open", "write", "sync", "truncate", "rename", "folder", "unlink", "link", "read", "map",
           "thread"]
MAGIC = 0x31544641
HEAD = struct.Struct("<IIIIq232s")
RULE = struct.Struct("<qqqqii")
FULL, TRACE = 4, 8
REFUSED = 16
CALLS, FIRST, COUNT, FAILED, ERROR, ONE_IN = 0, 8, 16, 24, 32, 36
FOR_EVER = 1 << 60
SHORT = 0  # as errno of a write: it takes half of its bytes


class Faults:
    """One control page. Give `environment` to the processes that shall fail."""

    def __init__(self, folder, below=None, program="additived", trace=True):
        assert LIBRARY.exists(), f"{LIBRARY} is not built: make {LIBRARY}"
        folder = pathlib.Path(folder)
        self.page, self.trace_file = folder / "faults.page", folder / "faults.trace"
        below = os.path.realpath(below).encode() if below else b""
        self.page.write_bytes(HEAD.pack(MAGIC, 0, int(trace), 0, 0, below) + bytes(RULE.size * len(CLASSES)))
        self.trace_file.touch()
        with open(self.page, "r+b") as f:
            self.memory = mmap.mmap(f.fileno(), 0)
        self.environment = {"FAULTS_CONTROL": str(self.page), "FAULTS_PROGRAM": program,
                            "FAULTS_TRACE": str(self.trace_file), "LD_PRELOAD": str(LIBRARY)}
        options = os.environ.get("ASAN_OPTIONS", "")
        self.environment["ASAN_OPTIONS"] = f"{options}:verify_asan_link_order=0:allocator_may_return_null=1"

    def _put(self, kind, field, value):
        at = HEAD.size + RULE.size * CLASSES.index(kind) + field
        struct.pack_into("<i" if field in (ERROR, ONE_IN) else "<q", self.memory, at, value)

    def _get(self, kind, field):
        return struct.unpack_from("<q", self.memory, HEAD.size + RULE.size * CLASSES.index(kind) + field)[0]

    def arm(self, kind, first, count=1, error=None):
        """Let the call number `first` from now on fail, and the `count` - 1 after it."""
        self.disarm(kind)
        error = error if error is not None else errno.ENOMEM if kind in ("allocation", "map") else errno.EIO
        for field, value in ((CALLS, 0), (FAILED, 0), (COUNT, count), (ERROR, error), (FIRST, first)):
            self._put(kind, field, value)

    def sprinkle(self, kind, one_in, error=None):
        """Let one call in `one_in` fail."""
        self._put(kind, ERROR, error if error is not None else errno.ENOMEM if kind == "allocation" else errno.EIO)
        self._put(kind, ONE_IN, one_in)

    def disarm(self, kind):
        self._put(kind, FIRST, 0)
        self._put(kind, ONE_IN, 0)

    def count(self, kind):
        """From here on, count calls of this class."""
        self.disarm(kind)
        self._put(kind, CALLS, 0)
        self._put(kind, FAILED, 0)

    def calls(self, kind):
        return self._get(kind, CALLS)

    def failed(self, kind):
        return self._get(kind, FAILED)

    @property
    def full(self):
        return struct.unpack_from("<I", self.memory, FULL)[0] != 0

    @full.setter
    def full(self, value):
        struct.pack_into("<I", self.memory, FULL, int(value))

    @property
    def refused(self):
        """Calls that failed because the disk was full."""
        return struct.unpack_from("<q", self.memory, REFUSED)[0]

    def trace(self, on):
        struct.pack_into("<I", self.memory, TRACE, int(on))

    def first_stack(self):
        """The stack of the first failed call since forget_stacks, unresolved: ["object+0x12", …]."""
        lines = self.trace_file.read_bytes().decode(errors="replace").splitlines()
        return lines[0].split()[2:] if lines else []

    def forget_stacks(self):
        os.truncate(self.trace_file, 0)


_symbols = {}


def resolve(stack, frames=9):
    """["function file:line", …] of the frames from the failed call outwards, the library's own left out."""
    wanted = [f for f in stack if "faults.so+" not in f][:4 * frames]
    by_object = {}
    for f in wanted:
        if f not in _symbols:
            by_object.setdefault(f.rsplit("+", 1)[0], []).append(f)
    for path, group in by_object.items():
        # A return address is one past its call.
        addresses = [hex(int(f.rsplit("+", 1)[1], 16) - 1) for f in group]
        out = subprocess.run(["addr2line", "-Cfe", path, *addresses], capture_output=True, text=True).stdout.splitlines()
        for i, f in enumerate(group):
            name, place = (out[2 * i], out[2 * i + 1]) if len(out) > 2 * i + 1 else ("??", "??:0")
            place = re.sub(r" \(discriminator \d+\)", "", place)
            # Without lines a name is that of the nearest exported symbol: of no use.
            _symbols[f] = pathlib.Path(path).name.split(".so")[0] if place.startswith("??") else \
                f"{name} {place.rsplit('/', 1)[-1]}"
    names = [_symbols[f] for f in wanted if not _symbols[f].startswith("__interceptor_")]
    return [n for i, n in enumerate(names) if i == 0 or n != names[i - 1]][:frames]


def wait_until(condition, seconds=30, step=0.01):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(step)
    raise AssertionError("it did not happen in time")
