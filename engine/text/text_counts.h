/* text_counts.h - count a text of any size: documents, characters, tokens, lengths, duplicates and scripts. */
#ifndef ENGINE_TEXT_TEXT_COUNTS_H
#define ENGINE_TEXT_TEXT_COUNTS_H

#include <stdatomic.h>

#include "engine/text/conversation.h"
#include "engine/text/corpus_reader.h"
#include "engine/text/dataset.h"
#include "engine/text/duplicate_count.h"
#include "engine/text/length_counts.h"
#include "engine/text/script_counts.h"

typedef struct text_counts {
	bool data; /* JSON; otherwise running text, whose lines are the documents */
	int64_t documents, characters, tokens;
	int64_t invalid_lines;    /* lines with bytes that are not UTF-8, each of which counts as '?' */
	length_counts lengths[2]; /* characters and tokens of each document */
	duplicate_count *duplicates;
	script_counts scripts;
} text_counts;

typedef struct text_counts_options {
	const tokenizer *tokenizer;
	const conversation_template *chat; /* for the tokens of conversations */
	record_kind records;               /* the members of data that are read */
	int64_t documents;                 /* as for duplicate_count_new */
	const atomic_bool *cancel;         /* set: end with STATUS_CANCELLED; may be NULL */
	size_t piece_bytes;                /* 0: 1 MiB */
} text_counts_options;

/* Count all of a text. Takes ownership of the source, even on failure. Characters are those of the texts that a model
 * reads: for data, without JSON, without what a chat template adds, and of conversations the contents of the messages
 * alone. Tokens are those that a dataset would have, if its rows had room. STATUS_INVALID: a line that a dataset
 * refuses, by its number. out: text_counts_fini, also after a failure. */
status text_counts_read(text_counts *out, byte_source *source, const text_counts_options *o, error *err);
void text_counts_fini(text_counts *c);

#endif
