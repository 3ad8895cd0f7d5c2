#!/bin/bash
# Run the whole service once, end to end. Start it on free ports with its own data folder, train a small model over HTTP for
# about a minute, and stream a continuation. Then show the contributions of tokens to an uncertain prediction, and stop.
#   usage: demo.sh BIN [TEXT]     BIN: folder of the programs; TEXT: any UTF-8 text file (default: this repository's sources)
set -euo pipefail
bin=$(cd "$1" && pwd)
text=${2:-}
seconds=${DEMO_SECONDS:-60}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/additive-demo.XXXXXX")
html=$PWD/explanation.html
[ -d "$root/build" ] && html=$root/build/explanation.html

service=
cleanup() {
	if [ -n "$service" ]; then
		kill -TERM "$service" 2>/dev/null || true
		wait "$service" 2>/dev/null || true
	fi
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
additive() { "$bin/additive" "$@"; }

if [ -z "$text" ]; then
	text=$work/repository.txt
	(cd "$root" && find . \( -name build -o -name .git \) -prune -o -type f \( -name '*.md' -o -name '*.h' -o -name '*.c' \) -print |
		LC_ALL=C sort | xargs cat) >"$text"
fi

say "1. Start the service"
touch "$work/serve.out" # the shell that starts the service may be slow to make it
"$bin/additive" serve --listen 127.0.0.1:0 --data "$work/data" >>"$work/serve.out" 2>"$work/serve.log" &
service=$!
for _ in $(seq 600); do
	grep -q '^ready ' "$work/serve.out" && break
	kill -0 "$service" 2>/dev/null || break
	sleep .1
done
ADDITIVE_URL=$(sed -n 's/^ready //p' "$work/serve.out" | head -1)
[ -n "$ADDITIVE_URL" ] || {
	echo "the service did not become ready; its log:" >&2
	cat "$work/serve.log" >&2
	exit 1
}
export ADDITIVE_URL
echo "listening on $ADDITIVE_URL"

# At most 64 KiB are held back, since the demo validates five times.
held=$(wc -c <"$text" | awk '{ f = 65536 / $1; print (f < 0.1 ? f : 0.1) }')
shape="--hidden 128 --layers 6 --sequence 256 --batch 8 --dropout 0.05 --validation-fraction $held"
field() { sed -n 's/.*"'"$1"'": *"\{0,1\}\([^",}]*\).*/\1/p' | head -1; }

say "2. Measure this machine with a few steps, then train for about $seconds seconds"
# shellcheck disable=SC2086
additive train "$text" $shape --steps 20 --eval-every 20 --name warm-up --json >"$work/warm-up.json"
speed=$(additive jobs list --json | tr ',' '\n' | field tokens_per_second)
steps=$(awk -v s="$seconds" -v r="${speed:-0}" 'BEGIN { n = int(s * r / (256 * 8)); print (n < 40 ? 40 : (n > 20000 ? 20000 : n)) }')
printf '%.0f tokens/s here: %d steps of %d tokens\n' "${speed:-0}" "$steps" 2048
# shellcheck disable=SC2086
additive train "$text" $shape --steps "$steps" --eval-every $((steps / 4)) --name demo

model=$(additive models list --json | tr '{' '\n' | grep -v warm-up | field id)
prompt=$(tail -c 2000 "$text" | head -c 1000 | iconv -c -f UTF-8 -t UTF-8 | tail -n +2 | tail -c 120)
say "3. Stream a continuation from $model"
additive generate --model "$model" --max-tokens 200 --temperature 0.7 --seed 1 "$prompt"
echo

# A nearly certain prediction has contributions near zero. Among the last 60 characters of the
# prompt, choose the end at which the likeliest token's probability is nearest to a half. Ask why it is ahead of the next one.
python3 - "$ADDITIVE_URL" "$model" "$prompt" >"$work/question" <<'CHOOSE'
import json, math, sys, urllib.request

url, model, prompt = sys.argv[1:]
prompts = [prompt[:end] for end in range(max(1, len(prompt) - 60), len(prompt) + 1)]
body = {"model": model, "prompt": prompts, "max_tokens": 1, "temperature": 0, "logprobs": 2}
request = urllib.request.Request(url.rstrip("/") + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
choices = json.load(urllib.request.urlopen(request))["choices"]


def pair(choice):
    """The two likeliest tokens, each with its probability."""
    top = choice["logprobs"]["top_logprobs"][0]
    return sorted(((math.exp(p), token) for token, p in top.items()), reverse=True)[:2]


def fits(choice):
    return len(pair(choice)) == 2 and all(token.isprintable() and not token.startswith("bytes:") for _, token in pair(choice))


found = [c for c in choices if fits(c)] or sys.exit("no prediction of the prompt has a rival that can be printed")
best = min(found, key=lambda c: abs(pair(c)[0][0] - 0.5))
(likely, token), (less, rival) = pair(best)
sys.stdout.write("\0".join([prompts[best["index"]], token, rival, f"{likely:.2f}", f"{less:.2f}"]) + "\0")
CHOOSE
mapfile -d '' -t question <"$work/question"
say "4. Why '${question[1]}' (probability ${question[3]}) and not '${question[2]}' (${question[4]})? What each token contributed, in logits"
CLICOLOR_FORCE=1 additive explain --model "$model" --target "${question[1]}" --against "${question[2]}" --html "$html" "${question[0]}"
echo "the whole explanation, with the weights of attention in every layer, head and round: $html"

say "5. Stop"
kill -TERM "$service"
wait "$service"
service=
echo "stopped cleanly"
cat <<TRY

Try next:
  $bin/additive serve --listen 127.0.0.1:8080 --data ./data     # your own service, in one terminal
  $bin/additive train YOUR.txt --steps 1000                     # and in another: train,
  $bin/additive generate --model MODEL "Once upon a time"       # generate,
  curl -N http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \\
       -d '{"model":"MODEL","prompt":"Once","stream":true}'     # or use any OpenAI client
TRY
