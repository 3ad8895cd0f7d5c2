/* kinds.h - a small model of each kind of attention, and of each head. Include after fixture.h. */
#ifndef TESTS_UNIT_SERVE_KINDS_H
#define TESTS_UNIT_SERVE_KINDS_H

static const struct {
	const char *name, *config;
} models[] = {
    {"additive", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 4, \"n_positions\": 300, \"n_layer\": 2,"
                 " \"window_sizes\": [5, 300], \"initializer_range\": 0.3}"},
    {"gpt2", "{\"n_embd\": 32, \"vocab_size\": 259, \"n_head\": 4, \"n_positions\": 300, \"n_layer\": 2,"
             " \"initializer_range\": 0.3}"},
    {"linear", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 4, \"n_positions\": 300, \"n_layer\": 2}"},
    {"dilated", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 4, \"n_positions\": 300, \"n_layer\": 2,"
                " \"segment_length\": [4, 24, 90], \"dilated_ratio\": [1, 2, 3]}"},
    {"trilinear", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 2, \"n_layer\": 2, \"window_size\": 9,"
                  " \"wide_window_size\": 20}"},
    {"additive2", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 4, \"n_layer\": 2}"},
    {"additive2", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 8, \"n_layer\": 2,"
                  " \"window_layers\": [1], \"window\": 9}"},
    {"additive2", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 8, \"n_layer\": 2,"
                  " \"linear_layers\": [0]}"},
    {"additive2", "{\"hidden_size\": 32, \"vocab_size\": 259, \"n_heads\": 8, \"n_layer\": 2,"
                  " \"window_sizes\": [5, 0]}"},
    {"rwkv", "{\"hidden_size\": 32, \"vocab_size\": 259, \"num_hidden_layers\": 2, \"rescale_every\": 1}"},
    {"linear_encoder", "{\"d_model\": 32, \"encoder_attention_heads\": 4, \"encoder_layers\": 2, \"vocab_size\": 259,"
                       " \"max_position_embeddings\": 300, \"num_labels\": 3, \"init_std\": 0.3}"},
    {"linear_encoder", "{\"d_model\": 32, \"encoder_attention_heads\": 4, \"encoder_layers\": 2, \"vocab_size\": 259,"
                       " \"max_position_embeddings\": 300, \"num_labels\": 3, \"init_std\": 0.3, \"pooling\": \"end\","
                       " \"pad_policy\": \"ignore\"}"},
    {"bart", "{\"d_model\": 32, \"encoder_attention_heads\": 4, \"encoder_layers\": 1, \"vocab_size\": 259,"
             " \"max_position_embeddings\": 300, \"num_labels\": 3, \"init_std\": 0.3,"
             " \"encoder_attention\": \"linear\"}"},
};
/* Number of models before BART, which needs token 2 in its texts and reads masked tokens. */
enum { MODELS = sizeof models / sizeof *models - 1, ENCODER = 10, BART = MODELS };

static inline void write_named(const fixture *f, int kind)
{
	write_configured(f->folder, f->backend, models[kind].name, models[kind].config);
}

static inline void open_named(fixture *f, int kind, dtype weights, bool fast)
{
	fixture_folder(f);
	if (fast) {
		backend_close(f->backend);
		assert_int_equal(cpu_open(&f->backend, 2, NULL), STATUS_OK);
	}
	write_named(f, kind);
	fixture_serve_as(f, &roomy, weights);
}

#endif
