#!/bin/bash
# The contribution of each token to the prediction after a text, and the weights of attention, as JSON, and with a file name
# also as a page.   usage: explain.sh MODEL TEXT [FILE.html]
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ $# -ge 2 ] || { echo "usage: explain.sh MODEL TEXT [FILE.html]" >&2; exit 2; }
request='{"model": '"$(quote "$1")"', "input": '"$(quote "$2")"', "aggregate": "mean"}'
post /v1/explain "$request"
if [ $# -ge 3 ]; then
	ask /v1/explain -H 'Content-Type: application/json' -H 'Accept: text/html' -d "$request" >"$3"
fi
