#include "tests/golden/cirilla_set.h"

#include <stdio.h>

#include "engine/model/feed.h"

enum { NAME_BYTES = 64 };

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* --- the model ------------------------------------------------------------------------------------------- */

static status read_ids(const golden *g, cirilla_ids *out, error *err)
{
	const json_t *json = json_object_get(g->config, "ids");
	const struct {
		const char *key;
		int64_t *to;
	} tokens[] = {{"PAD", &out->pad}, {"SOS", &out->begin}, {"EOS", &out->end}};
	for (int i = 0; i < 3; i++) {
		const json_t *id = json_object_get(json, tokens[i].key);
		*tokens[i].to = json_integer_value(id);
		if (!json_is_integer(id) || *tokens[i].to < 0 || *tokens[i].to > INT32_MAX)
			return error_set(err, STATUS_INVALID, "ids", "the config's \"ids\" must have a number for %s",
			                 tokens[i].key);
	}
	return STATUS_OK;
}

/* Check the keys whose value the architecture fixes. */
static status check_constants(golden *g, error *err)
{
	double eps, base;
	TRY(golden_config_number(g, "ln_eps", 1e-6, &eps, err));
	TRY(golden_config_number(g, "pe_base", 10000, &base, err));
	if (eps != 1e-6)
		return error_set(err, STATUS_UNSUPPORTED, "ln_eps", "the norms have eps 1e-06, not %g", eps);
	if (base != 10000)
		return error_set(err, STATUS_UNSUPPORTED, "pe_base", "the positions have base 10000, not %g", base);
	return STATUS_OK;
}

status cirilla_set_model(golden *g, const char *positions, const char *norm, const char *kind, cirilla_set *c,
                         error *err)
{
	static const char *const copied[] = {"d_model", "heads",   "enc_layers", "dec_layers", "d_ff",
	                                     "vocab",   "max_len", "norm",       "ln_kind"};
	const struct {
		const char *key, *value;
	} chosen[] = {{"pe_form", positions}, {"norm", norm}, {"ln_kind", kind}};
	TRY(check_constants(g, err));
	TRY(read_ids(g, &c->ids, err));
	json_t *config = json_object();
	bool fits = config;
	for (size_t i = 0; i < sizeof copied / sizeof *copied && fits; i++) {
		json_t *member = json_object_get(g->config, copied[i]);
		fits = !member || json_object_set(config, copied[i], member) == 0;
	}
	for (int i = 0; i < 3 && fits; i++)
		fits =
		    !chosen[i].value || json_object_set_new(config, chosen[i].key, json_string(chosen[i].value)) == 0;
	status s = fits ? golden_model(g, &architecture_cirilla, config, NULL, &c->model, err) : no_memory(err);
	json_decref(config);
	if (s == STATUS_OK)
		c->config = model_config(c->model);
	return s;
}

/* --- inputs ------------------------------------------------------------------------------------------------- */

static int64_t tokens_before_padding(const cirilla_set *c, int64_t b)
{
	int64_t n = 0;
	for (int64_t i = 0; i < c->source; i++)
		n += c->enc_in[b * c->source + i] != c->ids.pad;
	return n;
}

status cirilla_set_masks(golden *g, cirilla_set *c, error *err)
{
	void *mask, *ones;
	TRY(golden_memory(g, c->batch * c->source, sizeof(int32_t), &mask, err));
	TRY(golden_memory(g, c->batch * c->source, sizeof(int32_t), &ones, err));
	c->source_mask = mask;
	c->ones = ones;
	for (int64_t i = 0; i < c->batch * c->source; i++) {
		c->source_mask[i] = i % c->source < tokens_before_padding(c, i / c->source);
		c->ones[i] = 1;
	}
	return STATUS_OK;
}

static const char *const mask_names[CIRILLA_MASKS] = {"enc_mask", "cross_mask", "dec_self_mask"};

static extent mask_extent(const cirilla_set *c, int mask)
{
	return EXTENT(c->batch, mask == CIRILLA_ENCODER ? c->source : c->length,
	              mask == CIRILLA_DECODER ? c->length : c->source);
}

/* Element i of a mask that follows from the tokens: it hides the later ones, or the padding. */
static int32_t mask_at(const cirilla_set *c, int mask, int64_t i)
{
	const extent e = mask_extent(c, mask);
	const int64_t b = i / e.dim[2] / e.dim[1], query = i / e.dim[2] % e.dim[1], key = i % e.dim[2];
	return mask == CIRILLA_DECODER ? key <= query : c->source_mask[b * c->source + key];
}

/* A mask of the set is the one that is computed from the tokens. */
static status check_mask(golden *g, const cirilla_set *c, int mask, error *err)
{
	const char *name = mask_names[mask];
	const extent e = mask_extent(c, mask);
	const int32_t *found;
	if (!golden_find(g, "%s", name))
		return STATUS_OK;
	TRY(golden_integers(g, name, e, 0, 1, &found, err));
	for (int64_t i = 0; i < extent_count(e); i++)
		if (found[i] != mask_at(c, mask, i))
			return error_set(err, STATUS_UNSUPPORTED, name, "tensor \"%s\" hides other keys than %s", name,
			                 mask == CIRILLA_DECODER ? "the later ones" : "the padding");
	return STATUS_OK;
}

static status read_visible(golden *g, const char *name, int mask, cirilla_set *c, error *err)
{
	const extent e = mask_extent(c, mask);
	const stack *s = mask == CIRILLA_ENCODER ? &c->config->encoder : &c->config->decoder;
	const int32_t *pairs;
	void *data;
	if (golden_find(g, "%s", name)) {
		TRY(golden_integers(g, name, e, 0, 1, &pairs, err));
	} else {
		TRY(golden_memory(g, extent_count(e), sizeof(int32_t), &data, err));
		for (int64_t i = 0; i < extent_count(e); i++)
			((int32_t *)data)[i] = mask_at(c, mask, i);
		pairs = data;
	}
	return golden_visible(g, pairs, true, SHAPE4(e.dim[0], s->options.heads, e.dim[1], e.dim[2]), &c->visible[mask],
	                      err);
}

status cirilla_set_visible(golden *g, const char *prefix, cirilla_set *c, bool *any, error *err)
{
	char name[NAME_BYTES];
	*any = false;
	for (int i = 0; i < CIRILLA_MASKS; i++)
		*any |= golden_find(g, "%s%s", prefix, mask_names[i]) != NULL;
	for (int i = 0; i < CIRILLA_MASKS && *any; i++) {
		snprintf(name, sizeof name, "%s%s", prefix, mask_names[i]);
		TRY(read_visible(g, name, i, c, err));
	}
	c->source_mask = *any ? c->ones : c->source_mask;
	return STATUS_OK;
}

status cirilla_set_read(golden *g, cirilla_set *c, error *err)
{
	const model_dims *d = model_dimensions(c->model);
	extent e, source;
	const int32_t *target;
	void *labels;
	TRY(golden_rank(g, "enc_in", 2, &source, err));
	TRY(golden_rank(g, "dec_in", 2, &e, err));
	c->batch = e.dim[0];
	c->length = e.dim[1];
	c->source = source.dim[1];
	TRY(golden_integers(g, "enc_in", EXTENT(c->batch, c->source), 0, (int32_t)d->inputs - 1, &c->enc_in, err));
	TRY(golden_integers(g, "dec_in", e, 0, (int32_t)d->inputs - 1, &c->dec_in, err));
	TRY(golden_integers(g, "target", e, 0, (int32_t)d->inputs - 1, &target, err));
	TRY(golden_memory(g, c->batch * c->length, sizeof(int32_t), &labels, err));
	for (int64_t i = 0; i < c->batch * c->length; i++)
		((int32_t *)labels)[i] = target[i] == c->ids.pad ? -1 : target[i];
	c->labels = labels;
	TRY(cirilla_set_masks(g, c, err));
	for (int i = 0; i < CIRILLA_MASKS; i++)
		TRY(check_mask(g, c, i, err));
	return STATUS_OK;
}

/* --- plans ------------------------------------------------------------------------------------------------- */

status cirilla_set_plan(golden *g, const cirilla_set *c, forward_spec spec, float *gradients, plan **out, error *err)
{
	/* In the order of c->visible. */
	static const char *const visible[CIRILLA_MASKS] = {"source_visible", "cross_visible", "visible"};
	forward_input inputs[CIRILLA_MASKS + 2];
	int n = 0;
	for (int i = 0; i < CIRILLA_MASKS && c->visible[0]; i++)
		inputs[n++] = (forward_input){.name = visible[i]};
	if (c->cross_unmasked)
		inputs[n++] = (forward_input){.name = "source_kept"};
	inputs[n] = (forward_input){0};
	spec.phase = PHASE_SCORE;
	spec.batch = c->batch;
	spec.length = c->length;
	spec.source = c->source;
	spec.source_masked = true;
	spec.inputs = inputs;
	TRY(golden_backward_into(g, c->model, &spec, gradients, out, err));
	TRY(feed_write(*out, PORT_TOKENS, c->dec_in));
	TRY(feed_write(*out, PORT_SOURCE, c->enc_in));
	TRY(feed_write(*out, PORT_SOURCE_MASK, c->source_mask));
	const graph *built = plan_graph(*out);
	if (c->cross_unmasked)
		TRY(plan_write(*out, graph_find(built, "source_kept"), c->ones));
	for (int i = 0; i < CIRILLA_MASKS && c->visible[i]; i++)
		TRY(plan_write(*out, graph_find(built, visible[i]), c->visible[i]));
	if (c->labels)
		TRY(feed_write(*out, PORT_LABELS, c->labels));
	return feed_positions(*out, model_dimensions(c->model), POSITION_ERROR, 0);
}
