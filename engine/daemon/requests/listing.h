/* listing.h - pages of a table as the API's list object. */
#ifndef ENGINE_DAEMON_REQUESTS_LISTING_H
#define ENGINE_DAEMON_REQUESTS_LISTING_H

#include "engine/daemon/net/stream.h"
#include "engine/store/store.h"

/* Rows of an answer when the request gives no "limit": OpenAI's defaults. */
enum { LISTING_FILES = 10000, LISTING_SESSIONS = 10000, LISTING_JOBS = 20, LISTING_CHECKPOINTS = 10 };

/* The page that a request's "after", "limit" and "order" ask for. */
typedef struct listing_page {
	const char *after; /* NULL: from the beginning; borrowed from the params */
	int64_t limit;
	bool ascending; /* oldest first */
} listing_page;

/* limit: unless the request has one. */
listing_page listing_read(const json_t *params, int64_t limit);
/* {"object":"list","data":[…],"first_id","last_id","has_more"}; data is stolen. NULL when out of memory. */
json_t *listing_object(json_t *data, bool more);

/* Answer {"object":"list","data":[…],"first_id","last_id","has_more"} with the rows the request's "after", "limit",
 * "order", "purpose" and "metadata" ask for, `limit` unless it says otherwise; newest first unless the order is "asc".
 * `convert` makes the API's object of a row (new reference); NULL: the row itself. */
void listing_answer(stream *s, store_table table, const char *parent, int64_t limit,
                    json_t *(*convert)(stream *s, const json_t *row));
/* The same of the rows whose "object" is this one. */
void listing_answer_of(stream *s, store_table table, const char *parent, const char *object, int64_t limit,
                       json_t *(*convert)(stream *s, const json_t *row));

#endif
