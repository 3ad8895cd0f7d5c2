/* commands.h - all commands, and finding one among them. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "clients/cli/cli.h"
#include "proto/nearest.h"

enum { COMMANDS_WORD_BYTES = 64, COMMANDS_SUMMARY_BYTES = 256 };

/* The options of every command; ends with a NULL name. */
extern const option_row commands_common[];

/* The n-th command, or NULL after the last. Commands with the same first word are adjacent. */
const command *commands_at(int n);
/* The first word of a command's name, in out. */
const char *commands_word(const command *k, char out[COMMANDS_WORD_BYTES]);
/* True if k has a second word. */
bool commands_is_grouped(const command *k);
/* True if it is the first word of commands that have two. */
bool commands_is_group(const char *word);
/* Summary of the commands with k's first word: that of a single one, or the second words of a group. */
const char *commands_summary(const command *k, char out[COMMANDS_SUMMARY_BYTES]);

/* The command that argv begins with, and how many words its name takes there; NULL: there is none. The first of a group
 * may be called by the group alone. */
const command *commands_find(int argc, char **argv, int *words);
/* The command nearest to what was typed: within its group, or by the first word of all. NULL: none is near. */
const char *commands_nearest(int argc, char **argv, nearest *near);

#endif
