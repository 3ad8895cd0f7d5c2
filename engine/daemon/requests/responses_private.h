/* responses_private.h - shared by the files responses*.c. */
#ifndef ENGINE_DAEMON_REQUESTS_RESPONSES_PRIVATE_H
#define ENGINE_DAEMON_REQUESTS_RESPONSES_PRIVATE_H

#include "engine/base/string_table.h"
#include "engine/daemon/requests/responses.h"

enum { RESPONSE_FIXED_BYTES = 4 << 10 }; /* counted for each response beside what it keeps */

/* The id of a response that was removed. */
typedef struct gone_response {
	string_node node;
	char id[STREAM_TARGET_BYTES], key[STREAM_OWNER_BYTES];
} gone_response;

/* Sum of an owner's responses. It exists while there are any. */
typedef struct response_owner {
	string_node node;
	int64_t bytes;
	int responses;
	char name[STREAM_OWNER_BYTES];
} response_owner;

struct responses {
	net *net;
	responses_limits limits;
	responses_counts counts;
	string_table known, owners, gone;
	struct response *oldest, *newest; /* ended ones, by the time of their end */
	gone_response *removed;           /* a ring of RESPONSES_GONE */
	uint64_t n_removed;
};

typedef struct response {
	stream_peer peer; /* carries `work` */
	struct responses *all;
	string_node node;               /* by id, unless `removed` */
	struct response *older, *newer; /* in the list of ended responses */
	response_owner *owner;
	struct follower *followers;
	stream *work;    /* NULL: the generation has ended */
	json_t *about;   /* the front end's own, returned with the response */
	json_t *input;   /* NULL: not kept */
	json_t *outcome; /* {"status", "result" or "error"}; NULL: the generation runs, or memory was short */
	char *events;    /* one JSON text per line */
	size_t events_bytes, capacity;
	char *state;            /* the model's state after it (carried_state.h); NULL: none */
	int64_t bytes;          /* counted for the limits */
	int64_t created, ended; /* Unix time */
	int64_t ended_ns;       /* on a clock that cannot be set */
	bool background;
	bool accepted; /* the request was not refused at once */
	bool keeps_state;
	bool cancelled; /* by a client */
	bool removed;   /* freed when the generation has ended, and its row is made */
	bool storing;   /* the pool makes its row: `events` must not change, and it has not ended for clients */
	char *note;     /* the latest note of its generation, while it has no follower; NULL: none */
	error lost;     /* error for which the record cancelled the generation */
	char id[STREAM_TARGET_BYTES], key[STREAM_OWNER_BYTES], model[STORE_ID_BYTES];
} response;

/* A stream that receives a response; its context. */
typedef struct follower {
	response *of;
	stream *stream;
	struct follower *next;
	size_t at;   /* bytes of `events` that were sent */
	bool opened; /* the first EVENT, about the response, was sent */
	bool waits;  /* until the response has ended */
	bool creator; /* the request itself; without "background" the generation is cancelled with it */
} follower;

/* --- responses.c --------------------------------------------------------------------------- */

/* NULL: out of memory. */
response_owner *response_owner_get(struct responses *all, const char *name);
/* Count `bytes` more, or less if negative. */
void response_charge(response *r, int64_t bytes);
/* Make room, then count `bytes` more. STATUS_BUSY: no room. */
status response_reserve(response *r, int64_t bytes, error *err);
/* Append it to the list of ended ones, which is sorted by `ended`. */
void response_link(response *r);
/* Take it from the table; free it once its generation has ended. */
void response_forget(response *r);
/* Free one that is not in the table. */
void response_free(response *r);
/* Store its row. */
status response_put(response *r, error *err);
/* Return the row (new reference). state, outcome: the response's. NULL: out of memory. Any thread while `storing`. */
json_t *response_row(const response *r, const char *state, json_t *outcome);
/* True if clients may see its outcome. */
bool response_has_ended(const response *r);
/* Copy a text of an object; "" if it has none. */
void response_copy_member(char *out, size_t size, const json_t *object, const char *key);
/* Replace the outcome by this error. */
void response_fail(response *r, const error *err);
void response_end(response *r);
bool response_is_completed(const response *r);
/* The key whose responses a request sees: its own, if the engine has it, otherwise the one that the front end names in
 * "key" of `how`; "": none. */
const char *response_key(const stream *s, const json_t *how);
/* The response that a request may see, with response_key's key. NULL: the stream has been answered, 404 or 410. */
response *response_find(stream *s, const char *id, const json_t *how, const char *param);
void response_cancel(response *r);
/* Forget a response, and its row if it has one. Its followers are answered 404. */
status response_remove(response *r, error *err);

/* --- response_methods.c -------------------------------------------------------------------- */

/* Send the response to s, which is answered at its end, or with what there is unless it waits. creator: s is the request
 * for it. */
void response_follow(response *r, stream *s, bool waits, bool creator);
/* Give the creator's stream the times of its generation. */
void response_note_times(response *r, const stream_times *times);
/* Send to all followers what has come. */
void response_send(response *r);
/* Answer followers of a response that is not kept with its error. */
void response_refuse_all(response *r);
/* The error object of the outcome, for stream_error_text. */
char *response_error_text(const response *r);

#endif
