/* x_transformers_set.h - golden sets of x-transformers: weights under its own names as a model, and its inputs. */
#ifndef TESTS_GOLDEN_X_TRANSFORMERS_SET_H
#define TESTS_GOLDEN_X_TRANSFORMERS_SET_H

#include "tests/golden/golden.h"
#include "engine/model/transformer/transformer.h"

enum { X_TRANSFORMERS_IGNORED = -100 }; /* a label */

/* One model and its inputs: B sequences of N tokens, sources of S tokens or rows. NULL: absent. */
typedef struct x_transformers_set {
	model *model;
	const transformer_config *config;
	int64_t batch, length, source, before;
	const int32_t *ids, *labels, *mask, *source_ids, *source_mask, *source_kept, *key_mask, *visible, *positions;
	const float *source_rows, *before_rows, *kept;
	bool remembers;                               /* segments: memories of the previous one */
	const float *memory[ARCHITECTURE_MAX_LAYERS]; /* [B, memory_rows, D] of each layer */
	int64_t memory_rows;
} x_transformers_set;

/* The set's weights as the architecture computes them. by_segments: of a set of segments, one whose max_seq_len is the
 * length of ids.0, with as many rows of the position table: what sessions call a segment. */
status x_transformers_set_model(golden *g, bool by_segments, x_transformers_set *c, error *err);
/* All inputs of a set without segments. */
status x_transformers_set_read(golden *g, x_transformers_set *c, error *err);
/* ids.NUMBER and labels.NUMBER. */
status x_transformers_set_segment(golden *g, x_transformers_set *c, int number, error *err);
/* A batch [B, n] as the autoregressive wrapper takes it: all but the last token of a row are read, all but the first
 * predicted. */
status x_transformers_set_wrapped(golden *g, x_transformers_set *c, const char *name, error *err);
/* Columns first … first + length - 1 of [rows, width]. */
status x_transformers_set_columns(golden *g, const int32_t *from, int64_t rows, int64_t width, int64_t first,
                                  int64_t length, const int32_t **out, error *err);
/* The integers of a tensor that need not be there (NULL). */
status x_transformers_set_optional(golden *g, const char *name, extent e, const int32_t **out, error *err);

#endif
