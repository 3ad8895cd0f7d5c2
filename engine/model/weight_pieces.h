/* weight_pieces.h - a model's weights in pieces, in the order of their file. A piece is some rows of a parameter, in
 * whole panels, read, verified, converted and packed.
 *
 * With several threads, threads of its own prepare the next pieces meanwhile. Their number changes neither a bit, nor
 * the order, nor which error is the first. Used by one thread. */
#ifndef ENGINE_MODEL_WEIGHT_PIECES_H
#define ENGINE_MODEL_WEIGHT_PIECES_H

#include "engine/model/model_private.h"
#include "engine/model/safetensors.h"

/* A parameter and its place in the file. */
typedef struct weight_place {
	int parameter;
	const safetensors_entry *entry, *tied; /* tied: the same data under the other name, or NULL */
} weight_place;

typedef struct weight_piece {
	int place;        /* index */
	bool last;        /* the last one of its parameter */
	const void *data; /* rows as stored in the arena; valid until the next call */
	size_t at, bytes; /* in the arena; bytes 0: a part of a matrix that is read whole before its first rows */
} weight_piece;

typedef struct weight_pieces weight_pieces;

/* Prepare pieces of the parameters at `places`, one for each parameter of m, in order of file offset. m, file and
 * places are borrowed. arena: the model's arena if the host writes to it, so that data is already in its place;
 * otherwise NULL. threads: at least 1; 1: pieces are prepared when they are requested. */
status weight_pieces_new(weight_pieces **out, const model *m, safetensors *file, const weight_place *places,
                         char *arena, int threads, error *err);
/* Wait for the next piece. There must be one: the last piece of the last place ends them. After an error only
 * weight_pieces_free is legal. */
status weight_pieces_next(weight_pieces *w, weight_piece *out, error *err);
/* Ends the threads. NULL is legal. */
void weight_pieces_free(weight_pieces *w);

#endif
