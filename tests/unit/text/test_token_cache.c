#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/cache_folder.h"
#include "engine/text/corpus_tokens.h"

enum { TOKENS = (1 << 18) * 2 + 1000 }; /* three blocks */

static char folder[] = "/tmp/test_token_cache.XXXXXX";

static const char *path_of(const char *name)
{
	static char path[2][200];
	static int next;
	char *out = path[next++ % 2];
	snprintf(out, 200, "%s/%s", folder, name);
	return out;
}

static int make_tokenizer(void **state)
{
	tokenizer *t;
	if (!mkdtemp(folder) || tokenizer_new(&t, NULL, NULL) != STATUS_OK)
		return -1;
	*state = t;
	return 0;
}

static int drop_tokenizer(void **state)
{
	tokenizer_free(*state);
	return rmdir(folder);
}

static int32_t id_at(int64_t i)
{
	return (int32_t)(i * 131 % 259);
}

static unsigned char flags_at(int64_t i)
{
	return (unsigned char)((i % 97 == 96 ? TOKEN_LAST : 0) | (i % 97 < 40 ? TOKEN_PROMPT : 0));
}

/* Write the tokens in portions of uneven size. */
static token_cache *write_tokens(const tokenizer *t, const char *path, uint64_t key, int64_t n, bool documents)
{
	token_writer *w;
	token_cache *c;
	int32_t ids[1000];
	unsigned char flags[1000];
	assert_int_equal(token_writer_new(&w, path, 0, key, t, documents, NULL), STATUS_OK);
	for (int64_t at = 0, portion = 1; at < n; at += portion, portion = portion * 7 % 1000 + 1) {
		portion = portion < n - at ? portion : n - at;
		for (int64_t i = 0; i < portion; i++) {
			ids[i] = id_at(at + i);
			flags[i] = flags_at(at + i);
		}
		assert_int_equal(token_writer_add(w, ids, documents ? flags : NULL, portion, NULL), STATUS_OK);
	}
	assert_int_equal(token_writer_finish(w, &c, NULL), STATUS_OK);
	token_writer_free(w);
	return c;
}

static void the_written_tokens_are_read_from_every_place(void **state)
{
	static const int64_t first[] = {0, 1, 7, 8, 9, 262140, 262144, 262145, 524280, TOKENS - 9, TOKENS - 1};
	static const int64_t counts[] = {1, 2, 8, 9, 4100};
	for (int documents = 0; documents < 2; documents++) {
		token_cache_free(write_tokens(*state, path_of("a"), 5, TOKENS, documents));
		token_cache *c;
		int32_t ids[4100];
		unsigned char flags[4100];
		assert_int_equal(token_cache_open(&c, path_of("a"), 5, 259, NULL), STATUS_OK);
		assert_int_equal(token_cache_tokens(c), TOKENS);
		for (size_t i = 0; i < sizeof first / sizeof *first; i++)
			for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
				int64_t n = first[i] + counts[k] <= TOKENS ? counts[k] : TOKENS - first[i];
				assert_int_equal(token_cache_read(c, first[i], n, ids, flags, NULL), STATUS_OK);
				for (int64_t j = 0; j < n; j++) {
					assert_int_equal(ids[j], id_at(first[i] + j));
					assert_int_equal(flags[j], documents ? flags_at(first[i] + j) : 0);
				}
			}
		token_cache_free(c);
		unlink(path_of("a"));
	}
}

static void the_hash_of_any_stretch_is_that_of_its_tokens(void **state)
{
	static const int64_t stretches[][2] = {{0, TOKENS}, {0, 262144}, {0, 262145}, {0, 5}, {262000, 300}, {9, 0}};
	token_cache *c = write_tokens(*state, NULL, 1, TOKENS, false);
	for (size_t i = 0; i < sizeof stretches / sizeof *stretches; i++) {
		uint64_t expected = TOKEN_CACHE_HASH_BEGIN, hash;
		for (int64_t j = 0; j < stretches[i][1]; j++) {
			int32_t id = id_at(stretches[i][0] + j);
			expected = token_cache_hash_words(expected, &id, 1);
		}
		assert_int_equal(token_cache_hash(c, stretches[i][0], stretches[i][1], &hash, NULL), STATUS_OK);
		assert_true(hash == expected);
	}
	token_cache_free(c);
}

static void bytes_are_counted_as_token_by_token(void **state)
{
	static const int64_t n[] = {0, 5, 262144, 262150, TOKENS};
	token_cache *c = write_tokens(*state, NULL, 1, TOKENS, false);
	for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
		int64_t counts[256] = {0}, expected[256] = {0};
		for (int64_t j = 0; j < n[i]; j++)
			if (id_at(j) >= 3)
				expected[id_at(j) - 3]++;
		assert_int_equal(token_cache_count_bytes(c, *state, n[i], counts, NULL), STATUS_OK);
		assert_memory_equal(counts, expected, sizeof counts);
	}
	token_cache_free(c);
}

/* True if reading the entire file finds damage. */
static bool finds_damage(const char *path)
{
	token_cache *c;
	static int32_t ids[TOKENS];
	error err = ERROR_INIT;
	status s = token_cache_open(&c, path, 5, 259, &err);
	if (s == STATUS_OK)
		s = token_cache_read(c, 0, token_cache_tokens(c), ids, NULL, &err);
	token_cache_free(c);
	assert_true(s == STATUS_OK || s == STATUS_STORAGE);
	assert_true(s == STATUS_OK || err.message[0]);
	return s != STATUS_OK;
}

static void a_changed_byte_is_found_anywhere(void **state)
{
	token_cache_free(write_tokens(*state, path_of("a"), 5, TOKENS, true));
	assert_false(finds_damage(path_of("a")));
	struct stat st;
	int fd = open(path_of("a"), O_RDWR);
	assert_int_equal(fstat(fd, &st), 0);
	const off_t places[] = {0, 600000, 1180000, st.st_size - 4000, st.st_size - 60, st.st_size - 1};
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		unsigned char byte, other;
		assert_int_equal(pread(fd, &byte, 1, places[i]), 1);
		other = byte ^ 4;
		assert_int_equal(pwrite(fd, &other, 1, places[i]), 1);
		assert_true(finds_damage(path_of("a")));
		assert_int_equal(pwrite(fd, &byte, 1, places[i]), 1);
	}
	assert_false(finds_damage(path_of("a")));
	assert_int_equal(ftruncate(fd, st.st_size - 1000), 0);
	assert_true(finds_damage(path_of("a")));
	close(fd);
	unlink(path_of("a"));
}

static void tokens_of_another_key_or_vocabulary_are_not_used(void **state)
{
	token_cache *c;
	token_cache_free(write_tokens(*state, path_of("a"), 5, 100, false));
	assert_int_equal(token_cache_open(&c, path_of("a"), 6, 259, NULL), STATUS_STORAGE);
	assert_int_equal(token_cache_open(&c, path_of("a"), 5, 260, NULL), STATUS_STORAGE);
	assert_int_equal(token_cache_open(&c, path_of("b"), 5, 259, NULL), STATUS_NOT_FOUND);
	assert_null(c);
	unlink(path_of("a"));
}

static void a_full_disk_is_an_error_and_leaves_no_file(void **state)
{
	struct rlimit before, low = {1 << 20, 1 << 20};
	byte_source *source;
	token_cache *c;
	error err = ERROR_INIT;
	char *text = malloc(2 << 20);
	memset(text, 'x', 2 << 20);
	getrlimit(RLIMIT_FSIZE, &before);
	low.rlim_max = before.rlim_max;
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &low);
	assert_int_equal(byte_source_memory(&source, text, 2 << 20, NULL), STATUS_OK);
	status s =
	    corpus_tokens_build(&c, source, *state, &(corpus_tokens_options){.path = path_of("a"), .threads = 2}, &err);
	setrlimit(RLIMIT_FSIZE, &before);
	assert_int_equal(s, STATUS_FULL);
	assert_non_null(strstr(err.message, "cannot write"));
	assert_null(c);
	assert_int_equal(access(path_of("a"), F_OK), -1);
	free(text);
}

static void a_cancelled_build_ends_and_leaves_no_file(void **state)
{
	atomic_bool cancel = true;
	byte_source *source;
	token_cache *c;
	assert_int_equal(byte_source_memory(&source, "text", 4, NULL), STATUS_OK);
	assert_int_equal(corpus_tokens_build(&c, source, *state,
	                                     &(corpus_tokens_options){.path = path_of("a"), .cancel = &cancel}, NULL),
	                 STATUS_CANCELLED);
	assert_int_equal(access(path_of("a"), F_OK), -1);
}

static char *make_lines(size_t *bytes)
{
	char *text = malloc(1 << 20);
	*bytes = 0;
	for (int i = 0; i < 3000; i++)
		*bytes += (size_t)snprintf(text + *bytes, 300,
		                           i % 2 ? "{\"text\": \"%d %0*d\"}\n"
		                                 : "{\"prompt\": \"%d\", \"completion\": \"%0*d\"}\n",
		                           i, i % 200 + 1, i);
	return text;
}

static void neither_threads_nor_the_size_of_pieces_change_a_token(void **state)
{
	size_t bytes;
	char *lines = make_lines(&bytes);
	for (int plain = 0; plain < 2; plain++) {
		uint64_t first = 0, hash;
		for (int threads = 1; threads <= 5; threads += 2)
			for (size_t piece = 1000; piece <= 1 << 20; piece *= 32) {
				byte_source *source;
				token_cache *c;
				unsigned char *flags;
				const corpus_tokens_options o = {.threads = threads, .piece_bytes = piece};
				assert_int_equal(byte_source_memory(&source, lines + plain, bytes - 1, NULL),
				                 STATUS_OK);
				assert_int_equal(corpus_tokens_build(&c, source, *state, &o, NULL), STATUS_OK);
				int64_t n = token_cache_tokens(c);
				flags = malloc((size_t)n);
				assert_int_equal(token_cache_hash(c, 0, n, &hash, NULL), STATUS_OK);
				assert_int_equal(token_cache_read(c, 0, n, NULL, flags, NULL), STATUS_OK);
				for (int64_t i = 0; i < n; i++)
					hash = token_cache_hash_words(hash, (int32_t[]){flags[i]}, 1);
				first = first ? first : hash;
				assert_true(hash == first);
				free(flags);
				token_cache_free(c);
			}
	}
	free(lines);
}

static void the_first_bad_line_is_reported_whichever_thread_finds_one(void **state)
{
	size_t bytes;
	char *lines = make_lines(&bytes);
	for (int i = 0; i < 20; i++) {
		char *late = strstr(lines, "{\"text\": \"2501 "), *early = strstr(lines, "{\"text\": \"1801 ");
		byte_source *source;
		token_cache *c;
		error err = ERROR_INIT;
		*late = *early = 'x';
		assert_int_equal(byte_source_memory(&source, lines, bytes, NULL), STATUS_OK);
		assert_int_equal(corpus_tokens_build(&c, source, *state,
		                                     &(corpus_tokens_options){.threads = 4, .piece_bytes = 2000}, &err),
		                 STATUS_INVALID);
		assert_non_null(strstr(err.message, "line 1802, column 1: "));
		*late = *early = '{';
	}
	free(lines);
}

/* Make a file of `bytes` bytes that was last used `age` seconds ago. */
static void make_file(const char *name, int64_t bytes, int age)
{
	int fd = open(path_of(name), O_WRONLY | O_CREAT, 0600);
	assert_int_equal(ftruncate(fd, bytes), 0);
	struct timespec now, times[2];
	clock_gettime(CLOCK_REALTIME, &now);
	now.tv_sec -= age;
	times[0] = times[1] = now;
	assert_int_equal(futimens(fd, times), 0);
	close(fd);
}

static bool exists(const char *name)
{
	return access(path_of(name), F_OK) == 0;
}

static int64_t size_of(const char *name)
{
	struct stat st;
	assert_int_equal(stat(path_of(name), &st), 0);
	return st.st_size;
}

static void the_least_recently_used_files_are_removed_first_and_open_ones_never(void **state)
{
	token_cache *c = write_tokens(*state, path_of("open"), 5, 1000, false);
	struct timespec old[2] = {{1, 0}, {1, 0}};
	assert_int_equal(utimensat(AT_FDCWD, path_of("open"), old, 0), 0);
	make_file("a", 10000, 30);
	make_file("b", 10000, 20);
	make_file("c", 10000, 10);
	cache_folder_collect(folder, 1 << 20);
	assert_true(exists("a") && exists("b") && exists("c") && exists("open"));
	assert_int_equal(cache_folder_collect(folder, 25000), 20000 + size_of("open"));
	assert_true(!exists("a") && exists("b") && exists("c") && exists("open"));
	cache_folder_collect(folder, 0);
	assert_true(!exists("b") && !exists("c") && exists("open"));
	token_cache_free(c);
	cache_folder_collect(folder, 0);
	assert_false(exists("open"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_written_tokens_are_read_from_every_place),
	    cmocka_unit_test(the_hash_of_any_stretch_is_that_of_its_tokens),
	    cmocka_unit_test(bytes_are_counted_as_token_by_token),
	    cmocka_unit_test(a_changed_byte_is_found_anywhere),
	    cmocka_unit_test(tokens_of_another_key_or_vocabulary_are_not_used),
	    cmocka_unit_test(a_full_disk_is_an_error_and_leaves_no_file),
	    cmocka_unit_test(a_cancelled_build_ends_and_leaves_no_file),
	    cmocka_unit_test(neither_threads_nor_the_size_of_pieces_change_a_token),
	    cmocka_unit_test(the_first_bad_line_is_reported_whichever_thread_finds_one),
	    cmocka_unit_test(the_least_recently_used_files_are_removed_first_and_open_ones_never),
	};
	return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
