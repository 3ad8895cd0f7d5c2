/* names.h - the service's list of possible names for an argument or an option of a command.
 *
 * All functions return a path whose answer has the names as the members "id" of "data", or NULL: the service has no
 * list of them. */
#ifndef CLI_NAMES_H
#define CLI_NAMES_H

#include "clients/cli/cli.h"

enum { NAMES_WORD_BYTES = 64 };

/* The word for the n-th argument (from 0) in k->arguments, such as "FILE" in "MODEL [FILE...]"; one with "..." covers
 * all following arguments. False: the command takes no such argument. */
bool names_argument(const command *k, int n, char out[NAMES_WORD_BYTES]);
/* The list for the n-th argument. */
const char *names_of_argument(const command *k, int n);
/* The list for the value of an option. */
const char *names_of_option(const option_row *row);

#endif
