/* model.c - models, and their texts as tokens. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/memory.h"
#include "engine/library/handles.h"

enum { SESSIONS = 16, MOST_SESSIONS = 1 << 20, BATCH = 2 /* a device pads a step to a power of two */ };

/* --- opening ------------------------------------------------------------------------- */

static status read_weight_type(const char *name, dtype *out, error *err)
{
	static const struct {
		const char *name;
		dtype type;
	} types[] = {{"fp32", DTYPE_PANEL_F32}, {"bf16", DTYPE_PANEL_BF16}, {"int8", DTYPE_PANEL_INT8}};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (strcmp(types[i].name, name) == 0) {
			*out = types[i].type;
			return STATUS_OK;
		}
	return error_set(err, STATUS_INVALID, "weights", "is \"%.32s\", must be fp32, bf16 or int8", name);
}

static status load_model(additive_model *m, const char *folder, dtype weights, int sessions, error *err)
{
	const scheduler_limits limits = {
	    .max_models = 1, .max_sessions = sessions, .max_generations = BATCH, .max_batch = BATCH};
	TRY(scheduler_new(&m->scheduler, m->device->backend, &limits));
	return scheduler_model(m->scheduler, "model", folder, weights, &m->served, err);
}

static status model_from_folder(additive_model **out, additive_device *device, const char *folder, const char *weights,
                                int sessions, error *err)
{
	dtype type = DTYPE_PANEL_F32;
	TRY(read_weight_type(weights, &type, err));
	if (sessions < 0 || sessions > MOST_SESSIONS)
		return error_set(err, STATUS_INVALID, "sessions", "%d is not between 0 and %d", sessions,
		                 MOST_SESSIONS);
	if (access(folder, R_OK | X_OK) != 0)
		return error_set(err, STATUS_NOT_FOUND, "folder", "there is no folder that can be read");
	additive_model *m = memory_new(1, sizeof *m);
	if (!m)
		return STATUS_NOMEM;
	m->device = device;
	status s = load_model(m, folder, type, sessions ? sessions : SESSIONS, err);
	if (s != STATUS_OK) {
		if (!err->param[0] && s != STATUS_NOMEM && s != STATUS_DEVICE)
			strcpy(err->param, "folder");
		scheduler_free(m->scheduler);
		free(m);
		return s;
	}
	device->models++;
	*out = m;
	return STATUS_OK;
}

additive_code additive_model_open(additive_model **out, additive_device *device, const char *folder,
                                  const char *weights, int sessions, additive_error *failure)
{
	error err = ERROR_INIT;
	*out = NULL;
	return handles_report(failure, model_from_folder(out, device, folder, weights, sessions, &err), &err);
}

additive_code additive_model_close(additive_model *m, additive_error *failure)
{
	error err = ERROR_INIT;
	if (!m)
		return ADDITIVE_OK;
	if (m->sessions > 0)
		return handles_report(
		    failure, error_set(&err, STATUS_CONFLICT, "model", "%d sessions are open", m->sessions), &err);
	scheduler_free(m->scheduler);
	m->device->models--;
	free(m);
	return ADDITIVE_OK;
}

void additive_model_facts(const additive_model *m, additive_facts *facts)
{
	const model *of = served_model_model(m->served);
	const model_dims *d = model_dimensions(of);
	*facts = (additive_facts){.architecture = model_architecture(of)->name,
	                          .vocabulary = d->inputs,
	                          .outputs = d->outputs,
	                          .positions = d->positions,
	                          .parameters = model_scalar_count(of),
	                          .layers = d->layers,
	                          .heads = d->heads,
	                          .state_bytes = model_state_floats(of) * (int64_t)sizeof(float),
	                          .sessions = d->form->stepwise && !d->form->source,
	                          .classifier = d->form->head == HEAD_CLASSES};
}

/* --- shared by all files ------------------------------------------------------------- */

status handles_run(additive_model *m, error *err)
{
	while (scheduler_runnable(m->scheduler))
		TRY(error_settle(err, scheduler_tick(m->scheduler)));
	return STATUS_OK;
}

status handles_check_tokens(const additive_model *m, const int32_t *tokens, size_t count, const char *field, error *err)
{
	const int64_t known = model_dimensions(served_model_model(m->served))->inputs;
	if (count == 0)
		return error_set(err, STATUS_INVALID, field, "has no tokens");
	if (count > INT32_MAX)
		return error_set(err, STATUS_TOO_LARGE, field, "has over %d tokens", INT32_MAX);
	for (size_t i = 0; i < count; i++)
		if (tokens[i] < 0 || tokens[i] >= known)
			return error_set(err, STATUS_INVALID, field,
			                 "%d at index %zu is not one of the vocabulary's %lld tokens", (int)tokens[i],
			                 i, (long long)known);
	return STATUS_OK;
}

status handles_refuse_source(const additive_model *m, error *err)
{
	return model_dimensions(served_model_model(m->served))->form->source
	           ? error_set(err, STATUS_UNSUPPORTED, "model", "this model reads a source beside its tokens")
	           : STATUS_OK;
}

/* --- text ---------------------------------------------------------------------------- */

additive_code additive_tokenize(const additive_model *m, const char *text, size_t bytes, int continues,
                                int32_t **tokens, size_t *count, additive_error *failure)
{
	error err = ERROR_INIT;
	token_list list = {0};
	*tokens = NULL;
	*count = 0;
	const model_dims *d = model_dimensions(served_model_model(m->served));
	const encode_options how = {.begin = !continues && d->form->begins, .threads = 1};
	status s = tokenizer_encode(served_model_tokenizer(m->served), text, bytes, &how, &list, &err);
	if (s == STATUS_OK) {
		*tokens = list.ids;
		*count = list.count;
		list.ids = NULL;
	}
	token_list_fini(&list);
	return handles_report(failure, s, &err);
}

int additive_token_ends(const additive_model *m, int32_t token)
{
	return tokenizer_ends(served_model_tokenizer(m->served), token);
}

struct additive_text {
	const tokenizer *tokenizer;
	text_stream stream;
	char characters[TEXT_STREAM_ROOM + 1];
};

additive_code additive_text_open(additive_text **text, const additive_model *m, int continues, additive_error *failure)
{
	error err = ERROR_INIT;
	*text = memory_new(1, sizeof **text);
	if (!*text)
		return handles_report(failure, STATUS_NOMEM, &err);
	(*text)->tokenizer = served_model_tokenizer(m->served);
	(*text)->stream.started = continues != 0;
	return ADDITIVE_OK;
}

const char *additive_text_append(additive_text *text, int32_t token, size_t *bytes)
{
	const bool known = token >= 0 && token < tokenizer_size(text->tokenizer);
	*bytes = 0;
	if (known)
		*bytes = text_stream_token(&text->stream, text->tokenizer, token, false, text->characters);
	else if (token == -1)
		*bytes = text_stream_push(&text->stream, "", 0, true, text->characters);
	text->characters[*bytes] = 0;
	return text->characters;
}

void additive_text_close(additive_text *text)
{
	free(text);
}
