/* parameters.h - a model's weights: names, shapes, initial values, and their layout in a checkpoint.
 *
 * Parameters have their checkpoint names in the graph, so a shape is written once. A matrix is [outputs, inputs] in
 * memory, whatever the checkpoint holds. A quantised matrix of plain weights is quantised in the graph, so training
 * sees what serving reads. Packed weights are quantised when they are loaded; int8 panels hold the same codes. */
#ifndef ENGINE_MODEL_PARAMETERS_H
#define ENGINE_MODEL_PARAMETERS_H

#include "engine/base/error.h"
#include "engine/tensor/tensor.h"

/* Name under which our checkpoints store a parameter that has two names. */
typedef enum parameter_names { WRITE_NAME, WRITE_BOTH, WRITE_ALIAS } parameter_names;

/* The initialisation of a parameter. */
typedef enum parameter_init {
	INIT_NORMAL,          /* N(0, std²) */
	INIT_NORMAL_SEQUENCE, /* N(0, std²) from one mt19937.h sequence shared by all such parameters in order */
	INIT_UNIFORM,         /* uniform around 0 with variance std² */
	INIT_ZERO,
	INIT_ONE,
	INIT_CONSTANT, /* the number in parameter_spec.std */
	INIT_CURVE,    /* element i: parameter_spec.curve at i */
	INIT_VALUES    /* values from parameter_list_values */
} parameter_init;

/* offset + scale (i / length)^exponent */
typedef struct parameter_curve {
	double offset, scale, length, exponent;
} parameter_curve;

typedef struct parameter_spec {
	char name[128]; /* tensor name in the checkpoint */
	shape shape;    /* in the graph; for a matrix: [outputs, inputs] */
	parameter_init init;
	float std;           /* INIT_NORMAL, INIT_NORMAL_SEQUENCE, INIT_UNIFORM: σ. INIT_CONSTANT: the value itself */
	const float *values; /* INIT_VALUES: one for each element, borrowed */
	parameter_curve curve;
	int drawn_first; /* INIT_NORMAL_SEQUENCE: number of rows at the end that are drawn before all others, last row
	                  * first */
	bool matrix;     /* read only by linear, linear_cross_entropy and gather, so it may be packed (panel.h) */
	int bits;        /* bits of a matrix that is quantised before it is read (quantize in ops.h); 0 or 32: not
	                  * quantised */
	bool log_counts; /* in a new model: log2(count of token i in its training texts + ½), from model_set_counts */
	bool transposed; /* the checkpoint holds [inputs, outputs] */
	shape stored;    /* shape in the checkpoint, with the same number of elements; rank 0: as in the graph */
	char alias[128]; /* second checkpoint name with the same data (tied weights), or "" */
	parameter_names written;
	bool by_row; /* a table of which a batch reads a few rows; gradients are normalised by row */
	bool hidden; /* a matrix between vectors of the layers: no table, and no head with a row for each output */
	bool fixed;  /* not trained: no gradient, stored after all others in the arena */
} parameter_spec;

/* Return the shape in the checkpoint. */
shape parameter_stored_shape(const parameter_spec *p);
/* Convert values from the checkpoint's layout to the graph's, and back. */
void parameter_load(const parameter_spec *p, const float *stored, float *values);
void parameter_store(const parameter_spec *p, const float *values, float *stored);
/* True if the name of a tensor ends so. */
bool parameter_name_ends(const char *name, const char *end);

/* Ordered list of parameter_spec; grows as needed. Starts zeroed; `status` is STATUS_NOMEM once an item could not be
 * added. */
typedef struct parameter_list {
	parameter_spec *items;
	int count, capacity;
	status status;
} parameter_list;
void parameter_list_add(parameter_list *list, parameter_init init, float std, shape s, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Add a hidden matrix of n outputs and k inputs with values from N(0, std²). */
void parameter_list_add_matrix(parameter_list *list, float std, int64_t n, int64_t k, bool transposed,
                               const char *format, ...) __attribute__((format(printf, 6, 7)));
/* Set the shape in the checkpoint of the last one added. */
void parameter_list_stored(parameter_list *list, shape stored);
/* Set the initial values of the last one added; they are borrowed and must outlive the list. */
void parameter_list_values(parameter_list *list, const float *values);
/* Set INIT_CURVE and the curve of the last one added. */
void parameter_list_curve(parameter_list *list, parameter_curve curve);
/* Quantise the last one added to `bits` bits. */
void parameter_list_quantized(parameter_list *list, int bits);
/* The last one added, one number for each token, follows from token counts; until they are set, all counts are 0. */
void parameter_list_log_counts(parameter_list *list);
/* Give the last one added a second name. `written`: our checkpoints store it under both. */
void parameter_list_alias(parameter_list *list, const char *alias, bool written);
/* Initialise the last one added from the shared normal sequence; its last `drawn_first` rows are drawn before the
 * others. */
void parameter_list_sequence(parameter_list *list, int drawn_first);
/* The last one added is a table: set by_row, and it is not `hidden`. */
void parameter_list_by_row(parameter_list *list);
/* The last matrix added is that of a head, so it is not `hidden`. */
void parameter_list_head(parameter_list *list);
/* Set `fixed` of the last one added. */
void parameter_list_fixed(parameter_list *list);
void parameter_list_free(parameter_list *list);

#endif
