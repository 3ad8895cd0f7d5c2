/* options.h - the options of a stack of attention and feed-forward entries, under the names of x-transformers.
 *
 *   stack_options_read(&r, json, compat, &s)    the keys of options.def, and those that are lists:
 *       "custom_layers"   ["a", "f", …]: the order of the entries
 *       "shift_tokens"    one number, or one for each entry
 *       "layer_dropout"   likewise
 *
 * An order is a text of 'a' (self-attention), 'c' (attention over a source) and 'f' (feed-forward). By priority it is
 * custom_layers; par_ratio (Mandava et al. 2020); sandwich_coef s (Press et al. 2020: s attentions first, s
 * feed-forwards last); else `depth` times "af", "acf", "cf", or with macaron (Lu et al. 2019) "faf". */
#ifndef ENGINE_MODEL_TRANSFORMER_OPTIONS_H
#define ENGINE_MODEL_TRANSFORMER_OPTIONS_H

#include "engine/model/config.h"

enum {
	TRANSFORMER_MAX_WIDTH = 1 << 16,
	TRANSFORMER_MAX_ROWS = 1 << 24,
	STACK_MAX_ENTRIES = 4 * ARCHITECTURE_MAX_LAYERS
};

typedef bool option_boolean;
typedef int64_t option_integer;
typedef double option_number;
typedef int option_choice;

typedef struct stack_options {
#define OPTION(type, key, fallback, min, max) option_##type key;
#include "engine/model/transformer/options.def"
#undef OPTION
	bool causal, compat;
	char order[STACK_MAX_ENTRIES + 1];
	int n_entries;
	bool custom; /* order: from custom_layers */
	/* For each entry; true if given as a list. */
	int64_t shift[STACK_MAX_ENTRIES];
	double skip[STACK_MAX_ENTRIES];
	bool shift_listed, skip_listed;
} stack_options;

/* True for a key of a stack. */
bool stack_options_key(const char *key);
/* Read, check and complete the options. json: an object that may hold other keys. causal: for a decoder. compat: behave
 * like x-transformers 1.6.0, which has other defaults and silently picks one of two exclusive options. */
void stack_options_read(config_reader *r, const json_t *json, bool causal, bool compat, stack_options *out);
/* Add the keys that differ from the defaults (dim, depth and heads always). False: out of memory. */
bool stack_options_write(json_t *json, const stack_options *s, bool compat);

/* Write the order of the entries, NUL-terminated. 0: it exceeds STACK_MAX_ENTRIES. */
int stack_order(const stack_options *s, char out[STACK_MAX_ENTRIES + 1]);
/* Return the entry whose parameters an entry uses: itself, or with weight_tie_layers that of the first block. */
int stack_entry_parameters(const stack_options *s, int entry);
/* Return the number of entries of a kind before entry `end`. */
int stack_count(const stack_options *s, char kind, int end);

/* True if the stack has a table of positions. */
bool stack_positions(const stack_options *s);
/* Return the channels of a head that are rotated; 0: none. */
int64_t stack_rotary_width(const stack_options *s);
/* Return the constant factor of a residual. */
double stack_residual_constant(const stack_options *s);

#endif
