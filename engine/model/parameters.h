/* parameters.h - what a model's weights are: names, shapes, first values, and their layout in a checkpoint. */
#ifndef ENGINE_MODEL_PARAMETERS_H
#define ENGINE_MODEL_PARAMETERS_H

#include "engine/base/error.h"
#include "engine/tensor/tensor.h"

/* Under which names checkpoints that we write hold a parameter that has two. */
typedef enum parameter_names { WRITE_NAME, WRITE_BOTH, WRITE_ALIAS } parameter_names;

/* How a parameter is initialised. */
typedef enum parameter_init {
	INIT_NORMAL,          /* N(0, std²) */
	INIT_NORMAL_SEQUENCE, /* the same, of one sequence of mt19937.h through all such parameters in their order */
	INIT_UNIFORM,         /* of the same variance around 0 */
	INIT_ZERO,
	INIT_ONE,
	INIT_CONSTANT, /* std */
	INIT_VALUES    /* those of parameter_list_values */
} parameter_init;

typedef struct parameter_spec {
	char name[128]; /* tensor name in the checkpoint */
	shape shape;    /* in the graph; of a matrix: [outputs, inputs] */
	parameter_init init;
	float std;          /* INIT_NORMAL, INIT_NORMAL_SEQUENCE, INIT_UNIFORM, INIT_CONSTANT */
	const float *first; /* INIT_VALUES: borrowed */
	int drawn_first; /* INIT_NORMAL_SEQUENCE: so many rows at the end are drawn before all others, the last first */
	bool matrix;        /* read by linear, linear_cross_entropy and gather only, so it may be packed (panel.h) */
	int bits;        /* of a matrix that is quantised before it is read (quantize in ops.h); 0 or 32: it is not */
	bool log_counts; /* of a new model: log2(how often token i is in its training texts + ½), model_set_counts */
	bool transposed; /* the checkpoint holds [inputs, outputs] */
	shape stored;    /* in the checkpoint, of as many numbers; rank 0: as in the graph */
	char alias[128]; /* a second checkpoint name holding the same data (tied weights), or "" */
	parameter_names written;
	bool by_row; /* a table of which a batch reads a few rows: gradients are normalised by row */
	bool fixed;  /* not trained: no gradient, and behind all others in the arena */
} parameter_spec;

/* The shape in the checkpoint; values from the checkpoint's layout to the graph's, and back. */
shape parameter_stored_shape(const parameter_spec *p);
void parameter_load(const parameter_spec *p, const float *stored, float *values);
void parameter_store(const parameter_spec *p, const float *values, float *stored);

/* Collects parameter_specs in order; grows as needed. Starts zeroed; `status` is
 * STATUS_NOMEM once an item could not be added. */
typedef struct parameter_list {
	parameter_spec *items;
	int count, capacity;
	status status;
} parameter_list;
void parameter_list_add(parameter_list *list, parameter_init init, float std, shape s, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* A matrix of n outputs and k inputs with values from N(0, std²). */
void parameter_list_add_matrix(parameter_list *list, float std, int64_t n, int64_t k, bool transposed,
                               const char *format, ...) __attribute__((format(printf, 6, 7)));
/* Of the last one added: its shape in the checkpoint; its first values, which stay as long as the list. */
void parameter_list_stored(parameter_list *list, shape stored);
void parameter_list_values(parameter_list *list, const float *first);
/* The last one added is quantised to so many bits. */
void parameter_list_quantized(parameter_list *list, int bits);
/* The last one added, one number for each token, follows from how often each occurs; until then no token has. */
void parameter_list_log_counts(parameter_list *list);
/* Give the last one added a second name; `written`: checkpoints that we write hold it under both. */
void parameter_list_alias(parameter_list *list, const char *alias, bool written);
/* The last one added begins with normal values of the one sequence, its last `drawn_first` rows before the others. */
void parameter_list_sequence(parameter_list *list, int drawn_first);
/* Of the last one added: by_row, fixed. */
void parameter_list_by_row(parameter_list *list);
void parameter_list_fixed(parameter_list *list);
void parameter_list_free(parameter_list *list);

#endif
