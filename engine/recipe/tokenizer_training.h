/* tokenizer_training.h - `additived train-tokenizer`: trains a tokenizer, in a process of its own.
 *
 * additived train-tokenizer --spec JSON --out FOLDER [--json] FILE…: the tokenizer that the spec describes, trained on
 * the texts, as files in a new folder. Exit status: 0; 1 when it cannot be done: stderr says why, or with --json
 * stdout, as
 * {"status","param","message"}. The process ends with the one that started it. */
#ifndef ENGINE_RECIPE_TOKENIZER_TRAINING_H
#define ENGINE_RECIPE_TOKENIZER_TRAINING_H

#include <stdbool.h>

bool tokenizer_training_is_asked(int argc, char **argv);
/* argv[0] is the name of the command. Returns the exit status. */
int tokenizer_training_run(int argc, char **argv);

#endif
