/* attentions.h - the attentions of a 3Lin model: the distance terms of their scores, how far they see, and which of
 * them read the same input. They follow from a few keys, or are listed in the configuration. */
#ifndef ENGINE_MODEL_TRILINEAR_ATTENTIONS_H
#define ENGINE_MODEL_TRILINEAR_ATTENTIONS_H

#include "engine/model/config.h"

typedef enum trilinear_profile { TRILINEAR_SEED, TRILINEAR_HEAD } trilinear_profile;

/* The use of positions. ALIBI: distance terms in the scores, with one period for each six attentions, of which one is
 * wide. WIDTHS: no terms; windows of 1, 4, 16, 64 and unlimited, in layers of 1 to 5 attentions. */
typedef enum trilinear_positions { TRILINEAR_ALIBI, TRILINEAR_WIDTHS } trilinear_positions;

typedef struct trilinear_attention {
	double slope, hyper; /* the score at distance d gets -slope d + hyper / d, in exponents of 2 */
	int64_t window;
	bool joins; /* reads the same input as the previous attention */
} trilinear_attention;

typedef struct trilinear_attentions {
	trilinear_attention items[ARCHITECTURE_MAX_LAYERS];
	int64_t count; /* n_layer */
	bool listed;   /* by the key "attentions" instead of the keys below */
	bool alike;    /* bidirectional: no terms, no windows; no keys besides n_layer and "attentions" */
	trilinear_positions positions;
	int64_t window, wide;
	bool combined; /* with WIDTHS: a group of attentions is one layer */
} trilinear_attentions;

#define TRILINEAR_ATTENTION_KEYS                                                                                       \
	"n_layer", "positions", "window_size", "wide_window_size", "combine_layers", "attentions"

/* Errors in r name the key. */
void trilinear_attentions_read(config_reader *r, trilinear_profile profile, bool bidirectional,
                               trilinear_attentions *out);
/* Write the keys that were read to json. False: out of memory. */
bool trilinear_attentions_write(json_t *json, const trilinear_attentions *a);
/* Round a number of attentions to one that a table can have; WIDTHS has multiples of five. */
int64_t trilinear_attentions_round(trilinear_positions positions, int64_t count);
/* Return the default table of a profile. */
trilinear_positions trilinear_positions_of(trilinear_profile profile);
/* Return the number of earlier tokens in a window of `window` tokens. */
int64_t trilinear_reach(trilinear_profile profile, int64_t window);

#endif
