/* space_mark.h - the character that stands for a space in vocabularies of characters: U+2581. */
#ifndef ENGINE_TEXT_SPACE_MARK_H
#define ENGINE_TEXT_SPACE_MARK_H

#include <stdbool.h>
#include <stddef.h>

#define SPACE_MARK "\xE2\x96\x81"
enum { SPACE_MARK_BYTES = 3 };

/* The bytes of the space or mark that a text begins with; 0: it begins with neither. */
size_t space_mark_at(const char *text, size_t bytes);
/* Has a text a space or mark behind something else? */
bool space_mark_is_inside(const char *text, size_t bytes);

#endif
