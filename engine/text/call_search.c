/* Each text has the failure table of Knuth, Morris and Pratt. Texts are few, so their states are advanced one by one.
 */
#include "engine/text/call_search.h"

#include <stdlib.h>
#include <string.h>

static uint16_t advance_text(const call_search *s, int i, uint16_t at, unsigned char byte)
{
	while (at > 0 && (at == s->bytes[i] || (unsigned char)s->text[i][at] != byte))
		at = s->fail[i][at];
	return (uint16_t)(at + ((unsigned char)s->text[i][at] == byte));
}

static status add(call_search *s, const char *text, size_t bytes, error *err)
{
	const int i = s->n;
	if (i == CALL_SEARCH_TEXTS || bytes == 0 || bytes > CALL_SEARCH_BYTES)
		return error_set(err, STATUS_INVALID, "stop", "there are too many stop sequences, or one is too long");
	memcpy(s->text[i], text, bytes);
	s->bytes[i] = (uint16_t)bytes;
	s->n++;
	for (uint16_t n = 1; n < bytes; n++)
		s->fail[i][n + 1] = advance_text(s, i, s->fail[i][n], (unsigned char)text[n]);
	return STATUS_OK;
}

status call_search_init(call_search *s, const chat_call_form *form, const char *const *stops, int n_stops, error *err)
{
	size_t bytes = strlen(form->open);
	while (bytes > 0 && strchr(" \t\r\n", form->open[bytes - 1]))
		bytes--;
	*s = (call_search){.first = bytes == 0 || form->first};
	TRY(add(s, bytes > 0 ? form->open : CALL_JSON, bytes > 0 ? bytes : strlen(CALL_JSON), err));
	for (int i = 0; i < n_stops; i++)
		TRY(add(s, stops[i], strlen(stops[i]), err));
	return STATUS_OK;
}

int call_search_step(const call_search *s, call_search_state *state, unsigned char byte)
{
	int found = -1;
	for (int i = 0; i < s->n; i++) {
		uint16_t *at = &state->at[i];
		if (i > 0 || !s->first)
			*at = advance_text(s, i, *at, byte);
		else if (*at != UINT16_MAX)
			*at = (unsigned char)s->text[i][*at] == byte ? (uint16_t)(*at + 1) : UINT16_MAX;
		if (*at == s->bytes[i] && (found < 0 || s->bytes[i] > s->bytes[found]))
			found = i;
	}
	return found;
}

size_t call_search_held(const call_search *s, const call_search_state *state)
{
	size_t most = 0;
	for (int i = 0; i < s->n; i++)
		if (state->at[i] != UINT16_MAX && state->at[i] > most)
			most = state->at[i];
	return most;
}

status call_search_rest(const call_search *s, const chat_call_form *form, char **out)
{
	const bool bare = !form->open[strspn(form->open, " \t\r\n")];
	const char *open = bare ? "" : form->open + s->bytes[0];
	const size_t bytes = strlen(open);
	*out = malloc(bytes + sizeof CALL_JSON);
	if (!*out)
		return STATUS_NOMEM;
	memcpy(*out, open, bytes);
	memcpy(*out + bytes, CALL_JSON, bare ? 0 : sizeof CALL_JSON);
	(*out)[bytes + (bare ? 0 : sizeof CALL_JSON - 1)] = 0;
	return STATUS_OK;
}
