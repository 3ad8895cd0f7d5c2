/* dilated_set.h - dilated attention in the config of golden sets: "heads", and one number a branch in "segment" and
 * "dilation", or as torchscale calls them "segment_length" and "dilated_ratio". */
#ifndef TESTS_GOLDEN_DILATED_SET_H
#define TESTS_GOLDEN_DILATED_SET_H

#include "tests/golden/golden.h"
#include "engine/tensor/ops.h"

/* True if this object is such a config. */
bool dilated_set_is_config(const json_t *json);
/* True for a set of a module with projections (attention_module.h). */
bool dilated_set_is_module(const golden *g);
/* An integer of it, of a size. */
status dilated_set_size(const json_t *json, const char *key, int64_t *out, error *err);
/* heads, segments and dilations; other members of *out are unchanged. The op checks the branches' numbers. */
status dilated_set_read(const json_t *json, dilated_params *out, error *err);

#endif
