"""Golden sets beyond the repository's own: files of the folder that ADDITIVE_GOLDEN names. Without it there are none.

In the set g1 the gradients are those of its first two padded rows. The PyTorch model reproduces them to 4e-15 with
padded.input_ids[:2] and padded.labels[:2], and none of them with input_ids. check_golden.py accepts either batch. The
repository's sets have "gradients": "input_ids" in their metadata, which `additive-eval --golden` reads."""

import os
import pathlib


def files(pattern):
    """Paths in the folder that fit a glob pattern, in order."""
    folder = os.environ.get("ADDITIVE_GOLDEN")
    if not folder:
        return []
    if not pathlib.Path(folder).is_dir():
        raise SystemExit(f"ADDITIVE_GOLDEN={folder}: there is no such folder")
    return sorted(pathlib.Path(folder).glob(pattern))


def named(names):
    """The sets whose files all exist, from a table of their paths without the suffix."""
    found = {name: [path for part in parts for path in files(f"{part}.safetensors")] for name, parts in names.items()}
    return {name: paths for name, paths in found.items() if paths and len(paths) == len(names[name])}
