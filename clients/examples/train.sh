#!/bin/bash
# Train a small model from scratch on an uploaded file and watch it; prints the model's id.   usage: train.sh FILE-ID [STEPS]
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ $# -ge 1 ] || { echo "usage: train.sh FILE-ID [STEPS]" >&2; exit 2; }
job=$(post /v1/fine_tuning/jobs '{
	"training_file": '"$(quote "$1")"', "suffix": "example",
	"additive": {
		"size": {"hidden": 128, "layers": 4},
		"sequence_length": 256, "batch_size": 8, "max_steps": '"${2:-500}"', "learning_rate": 0.002, "eval_every": 50
	}
}' | id_of)
# Every event, until the job has ended. To resume after a broken connection, add: -H "Last-Event-ID: …"
stream "/v1/fine_tuning/jobs/$job/events?stream=true" | sed -un 's/.*"message": *"\([^"]*\)".*/\1/p' >&2
ask "/v1/fine_tuning/jobs/$job" | field fine_tuned_model
