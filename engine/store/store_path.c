/* Every path of the store is made here, from names the store made or checked itself: an
 * id that is not a valid name cannot reach this file, which is asserted. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/store/store_private.h"

static void join(const store *s, const char *folder, const char *name, char *out)
{
	assert(store_valid_name(name));
	int n = snprintf(out, PATH_MAX, "%s/%s/%s", s->folder, folder, name);
	assert(n > 0 && n < PATH_MAX);
}

void store_blob_path(const store *s, const char *id, char *out)
{
	join(s, "blobs", id, out);
}

void store_model_folder(const store *s, const char *id, char *out)
{
	join(s, "models", id, out);
}

void store_job_folder(const store *s, const char *id, char *out)
{
	join(s, "jobs", id, out);
}

void store_checkpoint_folder(const store *s, const char *job, int64_t step, char *out)
{
	join(s, "jobs", job, out);
	size_t used = strlen(out);
	int n = snprintf(out + used, PATH_MAX - used, "/step-%lld", (long long)step);
	assert(n > 0 && (size_t)n < PATH_MAX - used);
}

void store_session_path(const store *s, const char *id, char *out)
{
	char name[2 * STORE_ID_BYTES];
	sqlite3_stmt *statement;
	status result = ledger_prepare(s->db, &statement, NULL, "SELECT version FROM sessions WHERE id=?", "t", id);
	out[0] = 0;
	if (result == STATUS_OK && ledger_step(s->db, statement, &result, NULL)) {
		snprintf(name, sizeof name, "%s.%lld", id, (long long)sqlite3_column_int64(statement, 0));
		join(s, "sessions", name, out);
	}
	sqlite3_finalize(statement);
}

void store_temporary_path(store *s, char *out)
{
	char name[STORE_ID_BYTES];
	snprintf(name, sizeof name, "%llu", (unsigned long long)++s->temporaries);
	join(s, "tmp", name, out);
}
