/* config.h - options from a TOML file: a table for each section, a key for each option.
 *
 * An option on the command line takes precedence over its key. Programs that serve together read one file, so a program
 * can leave a section to another program. */
#ifndef PROTO_CONFIG_CONFIG_H
#define PROTO_CONFIG_CONFIG_H

#include <stdio.h>

#include "proto/options.h"

typedef struct config_section {
	const char *name;       /* "engine"; NULL ends the list */
	const option_row *rows; /* the keys, up to the end or a heading; NULL: the section is not read */
} config_section;

/* Append the options of the file to those of the command line, without those given there. On false, o->problem is the
 * error and names file, line and key. */
bool config_read(options *o, const char *path, const config_section *sections);
/* Set `out` to the options of the command line in `o`, followed by those that the file has now. On false,
 * out->problem is the error. Free `out` in both cases; it borrows from `o` and its argv. */
bool config_read_again(options *out, const options *o, const char *path, const config_section *sections);
/* Write a file with all values in `o`. Other options are comments, which name their defaults. */
void config_write(FILE *file, const options *o, const config_section *sections);

#endif
