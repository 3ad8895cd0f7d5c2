/* space_mark.h - the character that represents a space in vocabularies of characters: U+2581. */
#ifndef ENGINE_TEXT_SPACE_MARK_H
#define ENGINE_TEXT_SPACE_MARK_H

#include <stdbool.h>
#include <stddef.h>

#define SPACE_MARK "\xE2\x96\x81"
enum { SPACE_MARK_BYTES = 3 };

/* Bytes of the space or mark at the beginning of a text; 0: there is none. */
size_t space_mark_at(const char *text, size_t bytes);
/* True if a space or mark follows another character in the text. */
bool space_mark_is_inside(const char *text, size_t bytes);

#endif
