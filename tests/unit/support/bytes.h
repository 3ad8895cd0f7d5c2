/* bytes.h - the byte tokenizer: its token ids, on which stored models depend, and a fixture that makes one. */
#ifndef TESTS_UNIT_SUPPORT_BYTES_H
#define TESTS_UNIT_SUPPORT_BYTES_H

#include "engine/text/tokenizer.h"

enum { BYTES_PAD = 0, BYTES_END = 1, BYTES_UNKNOWN = 2, BYTES_FIRST = 3 };

static inline int make_tokenizer(void **state)
{
	tokenizer *t;
	if (tokenizer_new(&t, NULL, NULL) != STATUS_OK)
		return -1;
	*state = t;
	return 0;
}

static inline int drop_tokenizer(void **state)
{
	tokenizer_free(*state);
	return 0;
}

#endif
