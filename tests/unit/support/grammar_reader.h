/* grammar_reader.h - match a text against a grammar byte by byte, without tokens and without a constraint. */
#ifndef TESTS_UNIT_SUPPORT_GRAMMAR_READER_H
#define TESTS_UNIT_SUPPORT_GRAMMAR_READER_H

#include "engine/text/grammar/grammar.h"

/* Stacks before the next byte, without duplicates. Aborts when out of memory or stacks. */
typedef struct grammar_reader {
	const grammar *g;
	grammar_stacks stacks;
	int32_t tops[4096];
	int n;
} grammar_reader;

void grammar_reader_start(grammar_reader *r, const grammar *g);
/* Get the bytes that may follow. *ends: the text may end here. */
void grammar_reader_next(grammar_reader *r, byte_set *bytes, bool *ends);
/* False if the byte does not fit; the reader can then only be freed. */
bool grammar_reader_push(grammar_reader *r, unsigned char byte);
void grammar_reader_fini(grammar_reader *r);

/* True if the grammar accepts the entire text. */
bool grammar_reader_accepts(const grammar *g, const char *text, size_t bytes);

#endif
