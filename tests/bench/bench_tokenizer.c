/* bench_tokenizer - encoding the lines of a text: a contestant.
 *
 *   bench_tokenizer FOLDER TEXT THREADS
 *
 * A round encodes every line, lines shared out among the threads. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/text/tokenizer.h"
#include "tests/bench/support/bench.h"

typedef struct lines {
	const tokenizer *t;
	byte_range *lines;
	const char *text;
	int64_t count, tokens;
	int threads;
} lines;

static void find_lines(lines *l, const file_map *map)
{
	l->lines = memory_new(map->bytes + 1, sizeof *l->lines);
	l->text = (const char *)map->data;
	if (!l->lines)
		bench_fail("out of memory");
	for (size_t at = 0; at < map->bytes;) {
		const char *end = memchr(l->text + at, '\n', map->bytes - at);
		const size_t bytes = end ? (size_t)(end - l->text) - at : map->bytes - at;
		l->lines[l->count++] = (byte_range){at, bytes};
		at += bytes + 1;
	}
}

static void encode_lines(lines *l)
{
	int64_t tokens = 0;
#pragma omp parallel for schedule(dynamic, 64) num_threads(l->threads) reduction(+ : tokens)
	for (int64_t i = 0; i < l->count; i++) {
		token_list list;
		error err = ERROR_INIT;
		bench_check(tokenizer_encode(l->t, l->text + l->lines[i].first, l->lines[i].bytes, NULL, &list, &err),
		            &err);
		tokens += (int64_t)list.count;
		token_list_fini(&list);
	}
	l->tokens = tokens;
}

static void run(void *context, int count, bench_times *t)
{
	for (int i = 0; i < count; i++) {
		const uint64_t began = clock_ns();
		encode_lines(context);
		bench_times_add(t, (double)(clock_ns() - began));
	}
}

int main(int argc, char **argv)
{
	file_map map;
	tokenizer *t;
	error err = ERROR_INIT;
	if (argc != 4)
		bench_fail("usage: bench_tokenizer FOLDER TEXT THREADS");
	const uint64_t began = clock_ns();
	bench_check(tokenizer_open(&t, argv[1], INT32_MAX, &err), &err);
	const double opened = (double)(clock_ns() - began) * 1e-6;
	bench_check(file_map_open(&map, argv[2], &err), &err);
	lines l = {.t = t, .threads = atoi(argv[3])};
	find_lines(&l, &map);
	encode_lines(&l);
	json_t *facts = json_pack("{s:f, s:I, s:I, s:I}", "open_ms", opened, "bytes", (json_int_t)map.bytes, "lines",
	                          (json_int_t)l.count, "tokens", (json_int_t)l.tokens);
	bench_contest(facts, run, &l);
	json_decref(facts);
	free(l.lines);
	tokenizer_free(t);
	file_map_close(&map);
	return 0;
}
