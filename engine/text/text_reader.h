/* text_reader.h - the texts of several files in order, as a text_source: plain text or data, compressed or not. One
 * thread. */
#ifndef ENGINE_TEXT_TEXT_READER_H
#define ENGINE_TEXT_TEXT_READER_H

#include "engine/text/tokenizer.h"

typedef struct text_reader text_reader;

/* paths: borrowed. STATUS_NOMEM. */
status text_reader_new(text_reader **out, const char *const *paths, size_t count);
/* A source whose context is the reader, which must outlive it. The text of data is everything that a model would read,
 * without the names of roles. Errors as for corpus_reader_next and documents_read. */
text_source text_reader_source(text_reader *r);
void text_reader_free(text_reader *r); /* NULL is legal */

#endif
