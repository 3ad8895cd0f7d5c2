/* complete.h - completions of a command line, from the tables of commands and options alone. */
#ifndef CLI_COMPLETE_H
#define CLI_COMPLETE_H

#include "clients/cli/cli.h"

typedef enum complete_kind { COMPLETE_WORDS, COMPLETE_FILES, COMPLETE_FOLDERS } complete_kind;

typedef struct completion {
	text words;                      /* "WORD\tHELP\n" for each word that the last one can become */
	complete_kind kind;              /* beside them, what the shell knows better */
	const char *list;                /* beside them, the names in this list of the service, or NULL */
	int kept;                        /* bytes of the last word that are kept: completions follow them */
	const char *url, *key, *issuers; /* values of --url, --api-key and --ca in the line, or NULL */
} completion;

/* Complete the last one of n words after the program's name; n is at least 1, and the last word may be "". Strings
 * point into the words. Free with complete_free. */
void complete_line(completion *out, int n, char **words);
/* Append "WORD\tHELP\n" if `name` completes the last word after its kept bytes. */
void complete_offer(completion *out, const char *last, const char *name, const char *help);
void complete_free(completion *c);

#endif
