/* fuzz_sse - what a service could send to the command line: events come out the same however they are split, and
 * nothing of them steers the terminal. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/sse.h"
#include "clients/cli/terminal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
	if (!condition)
		abort();
}

static bool take(void *context, const char *id, const char *data, size_t bytes)
{
	text *log = context, shown = {0};

	require(strlen(data) <= bytes && strlen(id) < SSE_ID_BYTES);
	require(text_string(log, id) && text_append(log, "|", 1) && text_append(log, data, bytes) &&
	        text_append(log, ";", 1));
	require(terminal_escape(&shown, data, bytes, false));
	for (size_t i = 0; i < shown.used; i++)
		require((unsigned char)shown.data[i] >= 0x20 && shown.data[i] != 0x7f);
	text_free(&shown);
	return true;
}

static void parse(const uint8_t *data, size_t size, size_t piece, text *log)
{
	sse s = {0};

	for (size_t at = 0; at < size; at += piece)
		require(sse_feed(&s, (const char *)data + at, size - at < piece ? size - at : piece, take, log) ==
		        SSE_OK);
	sse_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	text whole = {0}, pieces = {0};

	parse(data, size, size ? size : 1, &whole);
	parse(data, size, 1 + size % 7, &pieces);
	require(whole.used == pieces.used && memcmp(text_get(&whole), text_get(&pieces), whole.used) == 0);
	text_free(&whole);
	text_free(&pieces);
	return 0;
}
