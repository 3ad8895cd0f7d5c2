#include "engine/daemon/faithfulness/faithfulness_settings.h"

#include <math.h>
#include <string.h>

#include "engine/base/json_read.h"
#include "engine/daemon/generation/attribution_request.h"
#include "engine/daemon/generation/tokens.h"
#include "gen/limits.h"

static const char *const names[FAITHFULNESS_MAX_ORDERS] = {
    [FAITHFULNESS_CONTRIBUTIONS] = "contributions",
    [FAITHFULNESS_ALPHA] = "alpha",
    [FAITHFULNESS_ROLLOUT] = "rollout",
    [FAITHFULNESS_GRADIENT] = "gradient_x_input",
    [FAITHFULNESS_ATTENTION_GRADIENT] = "attention_x_gradient",
    [FAITHFULNESS_INTEGRATED] = "integrated_gradients",
    [FAITHFULNESS_LEAVE_ONE_OUT] = "leave_one_out",
    [FAITHFULNESS_RANDOM] = "random",
    [FAITHFULNESS_RECENCY] = "recency",
};

static const double usual_fractions[] = {0.01, 0.05, 0.1, 0.2, 0.5};

const char *faithfulness_settings_name(faithfulness_method method)
{
	return names[method];
}

bool faithfulness_settings_want(const faithfulness_settings *s, faithfulness_method method)
{
	bool requested = false;
	for (int i = 0; i < s->n_orders; i++)
		requested |= s->orders[i] == method;
	return requested;
}

/* --- methods ------------------------------------------------------------------------------------- */

/* Return why a model cannot be explained by a method; NULL: it can. */
static const char *problem_with(const model_entry *m, faithfulness_method method)
{
	const bool weights = method == FAITHFULNESS_ALPHA || method == FAITHFULNESS_ROLLOUT;
	if (weights && !m->explainer)
		return "the model has no importance weights";
	if (method == FAITHFULNESS_ATTENTION_GRADIENT && m->dims.shifted)
		return "attention in the model's decoder reads rows that hold the token before";
	if (method == FAITHFULNESS_ROLLOUT && m->dims.pool == POOL_MEAN)
		return "rollout follows one position, and the classes of this model come from all of them";
	return NULL;
}

static status read_methods(faithfulness_settings *s, const json_t *given, const model_entry *m, error *err)
{
	for (int i = 0; i < FAITHFULNESS_METHODS && !json_is_array(given); i++)
		if (!problem_with(m, (faithfulness_method)i))
			s->orders[s->n_orders++] = (faithfulness_method)i;
	for (size_t i = 0; i < json_array_size(given); i++) {
		int found = 0;
		while (strcmp(names[found], json_string_value(json_array_get(given, i))) != 0)
			found++;
		const faithfulness_method method = (faithfulness_method)found;
		if (faithfulness_settings_want(s, method))
			return error_set(err, STATUS_INVALID, "methods", "\"%s\" is given twice", names[method]);
		if (problem_with(m, method))
			return error_set(err, STATUS_INVALID, "methods", "%s", problem_with(m, method));
		s->orders[s->n_orders++] = method;
	}
	s->orders[s->n_orders++] = FAITHFULNESS_RANDOM;
	s->orders[s->n_orders++] = FAITHFULNESS_RECENCY;
	return STATUS_OK;
}

/* --- positions ----------------------------------------------------------------------------------- */

static status read_positions(faithfulness_settings *s, const json_t *params, const model_entry *m, error *err)
{
	const json_t *given = json_object_get(params, "positions");
	s->spread = json_read_integer(params, "spread", 0);
	if (json_is_array(given) && s->spread > 0)
		return error_set(err, STATUS_INVALID, "spread", "give positions or spread, not both");
	s->n_positions = s->spread > 0 || s->mask != TOKEN_NONE ? 0 : 1;
	s->positions[0] = -1;
	if (json_is_array(given))
		s->n_positions = (int64_t)json_array_size(given);
	for (int64_t i = 0; json_is_array(given) && i < s->n_positions; i++) {
		s->positions[i] = json_integer_value(json_array_get(given, (size_t)i));
		if (s->positions[i] == 0 && !s->both_sides && !m->dims.source)
			return error_set(err, STATUS_INVALID, "positions",
			                 "position 0 has no token before it that could be removed");
	}
	if (!m->dims.form->many_rows && (s->spread > 1 || s->n_positions > 1 || s->positions[0] != -1))
		return error_set(err, STATUS_INVALID, s->spread > 1 ? "spread" : "positions",
		                 "a classifier has one prediction, that of the whole text");
	return STATUS_OK;
}

static int add_position(int64_t *out, int n, int64_t position)
{
	int at = n;
	while (at > 0 && out[at - 1] > position)
		at--;
	if (at > 0 && out[at - 1] == position)
		return n;
	memmove(out + at + 1, out + at, (size_t)(n - at) * sizeof *out);
	out[at] = position;
	return n + 1;
}

int64_t faithfulness_settings_count(const faithfulness_settings *s, const faithfulness_tokens *t, int64_t position)
{
	return s->both_sides ? t->count : position + 1;
}

/* True if other tokens than the one at the position exist, which could be removed. */
static bool has_others(const faithfulness_settings *s, const faithfulness_tokens *t, int64_t position)
{
	return t->n_source + faithfulness_settings_count(s, t, position) > 1;
}

/* Choose the first mask, or several at equal distances among all masks. If the text is unknown, every token counts as a
 * mask. */
static int spread_masks(const faithfulness_settings *s, const faithfulness_tokens *t, int64_t *out)
{
	const int64_t requested = s->spread > 0 ? s->spread : 1;
	int64_t masks = 0, seen = 0;
	int n = 0;
	for (int64_t i = 0; i < t->count; i++)
		masks += !t->ids || t->ids[i] == s->mask;
	const int64_t chosen = masks < requested ? masks : requested;
	for (int64_t i = 0; i < t->count && n < chosen && has_others(s, t, i); i++) {
		if (t->ids && t->ids[i] != s->mask)
			continue;
		if (seen++ == n * masks / chosen)
			out[n++] = i;
	}
	return n;
}

int faithfulness_settings_positions(const faithfulness_settings *s, const faithfulness_tokens *t, int64_t *out,
                                    int64_t *missing)
{
	const int64_t last = t->count - 1;
	int n = 0;
	*missing = -2;
	if (s->n_positions == 0 && s->mask != TOKEN_NONE)
		return spread_masks(s, t, out);
	for (int64_t i = 0; i < s->n_positions; i++) {
		const int64_t position = s->positions[i] < 0 ? last : s->positions[i];
		if (position >= 0 && position <= last && has_others(s, t, position))
			n = add_position(out, n, position);
		else if (*missing == -2)
			*missing = s->positions[i];
	}
	for (int64_t i = 1; i <= s->spread && last >= 0; i++) {
		const int64_t position = (2 * i * last + s->spread) / (2 * s->spread);
		if (has_others(s, t, position))
			n = add_position(out, n, position);
	}
	return n;
}

/* --- the rest ------------------------------------------------------------------------------------ */

static void read_measure(faithfulness_options *o, const json_t *params)
{
	const json_t *given = json_object_get(params, "fractions");
	o->n_fractions = json_is_array(given) ? (int)json_array_size(given)
	                                      : (int)(sizeof usual_fractions / sizeof *usual_fractions);
	for (int i = 0; i < o->n_fractions; i++)
		o->fractions[i] =
		    json_is_array(given) ? json_number_value(json_array_get(given, (size_t)i)) : usual_fractions[i];
	o->grid = (int)json_read_integer(params, "grid", EXPLAIN_EVALUATE_GRID_DEFAULT);
	o->soft = (int)json_read_integer(params, "soft", EXPLAIN_EVALUATE_SOFT_DEFAULT);
	o->far = json_read_integer(params, "far", EXPLAIN_EVALUATE_FAR_DEFAULT);
	o->seed = (uint64_t)json_read_integer(params, "seed", 0);
}

status faithfulness_settings_read(faithfulness_settings *out, const json_t *params, const model_entry *m, error *err)
{
	*out = (faithfulness_settings){.share = (float)json_read_real(params, "share", 0.5),
	                               .steps = (int)json_read_integer(params, "steps", EXPLAIN_STEPS),
	                               .bootstrap = json_read_integer(params, "bootstrap", EXPLAIN_EVALUATE_BOOTSTRAP_DEFAULT),
	                               .confidence = json_read_real(params, "confidence", 0.95),
	                               .rows = json_is_true(json_object_get(params, "rows")),
	                               .begins = tokens_begin(params),
	                               .max_tokens = json_read_integer(params, "max_tokens", EXPLAIN_EVALUATE_MAX_TOKENS_DEFAULT),
	                               .texts = json_read_integer(params, "texts", EXPLAIN_EVALUATE_TEXTS_DEFAULT)};
	out->both_sides = !m->dims.form->stepwise;
	out->mask = m->dims.form->fills ? catalog_mask(m) : TOKEN_NONE;
	const int64_t most = scheduler_attribution_limit(&m->dims);
	out->max_tokens = out->max_tokens < most ? out->max_tokens : most;
	read_measure(&out->measure, params);
	TRY(read_methods(out, json_object_get(params, "methods"), m, err));
	TRY(read_positions(out, params, m, err));
	TRY(attribution_request_read_target(&out->target, json_object_get(params, "target"), m, err));
	return attribution_request_read_replacement(&out->replacement, params, m, err);
}

double faithfulness_settings_work(const faithfulness_settings *s, const model_entry *m, const faithfulness_tokens *text)
{
	int64_t positions[FAITHFULNESS_MAX_POSITIONS], missing;
	const int n = faithfulness_settings_positions(s, text, positions, &missing);
	double work = 0;
	for (int i = 0; i < n; i++) {
		const int64_t all = text->n_source + faithfulness_settings_count(s, text, positions[i]);
		const double t = (double)all;
		faithfulness f;
		faithfulness_init(&f, &s->measure, all - 1, text->n_source + positions[i], 0);
		work += m->dims.form->removals(t);
		work += (double)faithfulness_sets(&f, s->n_orders) * t;
		work += faithfulness_settings_want(s, FAITHFULNESS_INTEGRATED) ? t * (s->steps + 2) : 0;
	}
	return work;
}

static json_t *replacement_of(const faithfulness_settings *s)
{
	return s->replacement < 0 ? json_null() : json_integer(s->replacement);
}

json_t *faithfulness_settings_write(const faithfulness_settings *s, const json_t *params)
{
	json_t *methods = json_array(), *fractions = json_array(),
	       *positions = s->n_positions ? json_array() : json_null();
	const json_t *target = json_object_get(params, "target");
	bool whole = methods && fractions && positions;
	for (int i = 0; i < s->n_orders - 2; i++)
		whole = json_array_append_new(methods, json_string(names[s->orders[i]])) == 0 && whole;
	for (int i = 0; i < s->measure.n_fractions; i++)
		whole = json_array_append_new(fractions, json_real(s->measure.fractions[i])) == 0 && whole;
	for (int64_t i = 0; i < s->n_positions; i++)
		whole = json_array_append_new(positions, json_integer(s->positions[i])) == 0 && whole;
	json_t *object = json_pack(
	    "{s:o, s:o, s:o, s:O?, s:f, s:i, s:o, s:o, s:i, s:i, s:I, s:I, s:I, s:f, s:b, s:b, s:I, s:I}", "methods",
	    methods, "positions", positions, "spread", s->spread ? json_integer(s->spread) : json_null(), "target",
	    target, "share", (double)s->share, "steps", s->steps, "replacement", replacement_of(s), "fractions",
	    fractions, "grid", s->measure.grid, "soft", s->measure.soft, "far", (json_int_t)s->measure.far, "seed",
	    (json_int_t)s->measure.seed, "bootstrap", (json_int_t)s->bootstrap, "confidence", s->confidence, "rows",
	    s->rows, "add_special_tokens", s->begins, "max_tokens", (json_int_t)s->max_tokens, "texts",
	    (json_int_t)s->texts);
	if (whole)
		return object;
	json_decref(object);
	return NULL;
}
