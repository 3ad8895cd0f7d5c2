/* trilinear.h - configurations of 3Lin that its tests share. Include after cmocka.h. */
#ifndef TESTS_UNIT_MODEL_TRILINEAR_H
#define TESTS_UNIT_MODEL_TRILINEAR_H

#include "engine/model/feed.h"
#include "tests/unit/model/fixture.h"
#include "tests/unit/model/device.h"

enum { B = 2, N = 37, V = 37, D = 20, T = 32, H = 2, SLOTS = 3 };

#include "tests/unit/model/forms.h"

#define SIZES "\"hidden_size\": 20, \"key_size\": 12, \"value_size\": 32, \"n_heads\": 2, \"vocab_size\": 37"
#define SEED "{" SIZES ", \"n_layer\": 6, \"window_size\": 6, \"wide_window_size\": 11}"
#define HEAD                                                                                                           \
	"{" SIZES ", \"profile\": \"head\", \"combiner_init\": \"random\", \"n_layer\": 15, \"combine_layers\": true," \
	" \"wide_window_size\": 9}"
#define PLACED                                                                                                         \
	"{" SIZES ", \"n_layer\": 2, \"window_size\": 6, \"combiner_init\": \"random\", \"n_positions\": 29,"          \
	" \"position_embedding\": \"learned\", \"weight_bits\": 8}"
#define HASHED                                                                                                         \
	"{" SIZES ", \"n_layer\": 2, \"window_size\": 6, \"combiner_init\": \"random\", \"input\": \"hashed\","        \
	" \"init_generator\": \"mt19937\"}"
#define MATCHED "{" SIZES ", \"n_layer\": 2, \"window_size\": 6, \"combiner_init\": \"random\", \"match_window\": 64}"
#define HASHED_MATCHES                                                                                                 \
	"{" SIZES ", \"n_layer\": 2, \"window_size\": 6, \"combiner_init\": \"random\", \"match_window\": 36,"         \
	" \"input\": \"hashed\"}"
#define BOTH_WAYS                                                                                                      \
	"{" SIZES ", \"n_layer\": 2, \"combiner_init\": \"random\", \"n_positions\": 40,"                              \
	" \"position_embedding\": \"learned\", \"bidirectional\": true}"
#define TWO_BITS "{" SIZES ", \"n_layer\": 2, \"weight_bits\": 2}"

static inline int index_of(const model *m, const char *name)
{
	for (int i = 0; i < model_tensor_count(m); i++)
		if (strcmp(model_parameter(m, i)->name, name) == 0)
			return i;
	fail_msg("no parameter %s", name);
	return -1;
}

#endif
