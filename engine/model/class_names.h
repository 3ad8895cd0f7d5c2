/* class_names.h - the names of the classes of a classifier.
 *
 * In config.json the names are those of Hugging Face: "id2label": {"0": NAME, …}, and the inverse as "label2id".
 * Without them class i is "LABEL_i". config_classes (config.h) has validated the input of these functions. */
#ifndef ENGINE_MODEL_CLASS_NAMES_H
#define ENGINE_MODEL_CLASS_NAMES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Return the names of a configuration as an array of strings in the order of the classes. New reference; NULL: out of
 * memory. */
json_t *class_names_read(const json_t *config, int64_t classes);
/* Add the names to a configuration, unless they are the default. False: out of memory. */
bool class_names_write(json_t *config, const json_t *names);

#endif
