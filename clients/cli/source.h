/* source.h - a training text on its way to the service: a file, or what stdin or another pipe brings.
 *
 * A text that the service has already, by size and hash, is not sent again. */
#ifndef CLI_SOURCE_H
#define CLI_SOURCE_H

#include "clients/cli/cli.h"

enum { SOURCE_DIGEST_BYTES = 17, SOURCE_ID_BYTES = 64 };

#define SOURCE_FORMAT_OPTION                                                                                           \
	{"format", OPTION_TEXT, "NAME:auto|text|json",                                                                 \
	 "how to read FILE: auto, by its name and content; text, also when it begins like JSON (auto)", NULL}

typedef struct source {
	const char *name;   /* as the user wrote it, or "stdin" */
	const char *format; /* format for the service: auto, text or json */
	char path[32];    /* path of the copy of a pipe; "": it is a file */
	FILE *file;
	long long bytes;
	char digest[SOURCE_DIGEST_BYTES];
	char id[SOURCE_ID_BYTES]; /* on the service */
	bool uploaded;            /* by this command */
} source;

/* Open it; format: NULL is auto. "-" is stdin, and a pipe is read to its end into a file without a name. False: it cannot be read, after a
 * complaint. Close it either way. */
bool source_open(source *s, const char *argument, const char *format);
/* Upload it as a new file of the service with this purpose, which deletes it after `lifetime` seconds (-1: never); the file's object, or
 * NULL. */
json_t *source_upload(cli *c, const source *s, const char *purpose, int64_t lifetime);
/* Fill in the id: of a file that the service has with these bytes, this format and purpose, or of a new one. False after a complaint. */
bool source_send(cli *c, source *s, const char *purpose);
/* Delete what this command has uploaded. */
void source_take_back(cli *c, source *s);
void source_close(source *s);

#endif
