/* shares.h - divides steps among owners, so that one owner's requests do not delay another's by more than a constant.
 *
 * The owner of a generation (generation_request.owner) is an API key or an address, with a weight from 1 on. There is a
 * share for each owner that has a generation, and for SHARES_IDLE at most that had one in the last SHARES_KEPT_SECONDS.
 *
 * Decode steps: if several owners have streams of a model, each gets rows in proportion to its weight. One unit of
 * weight has as many rows as the owner with the fewest streams for its weight. Each owner gets at least
 * SHARES_HOST_ROWS. The minimum on a device is SHARES_DEVICE_ROWS, since rows cost less there. The other streams wait
 * for the next step. If there are several shares, a step on a host takes about SHARES_STEP_NS, because another owner's
 * next request could wait for it. It takes up to twice the time of a step of few rows if that is longer. With many owners
 * the minimum of rows makes it longer. If the time of few rows is not known then, one step is divided among so few.
 *
 * Prompts: the owner that has been served the fewest tokens for its weight is next. On a host a step reads prompts of
 * one owner. Every SHARES_OLDEST_EVERY-th of its turns is for its first prompt in the queue. In the division of the rows
 * a prompt counts as a stream. So another owner's streams do not delay it by more than a few rows.
 *
 * Prompts beside streams on a host: the streams of a less served owner limit the prompts of a step. All rows and
 * prompts of others add at most the time that its own rows take alone, times the quotient of the weights. So a token
 * takes about twice as long as alone if the weights are equal. At least SHARES_HOST_ROWS tokens are read. Prompts
 * that may not be cut there are read one at a time.
 *
 * Score tasks: the owner that has had the fewest slices for its weight is next. Their shares are apart from those of
 * generations.
 *
 * With each request an owner starts at least level with the one whose prompt was read last, so that it cannot save up
 * turns. Executor thread only. */
#ifndef ENGINE_SERVE_SHARES_H
#define ENGINE_SERVE_SHARES_H

#include <stdbool.h>

#include "engine/base/string_table.h"

enum { SHARES_OWNER_BYTES = 128, SHARES_HOST_ROWS = 4, SHARES_DEVICE_ROWS = 64 };
enum { SHARES_KEPT_SECONDS = 10, SHARES_STEP_NS = 500000, SHARES_OLDEST_EVERY = 4, SHARES_IDLE = 256 };

typedef struct share {
	string_node node;
	char owner[SHARES_OWNER_BYTES];
	int generations;
	int prioritized;  /* number of them whose priority is not 0 */
	unsigned turns;   /* steps of prompts that began with one of its prompts */
	uint64_t left_ns; /* when the last generation ended */
	int weight;       /* that of the latest request */
	double served;    /* tokens read and generated, each divided by the weight */
	int streams;      /* streams of the model whose step is being divided */
	int rows;         /* that it may still add to that step */
} share;

/* Zero-initialise. */
typedef struct owner_shares {
	string_table table;
	double floor; /* `served` of the owner whose prompt was read last */
} owner_shares;

/* Return the share of an owner (NULL: ""), which counts one more generation. weight 0: 1. NULL: out of memory. */
share *shares_enter(owner_shares *s, const char *owner, int weight);
/* Count one generation less at time now_ns. */
void share_leave(share *x, uint64_t now_ns);
void shares_fini(owner_shares *s); /* no share has a generation */
bool shares_are_several(const owner_shares *s);
/* Record that a prompt of x is read next. */
void shares_chosen(owner_shares *s, share *x);
/* True if the next turn of x is for its first prompt in the queue. */
bool share_reads_oldest(const share *x);
/* Count `tokens` more for the owner. */
void share_charge(share *x, int64_t tokens);

/* Begin to divide a step at time now_ns: set all `streams` to 0, and free the shares that are no longer kept. */
void shares_begin(owner_shares *s, uint64_t now_ns);
/* Set the rows of each owner from its `streams`; `least` as above, at most `most`. A prompt of `reader` counts as one
 * stream more; NULL: none is read. Returns the sum of all rows that streams can take. */
int shares_divide(owner_shares *s, const share *reader, int least, int most);
/* Return the time, at most `most`, that prompts of `reader` may add to a divided step. A step takes step_ns, and each row
 * adds row_ns. */
uint64_t shares_prompt_ns(const owner_shares *s, const share *reader, uint64_t step_ns, uint64_t row_ns, uint64_t most);
/* Take a row; false: the owner has had its rows. */
bool share_take(share *x);

#endif
