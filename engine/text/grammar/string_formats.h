/* string_formats.h - the values of the keyword "format". */
#ifndef ENGINE_TEXT_GRAMMAR_STRING_FORMATS_H
#define ENGINE_TEXT_GRAMMAR_STRING_FORMATS_H

/* A regular expression whose strings are of the format: all of them, or the ordinary ones where the format is wider.
 * NULL: the name is unknown, or only describes a value, such as "password". */
const char *string_format_pattern(const char *name);

#endif
