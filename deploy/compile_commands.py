"""compile_commands.json from the commands that make prints, which are read from standard input."""

import json
import os
import shlex
import sys

entries = []
for line in sys.stdin:
    if " -c -o " in line:
        words = shlex.split(line)
        entries.append({"directory": os.getcwd(), "file": words[-1], "output": words[words.index("-o") + 1], "arguments": words})
json.dump(entries, sys.stdout, indent=1)
