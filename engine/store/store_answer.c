/* Kept answers: a row per key, for a day. */
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/store/store_private.h"

status store_answer_get(store *s, const char *key, uint64_t *request, json_t **answer, error *err)
{
	sqlite3_stmt *row;
	status result;
	*request = 0;
	*answer = NULL;
	TRY(ledger_prepare(s->db, &row, err, "SELECT request, answer FROM answers WHERE key=? AND created>?", "ti", key,
	                   clock_unix() - STORE_ANSWER_SECONDS));
	if (ledger_step(s->db, row, &result, err)) {
		*request = (uint64_t)sqlite3_column_int64(row, 0);
		*answer = ledger_document(row, 1);
		result = error_settle(err, *answer ? STATUS_OK : STATUS_NOMEM);
	}
	sqlite3_finalize(row);
	return result;
}

status store_answer_put(store *s, const char *key, uint64_t request, const json_t *answer, error *err)
{
	TRY(store_writable(s, err));
	char *text = store_text(answer);
	if (!text)
		return error_settle(err, STATUS_NOMEM);
	status result = ledger_run(s->db, NULL, err,
	                           "INSERT INTO answers(key, request, created, answer) VALUES(?,?,?,?) "
	                           "ON CONFLICT(key) DO UPDATE SET request=excluded.request, created=excluded.created, "
	                           "answer=excluded.answer",
	                           "tiit", key, (int64_t)request, clock_unix(), text);
	free(text);
	return result;
}

status store_answers_expire(store *s, error *err)
{
	return ledger_run(s->db, NULL, err, "DELETE FROM answers WHERE created<=?", "i",
	                  clock_unix() - STORE_ANSWER_SECONDS);
}
