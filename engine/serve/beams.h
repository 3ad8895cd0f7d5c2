/* beams.h - one beam search of a served model: the generations that are its beams, and the answers it gives.
 *
 * Every beam is a generation with a temporary session of its own, made when the search is accepted. So beams are rows
 * of decode steps like any others, count as generations, and end with the device. What differs is the choice of their
 * tokens: a beam that has read a token waits until all others have, then the search chooses (beam_search.h). The first
 * beam reads the prompt; after it the others begin with copies of its session.
 *
 * A beam that is continued by several takes one of them itself, in its slot; for each further one a session that holds
 * no beam any more becomes a copy. So as many slots are copied as beams are dropped, on the device, and no copy needs
 * another place first. Copies of more than BEAMS_COPY_BYTES go on in later turns.
 *
 * The first generations are also the clients', one for each hypothesis that is wanted. They wait for the end of the
 * search: only then is it known which tokens are the answer. Then each delivers one hypothesis, as its credit allows,
 * and the other generations end. If one beam fails or is cancelled before, all of them end so. Executor thread only. */
#ifndef ENGINE_SERVE_BEAMS_H
#define ENGINE_SERVE_BEAMS_H

#include "engine/serve/beam_search.h"
#include "engine/serve/generation.h"

enum { BEAMS_COPY_BYTES = 4 << 20 /* in one turn: about a millisecond of the host's */ };

/* STATUS_INVALID or _UNSUPPORTED names what a beam search cannot have: an option outside its range, or one of the
 * request's that has no meaning here. n: hypotheses wanted. */
status beams_check(const beam_options *o, const generation_request *r, int n, error *err);
/* Make the search of which `first`, with its prompt, is the first beam; the n requests differ in their clients. The
 * generations are beams_generation 0 … o->beams - 1. On failure `first` is as before. STATUS_NOMEM, STATUS_BUSY. */
status beams_new(generation *first, const beam_options *o, const generation_request *r, int n, error *err);
int beams_count(const beams *b);
generation *beams_generation(const beams *b, int i);

/* True if g's next turn copies states. */
bool beams_copies(const generation *g);
/* Can a step advance g, which is not cancelled? */
bool beams_runnable(const generation *g);
/* g has read its tokens: take its logits, and choose if they were the last. STATUS_NOMEM, STATUS_DEVICE, or
 * STATUS_INVALID for logits that are not finite. */
status beams_arrive(generation *g, error *err);
/* A turn of a generation that is runnable without a token to read: copy sessions, or deliver an answer. *done: it is
 * delivered. */
status beams_turn(generation *g, bool *done, error *err);
/* g ends with status s, or with the status returned, *err being its message: that with which the search has ended. */
status beams_leave(generation *g, status s, error *err);

#endif
