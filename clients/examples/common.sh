# Sourced by the examples: where the service is, how to ask it, and just enough JSON for curl.
# shellcheck shell=bash
url=${ADDITIVE_URL:-http://127.0.0.1:8080}
key=()
[ -n "${ADDITIVE_API_KEY:-}" ] && key=(-H "Authorization: Bearer $ADDITIVE_API_KEY")

# ask PATH [CURL OPTIONS]: the answer on stdout; an error of the service on stderr, and the end.
ask() {
	local path=$1 answer
	shift
	answer=$(curl -sS --fail-with-body "${key[@]}" "$@" "$url$path") || {
		echo "$answer" >&2
		exit 1
	}
	[ -z "$answer" ] || printf '%s\n' "$answer"
}

# post PATH JSON
post() { ask "$1" -H 'Content-Type: application/json' -d "$2"; }

# stream PATH [CURL OPTIONS]: server-sent events, as they come.
stream() {
	local path=$1
	shift
	curl -sSN --fail-with-body "${key[@]}" -H 'Accept: text/event-stream' "$@" "$url$path"
}

# field NAME: the first string of that name in the JSON on stdin.
field() { sed -n 's/.*"'"$1"'": *"\([^"]*\)".*/\1/p' | head -n 1; }
# The first member "id" is the object's own.
id_of() { sed -n 's/^{"id": *"\([^"]*\)".*/\1/p'; }

# quote TEXT: as a JSON string.
quote() {
	local text=$1
	text=${text//\\/\\\\}
	text=${text//\"/\\\"}
	text=${text//$'\n'/\\n}
	text=${text//$'\r'/\\r}
	text=${text//$'\t'/\\t}
	printf '"%s"' "$text"
}
