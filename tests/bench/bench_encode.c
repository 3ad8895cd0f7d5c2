/* bench_encode FOLDER FILE THREADS REPEATS [whole]: time that the tokenizer in FOLDER takes for FILE. It encodes the
 * lines in parallel on THREADS threads, or all of it as one text. Prints the bytes, the tokens, the peak of memory in
 * KiB, and seconds. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/base/file.h"
#include "engine/text/tokenizer.h"

typedef struct lines {
	const char **begin; /* [count + 1] */
	size_t count;
} lines;

static lines find_lines(const char *text, size_t bytes, bool whole)
{
	lines l = {.begin = malloc((bytes + 2) * sizeof(char *))};
	const char *end = text + bytes;
	if (!l.begin)
		exit(1);
	for (const char *at = text; at < end;) {
		const char *next = whole ? NULL : memchr(at, '\n', (size_t)(end - at));
		l.begin[l.count++] = at;
		at = next ? next + 1 : end;
	}
	l.begin[l.count] = end;
	return l;
}

static size_t encode_all(const tokenizer *t, const lines *l, int threads)
{
	size_t tokens = 0;
#pragma omp parallel for schedule(dynamic, 64) reduction(+ : tokens) num_threads(threads)
	for (size_t i = 0; i < l->count; i++) {
		token_list out;
		size_t bytes = (size_t)(l->begin[i + 1] - l->begin[i]);
		bytes -= bytes > 0 && l->begin[i][bytes - 1] == '\n';
		if (tokenizer_encode(t, l->begin[i], bytes, NULL, &out, NULL) != STATUS_OK)
			abort();
		tokens += out.count;
		token_list_fini(&out);
	}
	return tokens;
}

int main(int argc, char **argv)
{
	error err = ERROR_INIT;
	tokenizer *t;
	file_map map;
	if (argc < 5) {
		fprintf(stderr, "bench_encode FOLDER FILE THREADS REPEATS [whole]\n");
		return 2;
	}
	if (tokenizer_open(&t, argv[1], INT64_MAX, &err) != STATUS_OK ||
	    file_map_open(&map, argv[2], &err) != STATUS_OK) {
		fprintf(stderr, "%s\n", error_message(&err));
		return 1;
	}
	lines l = find_lines((const char *)map.data, map.bytes, argc > 5);
	struct rusage used;
	for (int i = 0; i < atoi(argv[4]); i++) {
		double start = omp_get_wtime();
		size_t tokens = encode_all(t, &l, atoi(argv[3]));
		double seconds = omp_get_wtime() - start;
		getrusage(RUSAGE_SELF, &used);
		printf("%zu %zu %ld %.6f\n", map.bytes, tokens, used.ru_maxrss, seconds);
	}
	free(l.begin);
	file_map_close(&map);
	tokenizer_free(t);
	return 0;
}
