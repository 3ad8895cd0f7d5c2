#!/bin/bash
# A session keeps the model's state: generate, let it read, generate again, fork it, carry its state away and back.
#   usage: session.sh MODEL PROMPT
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ $# = 2 ] || { echo "usage: session.sh MODEL PROMPT" >&2; exit 2; }
state=$(mktemp)
trap 'rm -f "$state"' EXIT

session=$(post /v1/sessions '{"model": '"$(quote "$1")"', "prompt": '"$(quote "$2")"', "position_policy": "wrap"}' | id_of)
echo "session $session"
post "/v1/sessions/$session/generate" '{"max_tokens": 20, "seed": 1}'
post "/v1/sessions/$session/append" '{"text": " And then"}'
post "/v1/sessions/$session/generate" '{"max_tokens": 20, "seed": 1}'

fork=$(ask "/v1/sessions/$session/fork" -X POST | id_of)
echo "fork $fork"
ask "/v1/sessions/$session/state" -o "$state"
echo "its state: $(wc -c <"$state") bytes, however much it has read"
restored=$(ask "/v1/sessions?model=$1" -H 'Content-Type: application/octet-stream' --data-binary "@$state" | id_of)
echo "restored $restored"
for s in "$session" "$fork" "$restored"; do
	ask "/v1/sessions/$s" -X DELETE
done
