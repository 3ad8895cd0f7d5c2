#!/bin/bash
# Stream a completion as server-sent events.   usage: stream.sh MODEL PROMPT [TOKENS]
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ $# -ge 2 ] || { echo "usage: stream.sh MODEL PROMPT [TOKENS]" >&2; exit 2; }
stream /v1/completions -H 'Content-Type: application/json' -d '{
	"model": '"$(quote "$1")"', "prompt": '"$(quote "$2")"', "max_tokens": '"${3:-40}"', "temperature": 0.8,
	"stream": true, "stream_options": {"include_usage": true}
}'
