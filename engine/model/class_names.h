/* class_names.h - what the classes of a HEAD_CLASSES model are called.
 *
 * In config.json the names are those of Hugging Face: "id2label": {"0": NAME, …}, and the same the other way round as
 * "label2id". Without them class i is "LABEL_i". config_classes (config.h) has checked what is read here. */
#ifndef ENGINE_MODEL_CLASS_NAMES_H
#define ENGINE_MODEL_CLASS_NAMES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* The names of a configuration, as an array of strings in the order of the classes. New reference; NULL when out of
 * memory. */
json_t *class_names_read(const json_t *config, int64_t classes);
/* Add them to a configuration, unless they are what it means without. False: out of memory. */
bool class_names_write(json_t *config, const json_t *names);

#endif
