/* The tokenizer and the configuration of a new model follow from each other: the vocabulary sizes the model, and the
 * usual objective of the model decides the usual tokenizer. So the model is first described for a tokenizer of bytes,
 * then for the one that was chosen, and once more when the data has decided lengths and classes. */
#include "engine/recipe/job_config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/choice.h"
#include "engine/base/memory.h"
#include "engine/model/class_names.h"
#include "engine/model/config.h"
#include "engine/text/chat_template.h"
#include "engine/text/labelled.h"
#include "gen/limits.h"

#define CONFIG_FIELD "additive.config"

const json_t *job_config_member(const json_t *object, const char *key)
{
	const json_t *found = json_object_get(object, key);
	return json_is_null(found) ? NULL : found;
}

static status check_chat(const json_t *config, error *err)
{
	chat_template *t;
	status s =
	    chat_template_new(&t, &(chat_template_source){.declared = json_object_get(config, CONFIG_CHAT)}, err);
	chat_template_free(t);
	return s;
}

/* Check a configuration, and keep every key of it. */
static status take_config(job_request *r, const json_t *config, error *err)
{
	void *parsed = memory_new(1, r->architecture->config_bytes);
	status s = parsed ? architecture_read(r->architecture, parsed, config, err) : STATUS_NOMEM;
	if (s == STATUS_OK) {
		json_decref(r->config);
		free(r->parsed);
		r->parsed = parsed;
		r->dims = *architecture_dims(parsed);
		r->config = r->architecture->config_write(parsed);
		json_t *names = class_names_read(config, r->dims.form->head == HEAD_CLASSES ? r->dims.outputs : 0);
		s = r->config && names && class_names_write(r->config, names) && config_keep(r->config, config)
		        ? check_chat(config, err)
		        : STATUS_NOMEM;
		json_decref(names);
	} else {
		free(parsed);
	}
	error_prefix(err, CONFIG_FIELD);
	if (s != STATUS_OK && err->status != STATUS_OK && !err->param[0])
		strcpy(err->param, CONFIG_FIELD);
	return s;
}

static int64_t number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

/* Properties of a new model's tokenizer. */
typedef struct vocabulary_size {
	int32_t ids, padding;
	int32_t mask, end; /* TOKEN_NONE: it has none */
} vocabulary_size;

static vocabulary_size size_of(const tokenizer *t)
{
	return (vocabulary_size){tokenizer_size(t), tokenizer_pad(t), tokenizer_mask(t), tokenizer_end(t)};
}

/* True if a configuration has a key that the size of a model determines: an integer that differs between two sizes, or
 * a list with an entry for each layer. */
static bool says_size(const json_t *given, const json_t *small, const json_t *large)
{
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)(uintptr_t)given, key, member)
	{
		const json_t *a = json_object_get(small, key), *b = json_object_get(large, key);
		if (json_is_array(member) || (json_is_integer(a) && !json_equal(a, b)) ||
		    (json_is_object(member) && json_is_object(a) && says_size(member, a, b)))
			return true;
	}
	return false;
}

/* Copy the texts among a configuration's keys, which may choose the others. NULL when out of memory. */
static json_t *copy_texts(const json_t *given)
{
	json_t *copy = json_object(), *member;
	const char *key;
	json_object_foreach((json_t *)(uintptr_t)given, key, member)
	{
		if (json_is_string(member) && json_object_set(copy, key, member) != 0) {
			json_decref(copy);
			return NULL;
		}
	}
	return copy;
}

/* True if the configuration of the request leaves the size of a new model open. */
static bool leaves_size_open(const architecture *a, const json_t *given, const model_size *s)
{
	json_t *of[2];
	bool open = true;
	for (int i = 0; i < 2; i++) {
		const model_size size = {
		    .hidden = i ? 96 : 64, .heads = i ? 3 : 2, .layers = i ? 3 : 2, .form = s->form};
		of[i] = copy_texts(given);
		open = open && of[i] && a->complete(of[i], &size);
	}
	open = open && !says_size(given, of[0], of[1]);
	json_decref(of[0]);
	json_decref(of[1]);
	return open;
}

/* The objective that a request names; NULL: none, or an unknown one, which is refused later. */
static const objective *objective_of(const json_t *ours)
{
	const char *name = json_string_value(job_config_member(ours, "objective"));
	return name ? objective_find(name) : NULL;
}

bool job_request_name_model(json_t *params)
{
	const objective *o = objective_of(job_config_member(params, "additive"));
	const char *name = (o ? o : &objective_next_token)->model;
	return json_is_string(json_object_get(params, "model")) ||
	       json_object_set_new(params, "model", json_string(name)) == 0;
}

/* A length that is out of range is refused later. */
static int64_t length_or(const json_t *ours, const char *key, int64_t most, int64_t fallback)
{
	const int64_t n = number(ours, key);
	return n >= 1 && n <= most ? n : fallback;
}

/* The size of the new model: what the request gives, and defaults where it leaves the size open. The model reads texts
 * as long as the job's sequences and sources, unless its positions are given. o: NULL before it is known. */
static model_size read_size(const job_request *r, const json_t *ours, int64_t ids, const vocabulary_size *t,
                            const objective *o)
{
	const json_t *size = job_config_member(ours, "size"), *dropout = job_config_member(size, "dropout");
	const json_t *config = job_config_member(ours, "config");
	const objective *named = objective_of(ours);
	const int64_t bound = o ? job_defaults_bound(o) : TRAINING_OPTIONS_SEQUENCE_LENGTH_DEFAULT;
	int64_t length = length_or(ours, "sequence_length", TRAINING_OPTIONS_SEQUENCE_LENGTH_MAX,
	                           r->fitted_length ? r->fitted_length : bound),
	        positions = number(size, "positions");
	int64_t source = length_or(ours, "source_length", TRAINING_OPTIONS_SOURCE_LENGTH_MAX,
	                           r->fitted_source ? r->fitted_source : length);
	source = source > positions ? source : positions;
	model_size s = {
	    .parameters = number(size, "parameters"),
	    .hidden = number(size, "hidden"),
	    .heads = number(size, "heads"),
	    .layers = number(size, "layers"),
	    .inputs = ids,
	    .positions = positions ? positions : length,
	    .length = length,
	    .source = source,
	    .padding = t->padding,
	    .end = t->end,
	    .dropout = dropout ? json_number_value(dropout) : -1,
	    .form = named ? named->form : NULL,
	};
	if (size || !config || leaves_size_open(r->architecture, config, &s))
		job_defaults_size(o, &s);
	return s;
}

/* Copy the request's "config"; a key that is null counts as absent. NULL when out of memory. */
static json_t *copy_config(const json_t *given)
{
	json_t *copy = given ? json_deep_copy(given) : json_object(), *member;
	const char *key;
	void *next;
	json_object_foreach_safe(copy, next, key, member)
	{
		if (json_is_null(member))
			json_object_del(copy, key);
	}
	return copy;
}

/* --- members of "size" that errors name ------------------------------------------------------------------ */

/* True if two configurations have a key with different values, at any depth. */
static bool key_differs(const json_t *a, const json_t *b, const char *name)
{
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)(uintptr_t)a, key, member)
	{
		const json_t *other = json_object_get(b, key);
		if (strcmp(key, name) == 0 && !json_equal(member, other))
			return true;
		if (json_is_object(member) && key_differs(member, other, name))
			return true;
	}
	return false;
}

/* Members of "size" that an architecture may read, besides parameters. */
enum { SIZE_HEADS, SIZE_LAYERS, SIZE_DROPOUT, SIZE_HIDDEN, SIZE_POSITIONS, SIZE_MEMBERS };
static const char *const size_members[] = {"heads", "layers", "dropout", "hidden", "positions"};

/* True if this key, or with NULL any key, of the configuration that an architecture completes from `given` depends on a
 * member of the size. */
static bool size_decides(const architecture *a, const json_t *given, const model_size *s, int member, const char *key)
{
	model_size other = *s;
	other.heads += member == SIZE_HEADS;
	other.layers += member == SIZE_LAYERS;
	other.dropout += member == SIZE_DROPOUT ? 0.1 : 0;
	other.hidden += member == SIZE_HIDDEN;
	other.positions += member == SIZE_POSITIONS;
	json_t *one = copy_config(given), *two = copy_config(given);
	const bool decides = one && two && a->complete(one, s) && a->complete(two, &other) &&
	                     (key ? key_differs(one, two, key) : !json_equal(one, two));
	json_decref(one);
	json_decref(two);
	return decides;
}

/* A refused key of the configuration may follow from a member of the request's "size". Name that member instead. */
static void blame_size(const job_request *r, const json_t *ours, const model_size *s, error *err)
{
	const size_t prefix = strlen(CONFIG_FIELD ".");
	const json_t *size = job_config_member(ours, "size");
	if (strncmp(err->param, CONFIG_FIELD ".", prefix) != 0)
		return;
	for (int i = 0; i < SIZE_MEMBERS; i++) {
		if (!job_config_member(size, size_members[i]) ||
		    !size_decides(r->architecture, job_config_member(ours, "config"), s, i, err->param + prefix))
			continue;
		snprintf(err->param, sizeof err->param, "additive.size.%s", size_members[i]);
		return;
	}
}

/* Refuse a given member of "size" that no key of this architecture follows. Positions are left out: models without a
 * table ignore them. */
static status refuse_idle_size(const job_request *r, const json_t *ours, const model_size *s, error *err)
{
	const json_t *size = job_config_member(ours, "size");
	for (int i = 0; i < SIZE_POSITIONS; i++) {
		char field[sizeof err->param];
		if (!job_config_member(size, size_members[i]) || size_decides(r->architecture, NULL, s, i, NULL))
			continue;
		snprintf(field, sizeof field, "additive.size.%s", size_members[i]);
		return error_set(err, STATUS_INVALID, field, "has no effect: a model of kind %s has none",
		                 r->architecture->name);
	}
	return STATUS_OK;
}

/* --- the configuration -------------------------------------------------------------------------------------- */

/* A configuration with the keys that are not given. mask: TOKEN_NONE leaves it out; o: as of read_size. */
static status complete_config(job_request *r, const json_t *ours, int64_t inputs, const vocabulary_size *t,
                              int32_t mask, const objective *o, error *err)
{
	json_t *config = copy_config(job_config_member(ours, "config"));
	model_size size = read_size(r, ours, inputs, t, o);
	bool whole = config && (!r->classes || class_names_write(config, r->classes)) &&
	             (mask == TOKEN_NONE || config_set_missing(config, CONFIG_MASK, json_integer(mask))) &&
	             r->architecture->complete(config, &size);
	status s = whole ? take_config(r, config, err) : STATUS_NOMEM;
	json_decref(config);
	if (s == STATUS_INVALID)
		blame_size(r, ours, &size, err);
	return s == STATUS_OK ? refuse_idle_size(r, ours, &size, err) : s;
}

/* The objective that is given, or the usual one of a model of these dimensions; NULL: there is none. */
const objective *job_config_objective(const job_request *r, const json_t *ours)
{
	return job_config_member(ours, "objective") ? objective_of(ours) : objective_usual(&r->dims);
}

/* The configuration of a model from scratch, for a tokenizer and r->classes. One that reads masks has an id more than a
 * tokenizer without a token for them. */
static status make_config(job_request *r, const json_t *ours, vocabulary_size t, error *err)
{
	TRY(complete_config(r, ours, t.ids, &t, TOKEN_NONE, NULL, err));
	const objective *o = job_config_objective(r, ours);
	TRY(complete_config(r, ours, t.ids, &t, TOKEN_NONE, o, err));
	if (model_dims_ids(&r->dims) < t.ids)
		return error_set(err, STATUS_INVALID, "additive.config.vocab_size",
		                 "must be at least the tokenizer's %d ids", (int)t.ids);
	if (r->dims.mask >= 0 || !o || !o->masks || objective_check_model(o, &r->dims, NULL) != STATUS_OK)
		return STATUS_OK;
	return t.mask == TOKEN_NONE ? complete_config(r, ours, (int64_t)t.ids + 1, &t, t.ids, o, err)
	                            : complete_config(r, ours, t.ids, &t, t.mask, o, err);
}

/* The sizes of the given or future tokenizer. In one that is trained the first token fills up rows. */
static status size_tokenizer(const json_t *spec, const tokenizer *given, vocabulary_size *out, error *err)
{
	tokenizer *t = NULL;
	if (given && json_object_size(spec) > 1)
		return error_set(err, STATUS_INVALID, "file", "a tokenizer out of a file has no other options");
	if (!given && tokenizer_trains(spec)) {
		TRY(tokenizer_check(spec, err));
		*out = (vocabulary_size){tokenizer_trained_size(spec), 0, TOKEN_NONE, TOKEN_NONE};
		return STATUS_OK;
	}
	if (!given)
		TRY(tokenizer_new(&t, spec, err));
	*out = size_of(given ? given : t);
	tokenizer_free(t);
	return STATUS_OK;
}

/* Bytes of the training files, as they are stored. */
static int64_t training_bytes(const job_request *r, const job_sources *from)
{
	char path[PATH_MAX];
	struct stat st;
	int64_t bytes = 0;
	for (size_t i = 0; i < r->n_training; i++) {
		from->paths.path(from->paths.context, r->training[i].id, path);
		bytes += stat(path, &st) == 0 ? st.st_size : 0;
	}
	return bytes;
}

/* The tokenizer that is given, or the usual one. Lengths and vocabularies that are given count bytes. */
static status choose_tokenizer(job_request *r, const job_sources *from, const json_t *ours, error *err)
{
	const json_t *spec = job_config_member(ours, "tokenizer");
	const bool counted = r->given.length || job_config_member(job_config_member(ours, "config"), "vocab_size");
	vocabulary_size size;
	r->tokenizer = spec ? json_deep_copy(spec) : job_defaults_tokenizer(NULL, 0);
	if (!r->tokenizer)
		return STATUS_NOMEM;
	if (spec || counted)
		return STATUS_OK;
	/* The usual objective follows from the model, which a tokenizer of bytes is enough to describe. */
	TRY(size_tokenizer(r->tokenizer, NULL, &size, err));
	TRY(complete_config(r, ours, size.ids, &size, TOKEN_NONE, NULL, err));
	json_decref(r->tokenizer);
	r->tokenizer = job_defaults_tokenizer(job_config_objective(r, ours), training_bytes(r, from));
	return r->tokenizer ? STATUS_OK : STATUS_NOMEM;
}

static status from_scratch(job_request *r, const job_sources *from, const json_t *ours, const tokenizer *given,
                           error *err)
{
	vocabulary_size size = {0};
	TRY(choose_tokenizer(r, from, ours, err));
	status s = size_tokenizer(r->tokenizer, given, &size, err);
	error_prefix(err, "additive.tokenizer");
	return s == STATUS_OK ? make_config(r, ours, size, err) : s;
}

static status find_base(job_base **out, const job_sources *from, const char *name, error *err)
{
	job_base *base = memory_new(1, sizeof *base);
	status s = base ? from->find_model(from->context, name, base, err) : STATUS_NOMEM;
	if (s == STATUS_NOT_FOUND) {
		/* The name may be that of an architecture, mistyped. */
		enum { MOST = 32 };
		const char *names[MOST + 1] = {0};
		const size_t used = strlen(err->message);
		for (int i = 0; i < MOST && architecture_at(i); i++)
			names[i] = architecture_at(i)->name;
		choice_suggest(name, names, err->message + used, sizeof err->message - used);
	}
	if (s != STATUS_OK) {
		free(base);
		return s;
	}
	*out = base;
	return STATUS_OK;
}

status job_config_read(job_request *r, const job_sources *from, const json_t *params, const json_t *ours,
                       const tokenizer *given, error *err)
{
	const char *name = json_string_value(json_object_get(params, "model"));
	r->architecture = architecture_find(name);
	if (r->architecture)
		return from_scratch(r, from, ours, given, err);
	TRY(find_base(&r->base, from, name, err));
	r->architecture = r->base->architecture;
	r->config = json_incref(r->base->config);
	r->parsed = r->base->parsed;
	r->base->parsed = NULL;
	r->dims = r->base->dims;
	static const char *const own[] = {"config", "size", "tokenizer"};
	for (int i = 0; i < 3; i++) {
		char field[32];
		snprintf(field, sizeof field, "additive.%s", own[i]);
		if (job_config_member(ours, own[i]))
			return error_set(err, STATUS_INVALID, field, "a model to continue from brings its own");
	}
	return STATUS_OK;
}

/* --- after the data --------------------------------------------------------------------- */

/* A new model has the classes of its training file, unless they are given. */
static status take_classes(job_request *r, const corpus *texts)
{
	const char *const *names = r->classes ? NULL : labelled_classes(texts->texts.train);
	r->classes = r->classes ? r->classes : json_array();
	for (int i = 0; names && names[i]; i++)
		if (json_array_append_new(r->classes, json_string(names[i])) != 0)
			return STATUS_NOMEM;
	return STATUS_OK;
}

/* Take the lengths that fit the data, and make a new model for them, for its classes and for its tokenizer. */
status job_config_take_lengths(job_request *r, const json_t *params, const corpus *texts, error *err)
{
	const bool classes = r->dims.form->head == HEAD_CLASSES && !r->base;
	if (classes)
		TRY(take_classes(r, texts));
	if (texts->fit.length)
		r->options.sequence_length = r->fitted_length = texts->length;
	if (texts->fit.source)
		r->options.source_length = r->fitted_source = texts->source_length;
	if (r->base || (!classes && !texts->fit.length && !texts->fit.source && !tokenizer_trains(r->tokenizer)))
		return STATUS_OK;
	return make_config(r, job_config_member(params, "additive"), size_of(texts->texts.tokenizer), err);
}

/* A new model that reads a source has the token that its sequences begin with of the tokenizer. */
status job_config_take_start(job_request *r, const tokenizer *t, error *err)
{
	if (r->base || !r->dims.form->source || r->dims.start >= 0 || tokenizer_start(t) == TOKEN_NONE)
		return STATUS_OK;
	json_t *config = json_copy(r->config);
	bool whole = config && json_object_set_new(config, CONFIG_START, json_integer(tokenizer_start(t))) == 0;
	status s = whole ? take_config(r, config, err) : STATUS_NOMEM;
	json_decref(config);
	return s;
}
