/* attentions.h - the attentions of a 3Lin model: what a distance adds to their scores, how far they see, and which of
 * them read the same input. They follow from a table of few keys, or are listed one by one in the configuration. */
#ifndef ENGINE_MODEL_TRILINEAR_ATTENTIONS_H
#define ENGINE_MODEL_TRILINEAR_ATTENTIONS_H

#include "engine/model/config.h"

typedef enum trilinear_profile { TRILINEAR_SEED, TRILINEAR_HEAD } trilinear_profile;

/* What the positions of tokens decide. ALIBI: terms in the scores, with one period for each six attentions, of which
 * one is wide. WIDTHS: windows of 1, 4, 16, 64 and wide, in layers of 1 to 5 attentions, and no terms. */
typedef enum trilinear_positions { TRILINEAR_ALIBI, TRILINEAR_WIDTHS } trilinear_positions;

typedef struct trilinear_attention {
	double slope, hyper; /* the score at distance d gets -slope d + hyper / d, in exponents of 2 */
	int64_t window;
	bool joins; /* reads the same input as the one before it, of which it is not the first */
} trilinear_attention;

typedef struct trilinear_attentions {
	trilinear_attention items[ARCHITECTURE_MAX_LAYERS];
	int64_t count; /* n_layer */
	bool listed;   /* by the key "attentions", and not by the keys below */
	bool alike;    /* bidirectional: no terms, no windows, and but for "attentions" no keys beside n_layer */
	trilinear_positions positions;
	int64_t window, wide;
	bool combined; /* of WIDTHS: a group of attentions is one layer */
} trilinear_attentions;

#define TRILINEAR_ATTENTION_KEYS                                                                                       \
	"n_layer", "positions", "window_size", "wide_window_size", "combine_layers", "attentions"

/* Errors in r name the key. */
void trilinear_attentions_read(config_reader *r, trilinear_profile profile, bool bidirectional,
                               trilinear_attentions *out);
/* The keys of what was read, into json. False: out of memory. */
bool trilinear_attentions_write(json_t *json, const trilinear_attentions *a);
/* How many attentions a table of so many can have: WIDTHS has them in fives. */
int64_t trilinear_attentions_round(trilinear_positions positions, int64_t count);
/* The table that a profile has by default. */
trilinear_positions trilinear_positions_of(trilinear_profile profile);
/* Tokens before its own that a window of so many reads. */
int64_t trilinear_reach(trilinear_profile profile, int64_t window);

#endif
