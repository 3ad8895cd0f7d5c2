#include "tests/bench/support/bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu.h"

void bench_fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(EXIT_FAILURE);
}

void bench_check(status s, const error *err)
{
	if (s == STATUS_OK)
		return;
	if (s != STATUS_UNSUPPORTED)
		bench_fail("%s: %s %s", status_name(s), err->param, error_message(err));
	printf("{\"unsupported\": \"%s\"}\n", error_message(err));
	exit(EXIT_SUCCESS);
}

/* --- times ------------------------------------------------------------------ */

void bench_times_add(bench_times *t, double ns)
{
	if (t->count == t->capacity) {
		t->capacity = t->capacity ? 2 * t->capacity : 64;
		t->ns = realloc(t->ns, (size_t)t->capacity * sizeof *t->ns);
		if (!t->ns)
			bench_fail("out of memory");
	}
	t->ns[t->count++] = ns;
}

void bench_times_free(bench_times *t)
{
	free(t->ns);
	*t = (bench_times){0};
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double bench_times_median(bench_times *t)
{
	qsort(t->ns, (size_t)t->count, sizeof *t->ns, ascending);
	return t->ns[t->count / 2];
}

double bench_times_p95(bench_times *t)
{
	bench_times_median(t);
	return t->ns[t->count * 95 / 100];
}

double bench_times_p99(bench_times *t)
{
	bench_times_median(t);
	return t->ns[t->count * 99 / 100];
}

double bench_times_best(bench_times *t)
{
	bench_times_median(t);
	return t->ns[0];
}

/* --- models ----------------------------------------------------------------- */

static backend *open_backend(bool background)
{
	backend *b;
	error err = ERROR_INIT;
	const backend_options options = {.background = background};
	const char *name = getenv("ADDITIVE_BENCH_BACKEND");
	bench_check(backend_open(&b, name ? name : "cpu", &options, cpu_open, 0, &err), &err);
	return b;
}

backend *bench_backend(void)
{
	return open_backend(false);
}

backend *bench_backend_in_background(void)
{
	return open_backend(true);
}

json_t *bench_json(const char *text)
{
	json_error_t where;
	json_t *json = json_loads(text, 0, &where);
	if (!json)
		bench_fail("%s: column %d: %s", text, where.column, where.text);
	return json;
}

model *bench_model(const char *config, backend *b)
{
	model *m;
	error err = ERROR_INIT;
	json_t *json = bench_json(config);
	const char *type = json_string_value(json_object_get(json, "model_type"));
	const architecture *a = type ? architecture_find(type) : &architecture_additive;
	if (!a)
		bench_check(error_set(&err, STATUS_UNSUPPORTED, NULL, "no architecture %s", type), &err);
	bench_check(model_create(&m, a, json, 1, b, &err), &err);
	json_decref(json);
	return m;
}

void bench_model_folder(char *folder, const char *config, backend *b)
{
	error err = ERROR_INIT;
	model *m = bench_model(config, b);
	strcpy(folder, "/tmp/additive-bench-XXXXXX");
	if (!mkdtemp(folder))
		bench_fail("cannot make a temporary folder");
	bench_check(model_save(m, folder, &err), &err);
	model_free(m);
}

dtype bench_dtype(const char *name)
{
	static const struct {
		const char *name;
		dtype type;
	} types[] = {{"fp32", DTYPE_PANEL_F32}, {"bf16", DTYPE_PANEL_BF16}, {"int8", DTYPE_PANEL_INT8}};
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		if (strcmp(types[i].name, name) == 0)
			return types[i].type;
	bench_fail("\"%s\" is not fp32, bf16 or int8", name);
}

/* --- contests --------------------------------------------------------------- */

void bench_contest(const json_t *facts, void (*run)(void *context, int count, bench_times *t), void *context)
{
	char line[32];
	json_dumpf(facts, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		bench_times t = {0};
		run(context, atoi(line), &t);
		printf("{\"ns\": [");
		for (int i = 0; i < t.count; i++)
			printf("%s%.0f", i ? ", " : "", t.ns[i]);
		printf("]}\n");
		fflush(stdout);
		bench_times_free(&t);
	}
}

/* --- memory ----------------------------------------------------------------- */

double bench_peak(void)
{
	char line[128];
	long kilobytes = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "VmHWM: %ld", &kilobytes) == 1)
			break;
	if (!f || !kilobytes)
		bench_fail("/proc/self/status has no VmHWM");
	fclose(f);
	return (double)kilobytes * 1024;
}

void bench_peak_reset(void)
{
	FILE *f = fopen("/proc/self/clear_refs", "w");
	if (!f || fputs("5", f) < 0 || fclose(f) != 0)
		bench_fail("/proc/self/clear_refs cannot be written");
}
