/* listing.h - pages of a table as the API's list object. */
#ifndef ENGINE_DAEMON_REQUESTS_LISTING_H
#define ENGINE_DAEMON_REQUESTS_LISTING_H

#include "engine/daemon/net/stream.h"
#include "engine/store/store.h"

/* Rows of an answer if the request has no "limit": OpenAI's defaults. */
enum { LISTING_FILES = 10000, LISTING_SESSIONS = 10000, LISTING_CHECKPOINTS = 10 };

/* The page requested by "after", "limit" and "order". */
typedef struct listing_page {
	const char *after; /* NULL: from the start; borrowed from the params */
	int64_t limit;
	bool ascending; /* oldest first */
} listing_page;

/* limit: default for requests without one. */
listing_page listing_read(const json_t *params, int64_t limit);
/* Return {"object":"list","data":[…],"first_id","last_id","has_more"}; data is stolen. NULL: out of memory. */
json_t *listing_object(json_t *data, bool more);

/* Answer {"object":"list","data":[…],"first_id","last_id","has_more"} with the rows selected by the request's "after",
 * "limit", "order", "purpose", "metadata" and "project", of the projects that it sees. parent: an object that it sees;
 * NULL: none. Default order is newest first; `limit` is the default limit. `convert` makes the API's object from a row
 * (new reference); NULL: the row itself. */
void listing_answer(stream *s, store_table table, const char *parent, int64_t limit,
                    json_t *(*convert)(stream *s, const json_t *row));
/* List only rows with this "object". */
void listing_answer_of(stream *s, store_table table, const char *parent, const char *object, int64_t limit,
                       json_t *(*convert)(stream *s, const json_t *row));

/* Lower the "limit" of the request to `most`. False: the stream has been answered. */
bool listing_limit(stream *s, json_int_t most);

#endif
