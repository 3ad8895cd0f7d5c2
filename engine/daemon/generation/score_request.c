#include "engine/daemon/generation/score_request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/generation/score_call.h"
#include "engine/daemon/keys/keys.h"
#include "engine/daemon/requests/background.h"
#include "engine/daemon/generation/generation.h"
#include "engine/explain/explain.h"
#include "engine/text/sequence.h"

/* One request in progress. */
typedef struct score_request_run {
	score_request public;
	stream *stream;
	uv_work_t work;
	score_call task;
	status result;
	error error;
} score_request_run;

static void score_request_run_free(void *context)
{
	score_request_run *r = context;
	score_request *x = &r->public;
	for (int64_t i = 0; x->sequences && i < x->n; i++) {
		free(x->sequences[i].ids);
		free((int32_t *)(uintptr_t)x->sequences[i].rows);
		free(x->sequences[i].log);
	}
	for (int64_t i = 0; x->places && i < x->n; i++)
		free(x->places[i]);
	free(x->sequences);
	free(x->places);
	free(x->truncated);
	free(x->numbers);
	catalog_release(x->model);
	free(r);
}

static void score_request_refuse(score_request_run *r, status result)
{
	error_set(&r->error, result, NULL, "%s", status_text(result));
	keys_count_tokens(r->stream, 0);
	r->stream->watch = NULL;
	stream_error(r->stream, &r->error, NULL);
	score_request_run_free(r);
}

/* --- the answer -------------------------------------------------------------------------- */

json_t *score_request_usage(const score_request *x)
{
	json_int_t tokens = 0;
	for (int64_t i = 0; i < x->n; i++)
		tokens += x->sequences[i].count;
	return json_pack("{s:I, s:I}", "prompt_tokens", tokens, "total_tokens", tokens);
}

/* Pool thread. */
static json_t *answer_object(const score_request *x, error *err)
{
	for (int64_t i = 0; i < x->rows * x->width; i++)
		if (!isfinite(x->numbers[i])) {
			error_set(err, STATUS_INVALID, "model", "the model gives numbers that are not finite");
			return NULL;
		}
	return x->kind->answer(x, err);
}

/* Numbers and logs are freed here too, because unmapping their pages takes time. */
static json_t *make_answer(void *context, error *err)
{
	score_request *x = &((score_request_run *)context)->public;
	json_t *object = answer_object(x, err);
	free(x->numbers);
	x->numbers = NULL;
	for (int64_t i = 0; i < x->n; i++) {
		free(x->sequences[i].log);
		x->sequences[i].log = NULL;
	}
	return object;
}

static void finished(score_call *t)
{
	score_request_run *r = TASK_OWNER(t, score_request_run, task);
	if (t->result != STATUS_OK) {
		r->error = t->error;
		score_request_refuse(r, t->result);
		return;
	}
	background_answer(r->stream, &(background_work){make_answer, score_request_run_free, r});
}

static void submit(score_request_run *r)
{
	const score_request *x = &r->public;
	r->task = (score_call){.stream = r->stream,
	                       .fleet = generation_room_of(r->stream)->fleet,
	                       .device = FLEET_ANY,
	                       .model = x->model,
	                       .request = {.sequences = x->sequences,
	                                   .n_sequences = x->n,
	                                   .embedding = x->embedding,
	                                   .width = x->width,
	                                   .out = x->numbers},
	                       .finished = finished};
	score_call_submit(&r->task);
}

/* --- the pool ------------------------------------------------------------------------------ */

static status copy_ids(score_sequence *out, const int32_t *ids, int64_t n)
{
	out->ids = memory_new((size_t)n, sizeof *out->ids);
	if (!out->ids)
		return STATUS_NOMEM;
	memcpy(out->ids, ids, (size_t)n * sizeof *ids);
	out->count = n;
	return STATUS_OK;
}

/* One token more than the limit shows whether the text must be cut. */
status score_request_encode_sequence(const score_request *x, const json_t *text, const json_t *second, int64_t length,
                                     score_sequence *out, bool *truncated, error *err)
{
	const char *pair = json_string_value(second);
	int64_t count = 0;
	int32_t *ids = memory_new((size_t)length + 1, sizeof *ids);
	status s = ids ? STATUS_OK : STATUS_NOMEM;
	*truncated = false;
	for (int64_t most = length + 1; s == STATUS_OK && most >= length; most--) {
		s = sequence_encode(x->model->tokenizer, json_string_value(text), json_string_length(text), pair,
		                    json_string_length(second), most, ids, &count, err);
		if (count <= length)
			break;
		*truncated = true;
	}
	if (s == STATUS_OK)
		s = copy_ids(out, ids, count);
	free(ids);
	return s;
}

/* Allocate the logs; their pages are mapped when written. */
static status make_logs(score_request *x, error *err)
{
	int64_t floats = explain_token_floats(x->model->architecture, x->model->parsed), tokens = 0;
	int64_t most = EXPLAIN_MAX_BYTES / (int64_t)sizeof(float) / floats;
	most = most < SCORE_REQUEST_EXPLAINED_TOKENS ? most : SCORE_REQUEST_EXPLAINED_TOKENS;
	for (int64_t i = 0; i < x->n; i++)
		tokens += x->sequences[i].count;
	if (tokens > most)
		return error_set(err, STATUS_TOO_LARGE, "input",
		                 "%lld tokens; the inputs of an answer that explains have at most %lld of this model",
		                 (long long)tokens, (long long)most);
	for (int64_t i = 0; i < x->n; i++) {
		score_sequence *q = &x->sequences[i];
		q->log = memory_new((size_t)q->count, (size_t)floats * sizeof *q->log);
		if (!q->log)
			return STATUS_NOMEM;
	}
	return STATUS_OK;
}

static status score_request_encode(score_request *x, error *err)
{
	const json_t *input = json_object_get(x->params, "input");
	for (int64_t i = 0; i < x->n; i++) {
		status s = x->kind->encode(x, i, x->list ? json_array_get(input, (size_t)i) : input, err);
		if (s != STATUS_OK && x->list && strcmp(err->param, "input") == 0)
			snprintf(err->param, sizeof err->param, "input[%lld]", (long long)i);
		TRY(s);
		x->rows += x->sequences[i].n_rows ? x->sequences[i].n_rows : 1;
	}
	if (x->rows > SCORE_REQUEST_NUMBERS / x->width)
		return error_set(err, STATUS_TOO_LARGE, "input",
		                 "%lld rows of %lld numbers are too many for one answer", (long long)x->rows,
		                 (long long)x->width);
	x->numbers = memory_new((size_t)(x->rows * x->width), sizeof *x->numbers);
	if (!x->numbers)
		return STATUS_NOMEM;
	return x->explains ? make_logs(x, err) : STATUS_OK;
}

static void pool_encode(uv_work_t *work)
{
	score_request_run *r = work->data;
	reserve_forget();
	r->result = score_request_encode(&r->public, &r->error);
}

static void encoded(uv_work_t *work, int cancelled)
{
	score_request_run *r = work->data;
	(void)cancelled; /* cannot be cancelled */
	int64_t tokens = 0;
	for (int64_t i = 0; r->result == STATUS_OK && i < r->public.n; i++)
		tokens += r->public.sequences[i].count;
	if (r->result == STATUS_OK)
		r->result = keys_reserve_tokens(r->stream, "input", tokens, &r->error);
	if (r->result == STATUS_OK)
		submit(r);
	else
		score_request_refuse(r, r->result);
}

/* --- the request --------------------------------------------------------------------------- */

static status score_request_begin(score_request_run *r, error *err)
{
	score_request *x = &r->public;
	const json_t *input = json_object_get(x->params, "input"), *first = json_array_get(input, 0);
	TRY(catalog_open(generation_room_of(r->stream)->catalog, json_string_value(json_object_get(x->params, "model")),
	                 &x->model, err));
	x->list = json_is_array(input) && !json_is_integer(first);
	x->n = x->list ? (int64_t)json_array_size(input) : 1;
	TRY(x->kind->begin(x, err));
	x->sequences = memory_new((size_t)x->n, sizeof *x->sequences);
	x->truncated = memory_new((size_t)x->n, sizeof *x->truncated);
	x->places = memory_new((size_t)x->n, sizeof *x->places);
	return x->sequences && x->truncated && x->places ? STATUS_OK : STATUS_NOMEM;
}

void score_request_create(stream *s, const score_request_kind *kind)
{
	score_request_run *r = memory_new(1, sizeof *r);
	if (!r) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	r->stream = s;
	r->work.data = r;
	r->public.kind = kind;
	r->public.params = s->params;
	status result = score_request_begin(r, &r->error);
	if (result == STATUS_OK && uv_queue_work(s->net->loop, &r->work, pool_encode, encoded) == 0)
		return;
	score_request_refuse(r, result == STATUS_OK ? STATUS_NOMEM : result);
}
