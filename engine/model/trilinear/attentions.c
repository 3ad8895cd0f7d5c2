#include "engine/model/trilinear/attentions.h"

#include <string.h>

enum { MAX_WINDOW = 1 << 20, DEFAULT_WINDOW = 64, DEFAULT_COUNT = 6, WIDTHS = 5, MAX_TERM = 1 << 20 };

static const char *const alibi_first[] = {"alibi", "widths", NULL}, *const widths_first[] = {"widths", "alibi", NULL};

trilinear_positions trilinear_positions_of(trilinear_profile profile)
{
	return profile == TRILINEAR_SEED ? TRILINEAR_ALIBI : TRILINEAR_WIDTHS;
}

int64_t trilinear_reach(trilinear_profile profile, int64_t window)
{
	return profile == TRILINEAR_SEED ? window - 1 : window;
}

/* --- tables -------------------------------------------------------------------------- */

/* Distance terms that are hyperbolic and linear in turn, three of each. Number 1 of a period has slope 0, no term, and
 * unlimited reach. The original stored them as floats. */
static void fill_alibi(trilinear_attentions *a)
{
	for (int64_t k = 0; k < a->count; k++) {
		const int64_t third = k / 2 % 3;
		const bool hyperbolic = k % 2 == 0;
		a->items[k] = (trilinear_attention){
		    .hyper = hyperbolic ? (double)(20 * (float)(third + 1) / 3) : 0,
		    .slope = hyperbolic ? 0 : 0.25 * (double)third,
		    .window = !hyperbolic && third == 0 ? a->wide : a->window,
		};
	}
}

/* For each group size 1, 2, 3, …, a third of a fifteenth of the attentions; the rest are in groups of five. */
static void fill_widths(trilinear_attentions *a)
{
	const int64_t windows[WIDTHS] = {1, 4, 16, 64, a->wide}, groups = a->count / 15;
	int64_t k = 0;
	for (int64_t n = 1; n <= WIDTHS; n++) {
		const int64_t end = n < WIDTHS ? k + groups * n : a->count;
		for (int64_t i = 0; k < end; k++, i++)
			a->items[k] =
			    (trilinear_attention){.window = windows[i % n], .joins = a->combined && i % n != 0};
	}
}

int64_t trilinear_attentions_round(trilinear_positions positions, int64_t count)
{
	return positions == TRILINEAR_ALIBI || count % WIDTHS == 0 ? count : (count / WIDTHS + 1) * WIDTHS;
}

/* --- reading ----------------------------------------------------------------------------- */

/* Read a member of a listed attention. */
static double attentions_read_number(config_reader *r, const json_t *from, const char *key, double min, double max)
{
	const json_t *number = json_object_get(from, key);
	const double x = json_number_value(number);
	if (!json_is_number(number) || !(x >= min && x <= max))
		config_fail(r, "attentions", "every attention needs a \"%s\", a number from %g to %g", key, min, max);
	return x;
}

static void read_attention(config_reader *r, const json_t *json, int64_t least, trilinear_attention *out)
{
	const json_t *window = json_object_get(json, "window");
	if (!json_is_integer(window) || json_object_size(json) != 3)
		config_fail(r, "attentions",
		            "every attention must be an object of \"slope\", \"hyper\" and \"window\", an integer");
	out->slope = attentions_read_number(r, json, "slope", -MAX_TERM, MAX_TERM);
	out->hyper = attentions_read_number(r, json, "hyper", -MAX_TERM, MAX_TERM);
	out->window = (int64_t)attentions_read_number(r, json, "window", (double)least, MAX_WINDOW);
}

/* Keys of the tables, n_layer last. */
static const char *const table_keys[] = {"positions", "window_size", "wide_window_size", "combine_layers", "n_layer"};
enum { TABLE_KEYS = sizeof table_keys / sizeof *table_keys };

static void refuse_keys(config_reader *r, int count, const char *decider)
{
	for (int i = 0; i < count; i++)
		if (json_object_get(r->json, table_keys[i]))
			config_fail(r, table_keys[i], "%s is decided by \"%s\"", table_keys[i], decider);
}

static void read_listed(config_reader *r, const json_t *list, int64_t least, trilinear_attentions *a)
{
	refuse_keys(r, TABLE_KEYS, "attentions");
	size_t l, i;
	json_t *layer, *json;
	a->listed = true;
	json_array_foreach(list, l, layer)
	{
		if (!json_is_array(layer) || json_array_size(layer) == 0)
			config_fail(r, "attentions", "every layer must be an array of attentions");
		json_array_foreach(layer, i, json)
		{
			if (a->count == ARCHITECTURE_MAX_LAYERS) {
				config_fail(r, "attentions", "there may be %d attentions", ARCHITECTURE_MAX_LAYERS);
				return;
			}
			a->items[a->count].joins = i > 0;
			trilinear_attention *x = &a->items[a->count++];
			read_attention(r, json, least, x);
			if (a->alike && (x->slope != 0 || x->hyper != 0))
				config_fail(r, "attentions", "bidirectional attentions have a slope and a hyper of 0");
		}
	}
	if (a->count == 0)
		config_fail(r, "attentions", "attentions must be an array of layers, each an array of attentions");
}

void trilinear_attentions_read(config_reader *r, trilinear_profile profile, bool bidirectional,
                               trilinear_attentions *out)
{
	const int64_t least = profile == TRILINEAR_SEED ? 2 : 1; /* with this profile a window of 1 would read no
	                                                          * token */
	const json_t *list = json_object_get(r->json, "attentions");
	*out = (trilinear_attentions){.alike = bidirectional};
	if (list) {
		read_listed(r, list, least, out);
		return;
	}
	if (bidirectional) {
		refuse_keys(r, TABLE_KEYS - 1, "bidirectional");
		out->count = config_integer(r, "n_layer", DEFAULT_COUNT, 1, ARCHITECTURE_MAX_LAYERS);
		return;
	}
	const bool seed = trilinear_positions_of(profile) == TRILINEAR_ALIBI;
	const int choice = config_choice(r, "positions", seed ? alibi_first : widths_first);
	out->positions = (choice == 0) == seed ? TRILINEAR_ALIBI : TRILINEAR_WIDTHS;
	out->count = config_integer(r, "n_layer", trilinear_attentions_round(out->positions, DEFAULT_COUNT), 1,
	                            ARCHITECTURE_MAX_LAYERS);
	out->window = config_integer(r, "window_size", DEFAULT_WINDOW, least, MAX_WINDOW);
	out->wide = config_integer(r, "wide_window_size", DEFAULT_WINDOW, least, MAX_WINDOW);
	out->combined = config_bool(r, "combine_layers", false);
	if (out->positions == TRILINEAR_ALIBI) {
		if (out->combined)
			config_fail(r, "combine_layers", "combine_layers needs \"positions\": \"widths\"");
		fill_alibi(out);
		return;
	}
	if (profile == TRILINEAR_SEED)
		config_fail(r, "positions",
		            "\"widths\" has windows of 1, which reach no token of the profile \"seed\"");
	if (json_object_get(r->json, "window_size"))
		config_fail(r, "window_size", "window_size needs \"positions\": \"alibi\"");
	if (out->count % WIDTHS != 0)
		config_fail(r, "n_layer", "n_layer must be a multiple of %d with \"positions\": \"widths\"", WIDTHS);
	fill_widths(out);
}

/* --- writing ------------------------------------------------------------------------------- */

static json_t *write_list(const trilinear_attentions *a)
{
	json_t *list = json_array(), *layer = NULL; /* layer: borrowed */
	bool fits = list;
	for (int64_t k = 0; k < a->count && fits; k++) {
		const trilinear_attention *x = &a->items[k];
		if (!x->joins)
			fits = json_array_append_new(list, layer = json_array()) == 0;
		fits = fits && json_array_append_new(layer, json_pack("{s:f, s:f, s:I}", "slope", x->slope, "hyper",
		                                                      x->hyper, "window", (json_int_t)x->window)) == 0;
	}
	if (fits)
		return list;
	json_decref(list);
	return NULL;
}

bool trilinear_attentions_write(json_t *json, const trilinear_attentions *a)
{
	if (a->listed)
		return json_object_set_new(json, "attentions", write_list(a)) == 0;
	if (json_object_set_new(json, "n_layer", json_integer((json_int_t)a->count)) != 0)
		return false;
	if (a->alike)
		return true;
	return json_object_set_new(json, "positions", json_string(alibi_first[a->positions])) == 0 &&
	       json_object_set_new(json, "wide_window_size", json_integer((json_int_t)a->wide)) == 0 &&
	       (a->positions == TRILINEAR_ALIBI
	            ? json_object_set_new(json, "window_size", json_integer((json_int_t)a->window)) == 0
	            : json_object_set_new(json, "combine_layers", json_boolean(a->combined)) == 0);
}
