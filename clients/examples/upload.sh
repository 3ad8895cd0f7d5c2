#!/bin/bash
# Upload a training text; prints the file's id.   usage: upload.sh FILE
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ $# = 1 ] || { echo "usage: upload.sh FILE" >&2; exit 2; }
ask /v1/files -F purpose=fine-tune -F "file=@$1" | id_of
