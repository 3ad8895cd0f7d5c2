/* pieces.h - parts of a text on their way through a tokenizer, and where their bytes come from in the original.
 *
 * A piece is bytes of UTF-8. Without a map byte i is byte base + i of the original text; a text that was changed has a
 * map, one range of the original for each byte. Maps are made only where they are asked for, since they cost 16 bytes a
 * byte. */
#ifndef ENGINE_TEXT_HUGGINGFACE_PIECES_H
#define ENGINE_TEXT_HUGGINGFACE_PIECES_H

#include "engine/text/space_mark.h"
#include "engine/text/tokenizer.h"

typedef struct text_piece {
	const char *text;
	size_t bytes;
	const byte_range *map;
	size_t base;
	bool first;     /* it begins where the original text begins */
	bool continues; /* and the text continues another one: nothing is added before it */
} text_piece;

/* `bytes` bytes of a piece. */
text_piece pieces_part(const text_piece *p, size_t first, size_t bytes);
/* The part of the original that they come from. */
byte_range pieces_origin(const text_piece *p, size_t first, size_t bytes);

/* A changed text in the making. Zero-initialise; set `mapped` and `limit` before the first byte. */
enum { PIECES_REUSES = 64 };
typedef struct text_buffer {
	char *text;
	byte_range *map;
	size_t bytes, capacity;
	size_t limit; /* on bytes; 0: none */
	size_t made;  /* all bytes ever appended: at most PIECES_REUSES times the limit */
	bool mapped;
} text_buffer;
void pieces_fini(text_buffer *b);
/* Append bytes of a piece as they are. */
status pieces_copy(text_buffer *b, const text_piece *p, size_t first, size_t bytes);
/* Append bytes that replace `origin`. */
status pieces_put(text_buffer *b, const char *text, size_t bytes, byte_range origin);
/* The result for piece p; valid until the buffer changes. */
text_piece pieces_made(const text_buffer *b, const text_piece *p);

/* True if this code point is white space (the Unicode property). */
bool pieces_is_space(uint32_t c);
/* The code point at the beginning or the end of well-formed UTF-8 of at least one byte, and its bytes. */
uint32_t pieces_first(const char *text, size_t *bytes);
uint32_t pieces_last(const char *text, size_t bytes, size_t *length);
/* Encode a code point; returns the bytes written. */
size_t pieces_write(uint32_t c, char out[4]);
/* Return the character with which byte-level vocabularies spell a byte. */
uint32_t pieces_spelling(int byte);

#endif
