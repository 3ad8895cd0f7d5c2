/* beams.h - one beam search of a served model: the generations that are its beams, and the answers.
 *
 * Every beam is a generation with its own temporary session, created when the search is accepted. Beams are rows of
 * ordinary decode steps, count as generations, and end when the device fails. Only the choice of their tokens differs:
 * a beam that has read a token waits for all others, then the search chooses (beam_search.h). The first beam reads the
 * prompt; the others then start as copies of its session.
 *
 * If several beams continue one beam, one of them keeps its slot. For each other one, a session that no longer holds a
 * beam becomes a copy. As many slots are copied as beams are dropped, on the device, and no copy needs a free slot.
 * Copies of more than BEAMS_COPY_BYTES continue in later turns.
 *
 * The first generations also belong to the clients, one for each requested hypothesis. They wait for the end of the
 * search, because only then are the answer's tokens known. Each then delivers one hypothesis as its credit allows, and
 * the other generations end. If a beam fails or is cancelled before, all of them end with that error. Executor thread
 * only. */
#ifndef ENGINE_SERVE_BEAMS_H
#define ENGINE_SERVE_BEAMS_H

#include "engine/serve/beam_search.h"
#include "engine/serve/generation.h"

enum { BEAMS_COPY_BYTES = 4 << 20 /* per turn; about a millisecond on the host */ };

/* Check the options of a search for n hypotheses. STATUS_INVALID or STATUS_UNSUPPORTED names an option outside its
 * range or a request field that a search does not support. */
status beams_check(const beam_options *o, const generation_request *r, int n, error *err);
/* Create a search whose first beam is `first`, with its prompt. The n requests differ in their clients. The generations
 * are beams_generation 0 … o->beams - 1. On failure `first` is unchanged. STATUS_NOMEM, STATUS_BUSY. */
status beams_new(generation *first, const beam_options *o, const generation_request *r, int n, error *err);
int beams_count(const beams *b);
generation *beams_generation(const beams *b, int i);

/* True if g's next turn copies states. */
bool beams_copies(const generation *g);
/* True if a step can advance g, which is not cancelled. */
bool beams_runnable(const generation *g);
/* Pass g's logits to the search once g has read its tokens; the last beam's choose the next beams. STATUS_NOMEM,
 * STATUS_DEVICE.
 * STATUS_INVALID: the logits are not finite. */
status beams_read_logits(generation *g, error *err);
/* Run a turn of a runnable generation that has no token to read: copy sessions, or deliver an answer. *done: the answer
 * is delivered. */
status beams_turn(generation *g, bool *done, error *err);
/* Remove g, which ends with status s. Return the status with which the whole search has ended; *err is its message. */
status beams_leave(generation *g, status s, error *err);

#endif
