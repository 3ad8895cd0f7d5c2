"""Reading a file of numbers, none of which is taken on trust."""

import numpy


class Refused(Exception):
    """Names what in the file is wrong."""


def need(good, name, problem):
    if not good:
        raise Refused(f"{name}: {problem}")


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def array(self, dtype, count, name):
        size = numpy.dtype(dtype).itemsize * count
        need(size <= len(self.data) - self.at, name, f"the file ends at byte {len(self.data)}, {self.at + size} are needed")
        self.at += size
        return numpy.frombuffer(self.data, dtype, count, self.at - size)

    def integer(self, name, least, most, hint="; is the file of this profile?"):
        x = int(self.array("<i8", 1, name)[0])
        need(least <= x <= most, name, f"{x}, not from {least} to {most}{hint}")
        return x

    def end(self):
        need(self.at == len(self.data), "file", f"{len(self.data) - self.at} bytes are left over")
