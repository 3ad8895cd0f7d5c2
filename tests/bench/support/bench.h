/* bench.h - shared by the measuring programs: times, models of random weights, and the output that bench.py reads, one
 * JSON object per line on standard output. */
#ifndef TESTS_BENCH_SUPPORT_BENCH_H
#define TESTS_BENCH_SUPPORT_BENCH_H

#include "engine/model/model.h"

typedef struct bench_times {
	double *ns; /* owned */
	int count, capacity;
} bench_times;

/* Append; exits the program when out of memory, as everything here does on failure. */
void bench_times_add(bench_times *t, double ns);
void bench_times_free(bench_times *t);
/* Sorts the times. */
double bench_times_median(bench_times *t);
double bench_times_p95(bench_times *t);
double bench_times_p99(bench_times *t);
double bench_times_best(bench_times *t);

/* Print the error and exit. */
void bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Exit when s is an error, other than STATUS_UNSUPPORTED: then {"unsupported": words} is printed and the exit is clean,
 * so that a build that lacks something can still be measured. */
void bench_check(status s, const error *err);

/* The backend that ADDITIVE_BENCH_BACKEND names; without it the CPU's, with all threads this process may have
 * (OMP_NUM_THREADS). */
backend *bench_backend(void);
/* Open a backend in the background: a second stream of a device (backend_options). */
backend *bench_backend_in_background(void);
/* A JSON object from text. */
json_t *bench_json(const char *text);
/* A model of a config.json (its text); without "model_type" the first architecture. */
model *bench_model(const char *config, backend *b);
/* Save such a model in a new temporary folder, which the caller removes. `folder` has BENCH_FOLDER_BYTES. */
enum { BENCH_FOLDER_BYTES = 64 };
void bench_model_folder(char *folder, const char *config, backend *b);
/* "fp32", "bf16" or "int8" as the weights of a served model. */
dtype bench_dtype(const char *name);

/* Be a contestant: print `facts` (borrowed) as the ready line, then answer each line of standard input, a count, by
 * {"ns": [count times]}. `run` appends `count` times. */
void bench_contest(const json_t *facts, void (*run)(void *context, int count, bench_times *t), void *context);

/* Peak resident memory of this process in bytes, since its start or the last bench_peak_reset. */
double bench_peak(void);
void bench_peak_reset(void);

#endif
