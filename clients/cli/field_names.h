/* field_names.h - the fields of a request in the words of the command line.
 *
 * A service names fields ("additive.sequence_length"), a user typed options ("--sequence"). The rows of the command say
 * which option fills which field. */
#ifndef CLI_FIELD_NAMES_H
#define CLI_FIELD_NAMES_H

#include "clients/cli/cli.h"

/* Append the option, or the argument, that fills a field; an element ("stop[2]") counts as its field. False: there is
 * none. */
bool field_names_option(const cli *c, const char *field, text *out);
/* Append a message with every field replaced by its option. A field that could be an English word is replaced only
 * between single quotes. The last name of a path is replaced only if it has an underscore and names a single option. */
void field_names_translate(const cli *c, const char *message, text *out);

#endif
