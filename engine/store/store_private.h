/* store_private.h - what the files of the store share. Private to engine/store. */
#ifndef ENGINE_STORE_STORE_PRIVATE_H
#define ENGINE_STORE_STORE_PRIVATE_H

#include "engine/store/ledger.h"
#include "engine/store/store.h"

#include <limits.h>

struct store {
	char folder[PATH_MAX - 256]; /* room for every name the store appends */
	sqlite3 *db;
	int lock; /* descriptor holding the flock */
	uint64_t temporaries;
};

/* Remove every blob, folder and temporary that no row speaks for: what a crash
 * left between writing a blob and writing its row. */
status store_clean(store *s, error *err);
/* A document as text for the ledger; NULL when out of memory. Free with free(). */
char *store_text(const json_t *document);

#endif
