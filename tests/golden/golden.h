/* golden.h - golden files as input: the config, weights and inputs of a source are read from safetensors files. Every
 * value that can be computed from them is written under the source's own name and shape.
 *
 * The tensors of all files form one set, in which a name occurs once, or in several files with the same bytes. There are
 * two exceptions. A float32 weight may share its name with its gradient, in float64 in another file. A float64 value [1]
 * may share its name with a value [T] of another file that begins with it and has one number a step; the longer counts.
 *
 * Each source has a reader, a file of the folder golden/. It recognises its sets, builds what they need of the core (a
 * model in memory, or a graph of single ops), and adds results. A value of the set that is neither read nor written
 * cannot be computed by the program.
 *
 *   static status evaluate(golden *g, error *err)
 *   {
 *       extent e;
 *       const float *x;
 *       TRY(golden_rank(g, "x", 3, &e, err));
 *       TRY(golden_floats(g, "x", e, &x, err));
 *       …
 *       float *y;
 *       TRY(golden_result(g, e, &y, err, "%s.y", prefix));
 *   }
 *   const golden_reader golden_reader_NAME = {.source = "what it reads", .recognises = recognises, …};
 *
 * The results of these functions (numbers, models, plans, pools) belong to the set and are freed with it. Errors name
 * the tensor, and golden_evaluate's *blame the file. */
#ifndef TESTS_GOLDEN_GOLDEN_H
#define TESTS_GOLDEN_GOLDEN_H

#include "tests/golden/options.h"

/* A tensor of the set. */
typedef struct golden_tensor {
	const safetensors_entry *entry;
	int file;
	bool known;                        /* an input, a weight, or a value that was computed */
	const safetensors_entry *gradient; /* gradient of a weight, stored under its name; NULL: none */
	int gradient_file;
	bool gradient_known;
} golden_tensor;

typedef struct golden {
	const eval_options *options;
	backend *backend;
	results *results;
	safetensors *files[OPTIONS_MAX_GOLDEN];
	golden_tensor *tensors; /* by name */
	int count;
	json_t *config;             /* an object: the keys of all files */
	const char *blame;          /* the file or files that a failure is about */
	struct golden_owned *owned; /* freed in reverse order */
	int n_owned, owned_capacity;
} golden;

typedef struct golden_reader {
	const char *source; /* for messages */
	bool recurrent;     /* has a recurrent form */
	bool (*recognises)(const golden *g);
	status (*evaluate)(golden *g, error *err);
	/* True if the value of that name is computed with --gradients only. NULL: none is. */
	bool (*is_gradient)(const char *name);
} golden_reader;

/* Add all results of the set that o->golden names, and list the values that are not computed on stderr. STATUS_INVALID:
 * a tensor is in two files, no reader recognises the set, a tensor is missing, has the wrong shape or type or a number
 * that is not finite. *blame: the file that a failure is about. */
status golden_evaluate(results *out, const eval_options *o, backend *b, const char **blame, error *err);

/* --- for readers ------------------------------------------------------------------------ */

/* The tensor of that name (printf-style), or NULL. */
golden_tensor *golden_find(const golden *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A value of the files' metadata, the first one of that key; NULL: none has it. */
const char *golden_metadata(const golden *g, const char *key);
/* The file that holds the gradient of that weight under the weight's name; NULL: none does. */
const char *golden_gradient_file(const golden *g, const char *name);
/* `count` zeroed elements. STATUS_NOMEM. */
status golden_memory(golden *g, int64_t count, size_t size, void **out, error *err);

/* A tensor that must be there. */
status golden_input(golden *g, const char *name, const golden_tensor **out, error *err);
/* The shape of a tensor that must be there with that rank and not be empty. */
status golden_rank(golden *g, const char *name, int rank, extent *out, error *err);
/* The numbers of a tensor that must be there with that shape: finite as f32, or integers from `min` to `max`. */
status golden_floats(golden *g, const char *name, extent e, const float **out, error *err);
status golden_integers(golden *g, const char *name, extent e, int32_t min, int32_t max, const int32_t **out,
                       error *err);
/* 0 or 1 for pairs of a query and a key, [N,S] or `of_each` sequence [B,N,S], as a port for all heads has them:
 * [B,H,N,S], which `all` is. */
status golden_visible(golden *g, const int32_t *pairs, bool of_each, shape all, const int32_t **out, error *err);
/* Keys of the config: an integer from 1 up to `max`, which must be there; a number of at least 0. */
status golden_config_integer(golden *g, const char *key, int64_t max, int64_t *out, error *err);
status golden_config_number(golden *g, const char *key, double fallback, double *out, error *err);

/* A new model, whose weights are not the set's. */
status golden_new_model(golden *g, const architecture *a, const json_t *config, model **out, error *err);
/* A model of the set's weights, under the names, aliases and prefix of the architecture. config: as in config.json.
 * cut: of this table the model may have fewer rows, the first ones; NULL: of none. */
status golden_model(golden *g, const architecture *a, const json_t *config, const char *cut, model **out, error *err);
/* A value of the set, zeroed, to be filled; of a weight's name, its gradient. STATUS_INVALID when the set holds it with
 * another shape. */
status golden_result(golden *g, extent e, float **out, error *err, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Add a value of integers that f32 cannot represent. */
status golden_result_integers(golden *g, extent e, int64_t **out, error *err, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* A whole output of a plan under a name of the set. */
status golden_output(golden *g, plan *p, value v, extent e, error *err, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
/* A plan of a graph, which it takes over. `pool`: of golden_pool, bound to the state "pool" of the graph; NULL: none.
 */
status golden_plan(golden *g, graph *made, float *pool, plan **out, error *err);
/* Return such a plan with the caller's memory for n values of the graph. */
status golden_bound_plan(golden *g, graph *made, const plan_binding *bindings, int n, plan **out, error *err);
/* Append the gradients of Σ y ⊙ dy for every f32 input that the graph has so far; dy, an input of y's shape, is given
 * back. After it, graph_gradient. */
value golden_backward(graph *made, value y);
/* The plan of a forward (model_plan), with slots of its own where it is recurrent. */
status golden_forward(golden *g, const model *m, const forward_spec *spec, plan **out, error *err);
/* A recurrent one with the slots of golden_pool. */
status golden_pooled_forward(golden *g, const model *m, const forward_spec *spec, float *pool, plan **out, error *err);
/* Return a plan whose gradients are in memory laid out like the model's arena. */
status golden_backward_into(golden *g, const model *m, const forward_spec *spec, float *gradients, plan **out,
                            error *err);
/* Device memory for recurrent state, zeroed. */
status golden_pool(golden *g, int64_t floats, float **out, error *err);

#define GOLDEN_READER(name) extern const golden_reader golden_reader_##name;
#include "gen/golden_readers.def"
#undef GOLDEN_READER

#endif
