#include "engine/model/transformer/options.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

typedef enum option_type { TYPE_boolean, TYPE_integer, TYPE_number, TYPE_choice } option_type;

typedef struct option {
	const char *key;
	option_type type;
	size_t offset;
	double fallback, min, max;
} option;

static const option table[] = {
#define OPTION(type, key, fallback, min, max) {#key, TYPE_##type, offsetof(stack_options, key), fallback, min, max},
#include "engine/model/transformer/options.def"
#undef OPTION
};
enum { OPTION_COUNT = sizeof table / sizeof table[0], LEAST_ROTARY_WIDTH = 32 };

/* Names of sinusoidal_form, in the order of sinusoids_form (ops.h). */
static const char *const sinusoidal_forms[] = {"exact", "exp", "pow", NULL};

static const char *const *choices_of(const option *o)
{
	return o->offset == offsetof(stack_options, cache_dtype) ? config_cache_dtypes : sinusoidal_forms;
}

/* True for the options that compat turns on. */
static double fallback_of(const option *o, bool compat)
{
	return compat && (o->offset == offsetof(stack_options, rotate_values) ||
	                  o->offset == offsetof(stack_options, attend_when_hidden) ||
	                  o->offset == offsetof(stack_options, raw_memory) ||
	                  o->offset == offsetof(stack_options, zero_masked_rows))
	           ? 1
	           : o->fallback;
}

static const char *const lists[] = {"custom_layers", "shift_tokens", "layer_dropout"};

bool stack_options_key(const char *key)
{
	for (int i = 0; i < OPTION_COUNT; i++)
		if (strcmp(key, table[i].key) == 0)
			return true;
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		if (strcmp(key, lists[i]) == 0)
			return true;
	return false;
}

/* --- reading ----------------------------------------------------------------------------------------- */

static void read_table(config_reader *r, bool compat, stack_options *s)
{
	for (const option *o = table; o < table + OPTION_COUNT; o++) {
		char *at = (char *)s + o->offset;
		double fallback = fallback_of(o, compat);
		if (o->type == TYPE_boolean)
			*(bool *)at = config_bool(r, o->key, fallback != 0);
		else if (o->type == TYPE_integer)
			*(int64_t *)at = config_integer(r, o->key, (int64_t)fallback, (int64_t)o->min, (int64_t)o->max);
		else if (o->type == TYPE_choice)
			*(int *)at = config_choice(r, o->key, choices_of(o));
		else
			*(double *)at = config_number(r, o->key, fallback, o->min, o->max);
	}
}

static void read_order(config_reader *r, stack_options *s)
{
	const json_t *custom = json_object_get(r->json, "custom_layers");
	s->custom = json_array_size(custom) > 0;
	if (custom && !json_is_null(custom) && (!s->custom || json_array_size(custom) > (size_t)STACK_MAX_ENTRIES)) {
		config_fail(r, "custom_layers", "custom_layers must be an array of 1 to %d entries", STACK_MAX_ENTRIES);
		return;
	}
	for (size_t i = 0; i < json_array_size(custom); i++) {
		const char *kind = json_string_value(json_array_get(custom, i));
		if (!kind || !kind[0] || kind[1] || !strchr("acf", kind[0])) {
			config_fail(r, "custom_layers", "custom_layers[%zu] must be \"a\", \"c\" or \"f\"", i);
			return;
		}
		s->order[i] = kind[0];
	}
	s->n_entries = s->custom ? (int)json_array_size(custom) : stack_order(s, s->order);
	if (!s->n_entries)
		config_fail(r, "depth", "the stack has more than %d entries", STACK_MAX_ENTRIES);
	if (!memchr(s->order, 'a', (size_t)s->n_entries) && !memchr(s->order, 'c', (size_t)s->n_entries))
		config_fail(r, "custom_layers", "the stack has no attention");
}

/* Read one number for all entries, or a list with one for each. */
static bool options_read_list(config_reader *r, const char *key, int n, double max, bool whole, double *out)
{
	const json_t *json = json_object_get(r->json, key);
	bool listed = json_is_array(json);
	if (listed && json_array_size(json) != (size_t)n)
		config_fail(r, key, "%s has %zu numbers, the stack has %d entries", key, json_array_size(json), n);
	for (int i = 0; i < n && r->status == STATUS_OK; i++) {
		const json_t *number = listed ? json_array_get(json, (size_t)i) : json;
		double x = json_number_value(number);
		bool fits = whole ? json_is_integer(number) : json_is_number(number);
		if (number && !json_is_null(number) && (!fits || x < 0 || x > max))
			config_fail(r, key, "%s must be %s from 0 to %g, or a list of such", key,
			            whole ? "an integer" : "a number", max);
		out[i] = x;
	}
	return listed;
}

static void read_lists(config_reader *r, stack_options *s)
{
	double shift[STACK_MAX_ENTRIES] = {0};
	s->shift_listed = options_read_list(r, "shift_tokens", s->n_entries, (double)s->dim - 1, true, shift);
	s->skip_listed = options_read_list(r, "layer_dropout", s->n_entries, 0.999, false, s->skip);
	for (int e = 0; e < s->n_entries; e++)
		s->shift[e] = (int64_t)shift[e];
}

/* --- options that exclude each other -------------------------------------------------------------------- */

static void forbid(config_reader *r, bool both, const char *key, const char *reason)
{
	if (both)
		config_fail(r, key, "%s %s", key, reason);
}

static void check_attention(config_reader *r, const stack_options *s)
{
	const json_t *past = json_object_get(r->json, "attn_max_attend_past");
	int64_t kv_heads = s->attn_one_kv_head ? 1 : s->attn_kv_heads ? s->attn_kv_heads : s->heads;
	int64_t width = s->attn_dim_head, values = s->attn_value_dim_head ? s->attn_value_dim_head : width;
	forbid(r, s->attn_one_kv_head && s->attn_kv_heads > 1, "attn_kv_heads", "contradicts attn_one_kv_head");
	forbid(r, s->heads % kv_heads != 0, "attn_kv_heads", "must divide heads");
	forbid(r, s->attn_shared_kv && values != width, "attn_value_dim_head",
	       "must be attn_dim_head where keys and values are one (attn_shared_kv)");
	forbid(r, s->attn_qk_norm && width % s->attn_qk_norm_groups != 0, "attn_qk_norm_groups",
	       "must divide attn_dim_head");
	forbid(r, s->attn_qk_norm && width / s->attn_qk_norm_groups <= 2, "attn_qk_norm_groups",
	       "leaves no more than 2 channels in a group");
	forbid(r, s->compat && s->attn_tensor_product && s->attn_one_kv_head && s->heads > 1, "attn_tensor_product",
	       "excludes attn_one_kv_head");
	forbid(r, s->attn_on_attn && (s->attn_zero_init_output || s->zero_init_branch_output), "attn_on_attn",
	       "has no output that could begin as zeros");
	forbid(r, s->compat && json_is_integer(past) && s->attn_max_attend_past == 0, "attn_max_attend_past",
	       "must be at least 1; without the key there is no limit");
	forbid(r, s->num_memory_tokens > 0 && s->mask_prob > 0, "mask_prob", "excludes num_memory_tokens");
}

/* Check options that only qualify another one. */
static void check_dependents(config_reader *r, const stack_options *s)
{
	const struct {
		const char *key, *needs;
		bool present;
	} dependents[] = {
	    {"sinusoidal_form", "sinusoidal_pos_emb", s->sinusoidal_pos_emb},
	    {"rel_pos_num_buckets", "rel_pos_bias", s->rel_pos_bias},
	    {"rel_pos_max_distance", "rel_pos_bias", s->rel_pos_bias},
	    {"alibi_num_heads", "alibi_pos_bias", s->alibi_pos_bias},
	    {"alibi_learned", "alibi_pos_bias", s->alibi_pos_bias},
	    {"dynamic_pos_bias_log_distance", "dynamic_pos_bias", s->dynamic_pos_bias},
	    {"dynamic_pos_bias_mlp_depth", "dynamic_pos_bias", s->dynamic_pos_bias},
	    {"dynamic_pos_bias_norm", "dynamic_pos_bias", s->dynamic_pos_bias},
	    {"rotary_emb_dim", "rotary_pos_emb", s->rotary_pos_emb},
	    {"rotary_xpos_scale_base", "rotary_xpos", s->rotary_xpos},
	    {"rotate_values", "rotary_pos_emb", s->rotary_pos_emb},
	    {"attn_qk_norm_groups", "attn_qk_norm", s->attn_qk_norm},
	    {"attn_qk_norm_scale", "attn_qk_norm", s->attn_qk_norm},
	    {"cross_residual_attn", "cross_attend", s->cross_attend},
	    {"cross_attn_tokens_dropout", "cross_attend", s->cross_attend},
	    {"raw_memory", "max_mem_len", s->max_mem_len > 0},
	};
	for (size_t i = 0; i < sizeof dependents / sizeof *dependents && !s->compat; i++)
		if (json_object_get(r->json, dependents[i].key) && !dependents[i].present)
			config_fail(r, dependents[i].key, "%s needs %s", dependents[i].key, dependents[i].needs);
}

/* Check options that x-transformers lacks. */
static void check_own(config_reader *r, const stack_options *s)
{
	static const char *const own[] = {
	    "scale_embedding", "sinusoidal_pos_emb", "sinusoidal_form", "use_unbiased_norm",
	    "final_norm",      "residual_dropout",   "xavier_init",     "ff_relu"};
	for (size_t i = 0; i < sizeof own / sizeof *own; i++)
		forbid(r, s->compat && json_object_get(r->json, own[i]), own[i], "is not an option of x-transformers");
}

static void check_memory(config_reader *r, const stack_options *s)
{
	bool skips = false;
	for (int e = 0; e < s->n_entries; e++)
		skips |= s->skip[e] > 0;
	forbid(r, s->max_mem_len && !s->causal, "max_mem_len", "is for causal attention");
	forbid(r, s->max_mem_len && s->rotary_xpos, "max_mem_len", "excludes rotary_xpos");
	forbid(r, s->max_mem_len && s->dynamic_pos_bias, "max_mem_len", "excludes dynamic_pos_bias");
	forbid(r, s->max_mem_len && skips, "max_mem_len", "excludes layer_dropout");
	forbid(r, s->shift_mem_down && !s->max_mem_len, "shift_mem_down", "needs max_mem_len");
}

static void check_positions(config_reader *r, const stack_options *s)
{
	int64_t rotated = stack_rotary_width(s);
	int64_t values = s->attn_value_dim_head ? s->attn_value_dim_head : s->attn_dim_head;
	forbid(r, s->alibi_pos_bias && s->rel_pos_bias, "alibi_pos_bias", "excludes rel_pos_bias");
	forbid(r, s->dynamic_pos_bias && s->rel_pos_bias, "dynamic_pos_bias", "excludes rel_pos_bias");
	forbid(r, s->dynamic_pos_bias && s->alibi_pos_bias, "dynamic_pos_bias", "excludes alibi_pos_bias");
	forbid(r, s->alibi_num_heads > s->heads, "alibi_num_heads", "must be at most heads");
	forbid(r, s->alibi_learned && s->alibi_num_heads && s->alibi_num_heads != s->heads, "alibi_num_heads",
	       "must be heads with alibi_learned");
	forbid(r, s->rel_pos_bias && !s->causal && s->rel_pos_num_buckets < 4, "rel_pos_num_buckets",
	       "must be at least 4, half of them for each direction");
	forbid(r, s->rel_pos_bias && !s->causal && s->rel_pos_num_buckets % 2 != 0, "rel_pos_num_buckets",
	       "must be even, half of them for each direction");
	forbid(r, s->rel_pos_bias && s->rel_pos_max_distance <= s->rel_pos_num_buckets / (s->causal ? 2 : 4),
	       "rel_pos_max_distance", "must be beyond the distances that have a bucket of their own");
	forbid(r, s->sinusoidal_pos_emb && (s->emb_dim ? s->emb_dim : s->dim) % 2 != 0, "sinusoidal_pos_emb",
	       "needs an even number of channels");
	forbid(r, rotated > s->attn_dim_head, "rotary_emb_dim", "must be at most attn_dim_head");
	forbid(r, rotated % 2 != 0, "rotary_emb_dim", "must be even");
	forbid(r, rotated > 0 && s->rotate_values && rotated > values, "attn_value_dim_head",
	       "has fewer channels than are rotated");
	forbid(r, s->rotary_xpos && !s->causal && !s->compat, "rotary_xpos", "is for causal attention");
	forbid(r, rotated > 0 && !stack_count(s, 'a', s->n_entries), "rotary_pos_emb", "needs self-attention");
}

/* x-transformers silently picks one of two exclusive options. */
static void resolve(stack_options *s)
{
	s->ff_swish &= !s->ff_relu_squared;
	s->use_scalenorm &= !s->use_rmsnorm;
	s->sandwich_norm &= !s->deepnorm;
	s->dynamic_pos_bias &= !s->rel_pos_bias;
	s->alibi_pos_bias &= !s->dynamic_pos_bias;
}

static void check_stack(config_reader *r, const stack_options *s)
{
	forbid(r, s->deepnorm && s->sandwich_norm, "sandwich_norm", "excludes deepnorm");
	forbid(r, s->deepnorm && s->scale_residual_constant != 1, "scale_residual_constant", "is set by deepnorm");
	forbid(r, s->sandwich_norm && !s->pre_norm, "sandwich_norm", "needs pre_norm");
	forbid(r, s->post_emb_norm && s->emb_dim && s->emb_dim != s->dim, "post_emb_norm", "needs emb_dim = dim");
	forbid(r, s->tie_embedding && s->emb_dim && s->emb_dim != s->dim, "tie_embedding", "needs emb_dim = dim");
	forbid(r, s->use_scalenorm && s->use_rmsnorm, "use_scalenorm", "excludes use_rmsnorm");
	forbid(r, s->use_unbiased_norm && s->use_rmsnorm, "use_unbiased_norm", "excludes use_rmsnorm");
	forbid(r, s->use_unbiased_norm && s->use_scalenorm, "use_unbiased_norm", "excludes use_scalenorm");
	forbid(r, s->use_unbiased_norm && s->dim < 2, "use_unbiased_norm", "needs more than one channel");
	forbid(r, s->xavier_init && s->deepnorm, "xavier_init", "excludes deepnorm");
	forbid(r, s->ff_swish && s->ff_relu_squared, "ff_relu_squared", "excludes ff_swish");
	forbid(r, s->ff_relu && (s->ff_swish || s->ff_relu_squared), "ff_relu",
	       "excludes ff_swish and ff_relu_squared");
	forbid(r, s->only_cross && !s->cross_attend, "only_cross", "needs cross_attend");
	forbid(r, stack_count(s, 'c', s->n_entries) > 0 && !s->cross_attend, "custom_layers",
	       "has an entry \"c\", which needs cross_attend");
	forbid(r, s->weight_tie_layers && (s->custom || s->par_ratio || s->sandwich_coef), "weight_tie_layers",
	       "needs entries in the order of their blocks");
	forbid(r, s->causal && s->max_seq_len < 2, "max_seq_len", "must be at least 2");
	for (int e = 0; e < s->n_entries; e++)
		forbid(r, (s->causal ? 1 : 2) * s->shift[e] + 1 > s->dim, "shift_tokens", "needs more channels");
}

void stack_options_read(config_reader *r, const json_t *json, bool causal, bool compat, stack_options *out)
{
	const json_t *whole = r->json;
	*out = (stack_options){.causal = causal, .compat = compat};
	r->json = json;
	read_table(r, compat, out);
	if (out->rotary_xpos)
		out->rotary_pos_emb = true;
	if (compat)
		resolve(out);
	if (out->deepnorm) {
		out->pre_norm = false;
		out->scale_residual = true;
	}
	if (r->status == STATUS_OK)
		read_order(r, out);
	if (r->status == STATUS_OK)
		read_lists(r, out);
	if (r->status == STATUS_OK) {
		check_attention(r, out);
		check_positions(r, out);
		check_stack(r, out);
		check_memory(r, out);
		check_dependents(r, out);
		check_own(r, out);
	}
	r->json = whole;
}

/* --- writing ------------------------------------------------------------------------------------------- */

static json_t *list_of(const stack_options *s, bool listed, bool whole)
{
	json_t *array = json_array();
	for (int e = 0; array && e < s->n_entries; e++) {
		json_t *x = whole ? json_integer(s->shift[e]) : json_real(s->skip[e]);
		if (!listed) {
			json_decref(array);
			return x;
		}
		if (json_array_append_new(array, x) != 0) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static bool write_lists(json_t *json, const stack_options *s)
{
	if (s->custom) {
		json_t *order = json_array();
		for (int e = 0; order && e < s->n_entries; e++)
			if (json_array_append_new(order, json_stringn(&s->order[e], 1)) != 0)
				return json_decref(order), false;
		if (json_object_set_new(json, "custom_layers", order) != 0)
			return false;
	}
	if ((s->shift_listed || s->shift[0]) &&
	    json_object_set_new(json, "shift_tokens", list_of(s, s->shift_listed, true)) != 0)
		return false;
	return (!s->skip_listed && s->skip[0] == 0) ||
	       json_object_set_new(json, "layer_dropout", list_of(s, s->skip_listed, false)) == 0;
}

bool stack_options_write(json_t *json, const stack_options *s, bool compat)
{
	for (const option *o = table; o < table + OPTION_COUNT; o++) {
		const char *at = (const char *)s + o->offset;
		double x = o->type == TYPE_boolean   ? *(const bool *)at
		           : o->type == TYPE_integer ? (double)*(const int64_t *)at
		           : o->type == TYPE_choice  ? *(const int *)at
		                                     : *(const double *)at;
		bool always = o->offset == offsetof(stack_options, dim) ||
		              o->offset == offsetof(stack_options, depth) ||
		              o->offset == offsetof(stack_options, heads);
		if (!always && x == fallback_of(o, compat))
			continue;
		json_t *number = o->type == TYPE_boolean   ? json_boolean(x != 0)
		                 : o->type == TYPE_integer ? json_integer((json_int_t)x)
		                 : o->type == TYPE_choice  ? json_string(choices_of(o)[(int)x])
		                                           : json_real(x);
		if (json_object_set_new(json, o->key, number) != 0)
			return false;
	}
	return write_lists(json, s);
}

/* --- derived values --------------------------------------------------------------------------------------- */

bool stack_positions(const stack_options *s)
{
	return s->use_abs_pos_emb && !s->sinusoidal_pos_emb && !s->rel_pos_bias && !s->rotary_pos_emb;
}

int64_t stack_rotary_width(const stack_options *s)
{
	if (!s->rotary_pos_emb)
		return 0;
	int64_t head = s->attn_dim_head, width = s->rotary_emb_dim ? s->rotary_emb_dim : head / 2;
	if (s->rotary_emb_dim && !s->compat)
		return width;
	width = width > LEAST_ROTARY_WIDTH ? width : LEAST_ROTARY_WIDTH;
	/* x-transformers refuses narrower heads; ours are rotated as a whole. */
	return s->compat || width <= head ? width : head / 2 * 2;
}

double stack_residual_constant(const stack_options *s)
{
	return s->deepnorm ? pow(2 * (double)s->depth, 0.25) : s->scale_residual_constant;
}

int stack_entry_parameters(const stack_options *s, int entry)
{
	return s->weight_tie_layers ? entry % (int)(s->n_entries / s->depth) : entry;
}

int stack_count(const stack_options *s, char kind, int end)
{
	int n = 0;
	for (int e = 0; e < end; e++)
		n += s->order[e] == kind;
	return n;
}
