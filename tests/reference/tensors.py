"""Reading and writing safetensors files with numpy alone."""

import json
import math
import struct

import numpy

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1", "BOOL": "?"}


def read(path):
    """({name: array}, {metadata key: text})"""
    with open(path, "rb") as file:
        blob = file.read()
    (size,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, entry in header.items():
        begin = 8 + size + entry["data_offsets"][0]
        array = numpy.frombuffer(blob, TYPES[entry["dtype"]], math.prod(entry["shape"]), begin)
        arrays[name] = array.reshape(entry["shape"])
    return arrays, metadata


def write(path, arrays, metadata=None):
    """Tensors are written in the order of their names."""
    names = {numpy.dtype(code): name for name, code in TYPES.items()}
    header, parts, end = {"__metadata__": metadata} if metadata else {}, [], 0
    for name in sorted(arrays):
        array = numpy.asarray(arrays[name])
        parts.append(array.tobytes())  # C order
        header[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(b"".join([struct.pack("<Q", len(text)), text, *parts]))
