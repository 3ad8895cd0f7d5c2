#include "tests/golden/x_transformers_set.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 64 };

static const int32_t *no_integers(void)
{
	return NULL;
}

status x_transformers_set_optional(golden *g, const char *name, extent e, const int32_t **out, error *err)
{
	*out = no_integers();
	return golden_find(g, "%s", name) ? golden_integers(g, name, e, X_TRANSFORMERS_IGNORED, INT32_MAX, out, err)
	                                  : STATUS_OK;
}

status x_transformers_set_columns(golden *g, const int32_t *from, int64_t rows, int64_t width, int64_t first,
                                  int64_t length, const int32_t **out, error *err)
{
	void *data;
	TRY(golden_memory(g, rows * length, sizeof(int32_t), &data, err));
	for (int64_t b = 0; b < rows; b++)
		memcpy((int32_t *)data + b * length, from + b * width + first, (size_t)length * sizeof(int32_t));
	*out = data;
	return STATUS_OK;
}

/* Labels that are to be ignored are -100 for us. */
static status ignore(golden *g, x_transformers_set *c, error *err)
{
	const json_t *arguments = json_object_get(g->config, "XTransformer");
	const json_t *ignored = json_object_get(
	    arguments ? arguments : json_object_get(g->config, "AutoregressiveWrapper"), "ignore_index");
	if (!json_is_integer(ignored))
		return STATUS_OK;
	void *data;
	TRY(golden_memory(g, c->batch * c->length, sizeof(int32_t), &data, err));
	int32_t *labels = data;
	for (int64_t i = 0; i < c->batch * c->length; i++)
		labels[i] = c->labels[i] == json_integer_value(ignored) ? X_TRANSFORMERS_IGNORED : c->labels[i];
	c->labels = labels;
	return STATUS_OK;
}

status x_transformers_set_wrapped(golden *g, x_transformers_set *c, const char *name, error *err)
{
	extent e;
	const int32_t *ids;
	TRY(golden_rank(g, name, 2, &e, err));
	TRY(golden_integers(g, name, e, 0, (int32_t)model_dimensions(c->model)->inputs - 1, &ids, err));
	c->batch = e.dim[0];
	c->length = e.dim[1] - 1;
	if (c->length < 1)
		return error_set(err, STATUS_INVALID, name, "tensor \"%s\" has less than two tokens in a row", name);
	TRY(x_transformers_set_columns(g, ids, c->batch, e.dim[1], 0, c->length, &c->ids, err));
	TRY(x_transformers_set_columns(g, ids, c->batch, e.dim[1], 1, c->length, &c->labels, err));
	return ignore(g, c, err);
}

static status read_tokens(golden *g, x_transformers_set *c, error *err)
{
	extent e;
	if (golden_find(g, "tgt"))
		return x_transformers_set_wrapped(g, c, "tgt", err);
	if (!golden_find(g, "labels"))
		return x_transformers_set_wrapped(g, c, "ids", err);
	TRY(golden_rank(g, "ids", 2, &e, err));
	c->batch = e.dim[0];
	c->length = e.dim[1];
	TRY(golden_integers(g, "ids", e, 0, (int32_t)model_dimensions(c->model)->inputs - 1, &c->ids, err));
	return golden_integers(g, "labels", e, X_TRANSFORMERS_IGNORED, INT32_MAX, &c->labels, err);
}

/* keep_index [B, K], keep_mask [B, K]: the rows of the source that are seen, as a mask of all rows. */
static status read_kept_source(golden *g, x_transformers_set *c, error *err)
{
	extent e;
	const int32_t *index, *keep;
	void *data;
	TRY(golden_rank(g, "keep_index", 2, &e, err));
	TRY(golden_integers(g, "keep_index", e, 0, (int32_t)c->source - 1, &index, err));
	TRY(golden_integers(g, "keep_mask", e, 0, 1, &keep, err));
	TRY(golden_memory(g, c->batch * c->source, sizeof(int32_t), &data, err));
	for (int64_t i = 0; i < e.dim[0] * e.dim[1]; i++)
		((int32_t *)data)[i / e.dim[1] * c->source + index[i]] = keep[i];
	c->source_kept = data;
	return STATUS_OK;
}

static status read_source(golden *g, x_transformers_set *c, error *err)
{
	extent e;
	if (golden_find(g, "context")) {
		TRY(golden_rank(g, "context", 3, &e, err));
		c->source = e.dim[1];
		TRY(golden_floats(g, "context", e, &c->source_rows, err));
		return x_transformers_set_optional(g, "context_mask", EXTENT(c->batch, c->source), &c->source_mask,
		                                   err);
	}
	if (c->config->arrangement != ARRANGED_BOTH)
		return STATUS_OK;
	TRY(golden_rank(g, "src", 2, &e, err));
	c->source = e.dim[1];
	TRY(golden_integers(g, "src", e, 0, (int32_t)c->config->encoder.options.num_tokens - 1, &c->source_ids, err));
	return x_transformers_set_optional(g, "src_mask", e, &c->source_mask, err);
}

static status read_kept(golden *g, x_transformers_set *c, error *err)
{
	const int32_t *skipped;
	void *data;
	int64_t n = transformer_head(c->config)->options.n_entries;
	TRY(x_transformers_set_optional(g, "layer_skip", EXTENT(n), &skipped, err));
	if (!skipped)
		return STATUS_OK;
	TRY(golden_memory(g, n, sizeof(float), &data, err));
	for (int64_t e = 0; e < n; e++)
		((float *)data)[e] = skipped[e] ? 0 : 1;
	c->kept = data;
	return STATUS_OK;
}

status x_transformers_set_read(golden *g, x_transformers_set *c, error *err)
{
	extent e;
	TRY(read_tokens(g, c, err));
	TRY(read_source(g, c, err));
	if (golden_find(g, "prepend_embeds")) {
		TRY(golden_rank(g, "prepend_embeds", 3, &e, err));
		c->before = e.dim[1];
		TRY(golden_floats(g, "prepend_embeds", e, &c->before_rows, err));
	}
	int64_t rows = c->before + c->length;
	TRY(x_transformers_set_optional(g, "mask", EXTENT(c->batch, rows), &c->mask, err));
	TRY(x_transformers_set_optional(g, "self_attn_context_mask", EXTENT(c->batch, rows), &c->key_mask, err));
	TRY(x_transformers_set_optional(g, "attn_mask", EXTENT(rows, rows), &c->visible, err));
	const int64_t heads = transformer_head(model_config(c->model))->options.heads;
	if (c->visible)
		TRY(golden_visible(g, c->visible, false, SHAPE4(c->batch, heads, rows, rows), &c->visible, err));
	if (golden_find(g, "pos"))
		TRY(golden_integers(g, "pos", EXTENT(c->batch, c->length), 0,
		                    (int32_t)transformer_head(c->config)->options.max_seq_len - 1, &c->positions, err));
	if (golden_find(g, "keep_index"))
		TRY(read_kept_source(g, c, err));
	return read_kept(g, c, err);
}

static status shorten(golden *g, json_t *config, error *err)
{
	extent e;
	json_t *wrapper = json_deep_copy(json_object_get(config, "TransformerWrapper"));
	if (!wrapper || json_object_set_new(config, "TransformerWrapper", wrapper) != 0)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	TRY(golden_rank(g, "ids.0", 2, &e, err));
	return json_object_set_new(wrapper, "max_seq_len", json_integer(e.dim[1])) == 0
	           ? STATUS_OK
	           : error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

status x_transformers_set_model(golden *g, bool by_segments, x_transformers_set *c, error *err)
{
	const bool shorter = by_segments && golden_find(g, "ids.0");
	json_t *config = json_copy(g->config);
	status s = STATUS_OK;
	if (!config || json_object_set_new(config, "model_type", json_string("x-transformers")) != 0)
		s = error_set(err, STATUS_NOMEM, NULL, "out of memory");
	if (s == STATUS_OK && shorter)
		s = shorten(g, config, err);
	if (s == STATUS_OK)
		s = golden_model(g, &architecture_x_transformers, config, shorter ? "pos_emb.emb.weight" : NULL,
		                 &c->model, err);
	json_decref(config);
	if (s == STATUS_OK)
		c->config = model_config(c->model);
	return s;
}

status x_transformers_set_segment(golden *g, x_transformers_set *c, int number, error *err)
{
	char ids[NAME_BYTES], labels[NAME_BYTES];
	extent e;
	snprintf(ids, sizeof ids, "ids.%d", number);
	snprintf(labels, sizeof labels, "labels.%d", number);
	TRY(golden_rank(g, ids, 2, &e, err));
	c->batch = e.dim[0];
	c->length = e.dim[1];
	TRY(golden_integers(g, ids, e, 0, (int32_t)model_dimensions(c->model)->inputs - 1, &c->ids, err));
	return golden_integers(g, labels, e, X_TRANSFORMERS_IGNORED, INT32_MAX, &c->labels, err);
}
