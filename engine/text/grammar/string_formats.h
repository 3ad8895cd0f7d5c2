/* string_formats.h - the values of the keyword "format". */
#ifndef ENGINE_TEXT_GRAMMAR_STRING_FORMATS_H
#define ENGINE_TEXT_GRAMMAR_STRING_FORMATS_H

#include <stdbool.h>

/* A regular expression whose strings are of the format: all of them, or the ordinary ones where the format is wider.
 * NULL: the name constrains nothing, or is unknown. */
const char *string_format_pattern(const char *name);
/* True if the name only describes a value: its bytes, its width, or a place where it is used. */
bool string_format_is_annotation(const char *name);

#endif
