#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/base/philox.h"
#include "engine/model/safetensors.h"
#include "tests/unit/support/folder.h"

enum { FLIPS = 4000 };

static char folder[FOLDER_BYTES];
static char path[sizeof folder + 16];

static int make_folder(void **state)
{
	(void)state;
	folder_new(folder);
	snprintf(path, sizeof path, "%s/file", folder);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	return file_remove_tree(folder, NULL) == STATUS_OK ? 0 : -1;
}

/* Write the bytes without syncing (there are thousands of files) and open them. */
static status open_bytes(safetensors **out, const void *bytes, size_t count, error *err)
{
	FILE *file = fopen(path, "wb");
	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, count, file), count);
	assert_int_equal(fclose(file), 0);
	return safetensors_open(out, path, err);
}

/* Open a file with that header text and `data_bytes` bytes of data: 0, 1, 2, … */
static status open_header(safetensors **out, const char *header, size_t header_bytes, size_t data_bytes, error *err)
{
	uint64_t length = header_bytes;
	unsigned char *bytes = memory_new(8 + header_bytes + data_bytes, 1);
	assert_non_null(bytes);
	memcpy(bytes, &length, 8);
	memcpy(bytes + 8, header, header_bytes);
	for (size_t i = 0; i < data_bytes; i++)
		bytes[8 + header_bytes + i] = (unsigned char)i;
	status s = open_bytes(out, bytes, 8 + header_bytes + data_bytes, err);
	free(bytes);
	return s;
}

static void assert_corrupt(const char *header, size_t header_bytes, size_t data_bytes)
{
	error err = ERROR_INIT;
	safetensors *st = (safetensors *)&err;
	status s = open_header(&st, header, header_bytes, data_bytes, &err);
	if (s != STATUS_CORRUPT)
		print_error("not refused: %.200s\n", header);
	assert_int_equal(s, STATUS_CORRUPT);
	assert_null(st);
	assert_true(err.message[0]);
}

/* --- well-formed files ---------------------------------------------------------------- */

static void a_written_file_is_read_back_unchanged(void **state)
{
	(void)state;
	const double f64[2] = {0.1, -1e300};
	const float f32[6] = {1, 2, 3, 4, 5, NAN};
	const int64_t i64[1] = {-5};
	const unsigned char flags[3] = {0, 1, 7};
	const safetensors_item items[] = {
	    {"z", ST_F32, 2, {2, 3}, f32},   {"empty", ST_F32, 3, {4, 0, 5}, f32}, {"a.b", ST_F64, 1, {2}, f64},
	    {"scalar", ST_I64, 0, {0}, i64}, {"flags", ST_BOOL, 1, {3}, flags},
	};
	json_t *metadata = json_pack("{s:s}", "format", "pt");
	safetensors *st;
	assert_int_equal(safetensors_write(path, items, 5, metadata, NULL), STATUS_OK);
	json_decref(metadata);
	assert_int_equal(safetensors_open(&st, path, NULL), STATUS_OK);
	assert_int_equal(safetensors_count(st), 5);
	for (int i = 0; i < 5; i++) {
		const safetensors_entry *e = safetensors_find(st, items[i].name);
		assert_non_null(e);
		assert_int_equal(e->type, items[i].type);
		assert_int_equal(e->rank, items[i].rank);
		assert_memory_equal(e->dim, items[i].dim, (size_t)e->rank * sizeof *e->dim);
		assert_memory_equal(e->data, items[i].data, e->bytes);
	}
	assert_int_equal(safetensors_find(st, "empty")->bytes, 0);
	assert_string_equal(safetensors_at(st, 0)->name, "a.b");
	assert_string_equal(safetensors_at(st, 4)->name, "z");
	assert_null(safetensors_find(st, "a"));
	assert_string_equal(safetensors_metadata(st, "format"), "pt");
	assert_null(safetensors_metadata(st, "other"));
	safetensors_close(st);
}

static void the_data_of_a_written_file_begins_at_a_multiple_of_eight(void **state)
{
	(void)state;
	const float x = 1;
	for (int n = 1; n <= 8; n++) {
		char name[9] = "aaaaaaaa", *bytes;
		size_t size;
		name[n] = 0;
		const safetensors_item item = {name, ST_F32, 1, {1}, &x};
		assert_int_equal(safetensors_write(path, &item, 1, NULL, NULL), STATUS_OK);
		assert_int_equal(file_read(path, 4096, &bytes, &size, NULL), STATUS_OK);
		assert_int_equal((size - sizeof x) % 8, 0);
		free(bytes);
	}
}

static void a_file_without_tensors_is_legal(void **state)
{
	(void)state;
	safetensors *st;
	assert_int_equal(safetensors_write(path, NULL, 0, NULL, NULL), STATUS_OK);
	assert_int_equal(safetensors_open(&st, path, NULL), STATUS_OK);
	assert_int_equal(safetensors_count(st), 0);
	assert_null(safetensors_find(st, "x"));
	assert_null(safetensors_metadata(st, "x"));
	safetensors_close(st);
	safetensors_close(NULL);
}

static void tensors_may_be_in_any_order_and_at_any_address(void **state)
{
	(void)state;
	const char *header = "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
	                     "\"a\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[1,9]},"
	                     "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[9,9]}}";
	const int32_t want[2] = {0x04030201, 0x08070605};
	int32_t got[2];
	safetensors *st;
	assert_int_equal(open_header(&st, header, strlen(header), 9, NULL), STATUS_OK);
	assert_int_equal(safetensors_read_i32(safetensors_find(st, "a"), got, NULL), STATUS_OK);
	assert_memory_equal(got, want, sizeof want);
	safetensors_close(st);
}

/* --- element types ----------------------------------------------------------------------- */

static float converted(safetensors_type type, const void *bits)
{
	const safetensors_item item = {"x", type, 0, {0}, bits};
	safetensors *st;
	float x = 12345;
	assert_int_equal(safetensors_write(path, &item, 1, NULL, NULL), STATUS_OK);
	assert_int_equal(safetensors_open(&st, path, NULL), STATUS_OK);
	assert_int_equal(safetensors_read_f32(safetensors_at(st, 0), &x, NULL), STATUS_OK);
	safetensors_close(st);
	return x;
}

static void half_precision_numbers_convert_exactly(void **state)
{
	(void)state;
	static const struct {
		uint16_t bits;
		float want;
	} half[] = {
	    {0x0000, 0},        {0x3c00, 1},         {0xc000, -2},           {0x3555, 0x1.554p-2f},
	    {0x7bff, 65504},    {0x0400, 0x1p-14f},  {0x03ff, 0x1.ff8p-15f}, {0x0001, 0x1p-24f},
	    {0x7c00, INFINITY}, {0xfc00, -INFINITY}, {0x8001, -0x1p-24f},
	};
	static const struct {
		uint16_t bits;
		float want;
	} brain[] = {{0x3f80, 1}, {0xc000, -2}, {0x7f80, INFINITY}, {0x0001, 0x1p-133f}, {0x4049, 3.140625f}};
	for (size_t i = 0; i < sizeof half / sizeof half[0]; i++)
		assert_true(converted(ST_F16, &half[i].bits) == half[i].want);
	for (size_t i = 0; i < sizeof brain / sizeof brain[0]; i++)
		assert_true(converted(ST_BF16, &brain[i].bits) == brain[i].want);
	assert_true(isnan(converted(ST_F16, &(uint16_t){0x7e01})));
	assert_true(isnan(converted(ST_F16, &(uint16_t){0xfc01})));
	assert_true(isnan(converted(ST_BF16, &(uint16_t){0x7fc0})));
	assert_true(signbit(converted(ST_F16, &(uint16_t){0x8000})));
}

static void wide_and_integer_numbers_round_to_float(void **state)
{
	(void)state;
	assert_true(converted(ST_F64, &(double){0.1}) == 0.1f);
	assert_true(converted(ST_F64, &(double){1e300}) == INFINITY);
	assert_true(isnan(converted(ST_F64, &(double){NAN})));
	assert_true(converted(ST_I64, &(int64_t){INT64_MIN}) == -0x1p63f);
	assert_true(converted(ST_I32, &(int32_t){-7}) == -7);
	assert_true(converted(ST_I16, &(int16_t){-32768}) == -32768);
	assert_true(converted(ST_I8, &(int8_t){-128}) == -128);
	assert_true(converted(ST_U8, &(uint8_t){255}) == 255);
}

static status read_integer(safetensors_type type, const void *bits, int32_t *out, error *err)
{
	const safetensors_item item = {"ids", type, 0, {0}, bits};
	safetensors *st;
	assert_int_equal(safetensors_write(path, &item, 1, NULL, NULL), STATUS_OK);
	assert_int_equal(safetensors_open(&st, path, NULL), STATUS_OK);
	status s = safetensors_read_i32(safetensors_at(st, 0), out, err);
	safetensors_close(st);
	return s;
}

static void integers_that_do_not_fit_and_floats_are_refused_by_name(void **state)
{
	(void)state;
	int32_t x;
	error err = ERROR_INIT;
	assert_int_equal(read_integer(ST_I64, &(int64_t){-2147483648}, &x, NULL), STATUS_OK);
	assert_int_equal(x, INT32_MIN);
	assert_int_equal(read_integer(ST_BOOL, &(unsigned char){9}, &x, NULL), STATUS_OK);
	assert_int_equal(x, 1);
	assert_int_equal(read_integer(ST_I64, &(int64_t){2147483648}, &x, &err), STATUS_INVALID);
	assert_string_equal(err.param, "ids");
	assert_int_equal(read_integer(ST_I64, &(int64_t){INT64_MIN}, &x, NULL), STATUS_INVALID);
	assert_int_equal(read_integer(ST_F32, &(float){1}, &x, NULL), STATUS_INVALID);
}

static void booleans_are_not_numbers(void **state)
{
	(void)state;
	const safetensors_item item = {"x", ST_BOOL, 0, {0}, "\1"};
	safetensors *st;
	float x;
	assert_int_equal(safetensors_write(path, &item, 1, NULL, NULL), STATUS_OK);
	assert_int_equal(safetensors_open(&st, path, NULL), STATUS_OK);
	assert_int_equal(safetensors_read_f32(safetensors_at(st, 0), &x, NULL), STATUS_INVALID);
	safetensors_close(st);
}

/* --- hostile files -------------------------------------------------------------------------- */

#define ONE(dtype, shape, offsets) "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define X "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}"

static void false_headers_are_corrupt(void **state)
{
	(void)state;
	static const struct {
		const char *header;
		size_t data;
	} cases[] = {
	    {"", 0},
	    {"[]", 0},
	    {"null", 0},
	    {"{", 0},
	    {"{}}", 0},
	    {"{\"x\":3}", 0},
	    {"{\"x\":{}}", 0},
	    {"{\"x\":[]}", 0},
	    {"{\"\\u0000\":" X "}", 4},
	    {"{\"x\":" X ",\"x\":" X "}", 4},
	    {"{\"x\":" X ",\"__metadata__\":{\"a\":1}}", 4},
	    {"{\"x\":" X ",\"__metadata__\":[]}", 4},
	    {"{\"x\":" X ",\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 4},
	    {ONE("\"F33\"", "[1]", "[0,4]"), 4},
	    {ONE("4", "[1]", "[0,4]"), 4},
	    {ONE("\"f32\"", "[1]", "[0,4]"), 4},
	    {ONE("\"F32\"", "1", "[0,4]"), 4},
	    {ONE("\"F32\"", "[1.0]", "[0,4]"), 4},
	    {ONE("\"F32\"", "[\"1\"]", "[0,4]"), 4},
	    {ONE("\"F32\"", "[-1]", "[0,4]"), 4},
	    {ONE("\"F32\"", "[-1,-1]", "[0,4]"), 4},
	    {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4},
	    {ONE("\"F32\"", "[2]", "[0,4]"), 4},
	    {ONE("\"F32\"", "[1]", "[0,8]"), 8},
	    {ONE("\"F32\"", "[1]", "[0,8]"), 4},
	    {ONE("\"F32\"", "[1]", "[4,0]"), 4},
	    {ONE("\"F32\"", "[1]", "[-4,0]"), 4},
	    {ONE("\"F32\"", "[1]", "[0,4,8]"), 4},
	    {ONE("\"F32\"", "[1]", "[0]"), 4},
	    {ONE("\"F32\"", "[1]", "[0,4.0]"), 4},
	    {ONE("\"F32\"", "[1]", "\"0,4\""), 4},
	    {ONE("\"F32\"", "[1]", "[4,8]"), 8},
	    {ONE("\"F32\"", "[1]", "[0,4]"), 5},
	    {ONE("\"F32\"", "[1]", "[0,4],\"more\":1"), 4},
	    {ONE("\"F32\"", "[0]", "[1,1]"), 4},
	    /* products that overflow to 1, to 0 and to the bytes of the file */
	    {ONE("\"F32\"", "[4294967297,4294967295]", "[0,4]"), 4},
	    {ONE("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0},
	    {ONE("\"F32\"", "[4611686018427387905]", "[0,4]"), 4},
	    {ONE("\"F64\"", "[2305843009213693952]", "[0,0]"), 0},
	    {ONE("\"F32\"", "[9223372036854775807,0]", "[0,4]"), 4},
	    {ONE("\"F32\"", "[9223372036854775807,2,0]", "[0,0]"), 0},
	    {ONE("\"F32\"", "[9223372036854775808]", "[0,4]"), 4},
	    {ONE("\"F32\"", "[1]", "[9223372036854775804,9223372036854775808]"), 4},
	    {ONE("\"F32\"", "[1]", "[9223372036854775803,9223372036854775807]"), 4},
	    /* overlaps and holes */
	    {"{\"x\":" X ",\"y\":" X "}", 4},
	    {"{\"x\":" X ",\"y\":" X "}", 8},
	    {"{\"x\":" X ",\"y\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}", 7},
	    {"{\"x\":" X ",\"y\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5,9]}}", 9},
	    {"{\"x\":" X ",\"y\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}", 4},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		assert_corrupt(cases[i].header, strlen(cases[i].header), cases[i].data);
}

static void the_wrong_tensor_is_named(void **state)
{
	(void)state;
	error err = ERROR_INIT;
	safetensors *st;
	const char *header = ONE("\"F32\"", "[2]", "[0,4]");
	assert_int_equal(open_header(&st, header, strlen(header), 4, &err), STATUS_CORRUPT);
	assert_string_equal(err.param, "x");
	assert_non_null(strstr(err.message, "data_offsets"));
}

static void a_million_nested_brackets_are_refused(void **state)
{
	(void)state;
	const size_t depth = 1000000;
	char *header = memory_new(2 * depth, 1);
	memset(header, '[', depth);
	memset(header + depth, ']', depth);
	assert_corrupt(header, 2 * depth, 0);
	for (size_t i = 0; i < depth / 5; i++)
		memcpy(header + 5 * i, "{\"a\":", 5);
	assert_corrupt(header, depth, 0);
	free(header);
}

static void a_header_over_the_limit_is_refused_before_it_is_parsed(void **state)
{
	(void)state;
	size_t bytes = (size_t)SAFETENSORS_MAX_HEADER + 1;
	char *header = memory_new(bytes, 1);
	memset(header, ' ', bytes);
	memcpy(header, "{}", 2);
	assert_corrupt(header, bytes, 0);
	safetensors *st;
	assert_int_equal(open_header(&st, header, bytes - 1, 0, NULL), STATUS_OK);
	safetensors_close(st);
	free(header);
}

static void impossible_header_lengths_are_refused(void **state)
{
	(void)state;
	static const uint64_t lengths[] = {3, 9, 1000, 1u << 31, 1ull << 32, 1ull << 63, UINT64_MAX - 7, UINT64_MAX};
	for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		unsigned char bytes[8 + 2];
		safetensors *st;
		memcpy(bytes, &lengths[i], 8);
		memcpy(bytes + 8, "{}", 2);
		assert_int_equal(open_bytes(&st, bytes, sizeof bytes, NULL), STATUS_CORRUPT);
	}
}

/* A small valid file with several types, an empty tensor and metadata. */
static void sample(char **bytes, size_t *count)
{
	static const float f32[6] = {1, 2, 3, 4, 5, 6};
	static const int64_t i64[3] = {7, 8, 9};
	const safetensors_item items[] = {
	    {"weight", ST_F32, 2, {2, 3}, f32},
	    {"ids", ST_I64, 1, {3}, i64},
	    {"half", ST_F16, 1, {4}, f32},
	    {"none", ST_U8, 2, {0, 9}, f32},
	};
	json_t *metadata = json_pack("{s:s}", "format", "pt");
	assert_int_equal(safetensors_write(path, items, 4, metadata, NULL), STATUS_OK);
	json_decref(metadata);
	assert_int_equal(file_read(path, 1 << 16, bytes, count, NULL), STATUS_OK);
}

static void a_truncated_file_is_refused(void **state)
{
	(void)state;
	char *bytes;
	size_t count;
	sample(&bytes, &count);
	for (size_t n = 0; n < count; n++) {
		safetensors *st;
		assert_int_equal(open_bytes(&st, bytes, n, NULL), STATUS_CORRUPT);
	}
	free(bytes);
}

/* Read every element of an opened file; the tensors must fill the data exactly. */
static void read_everything(const safetensors *st, const unsigned char *bytes, size_t count)
{
	uint64_t header;
	size_t total = 0;
	memcpy(&header, bytes, 8);
	for (int i = 0; i < safetensors_count(st); i++) {
		const safetensors_entry *e = safetensors_at(st, i);
		float *f32 = memory_new((size_t)e->count, sizeof *f32);
		int32_t *i32 = memory_new((size_t)e->count, sizeof *i32);
		assert_ptr_equal(safetensors_find(st, e->name), e);
		assert_true(safetensors_read_f32(e, f32, NULL) == STATUS_OK || e->type == ST_BOOL);
		safetensors_read_i32(e, i32, NULL);
		total += e->bytes;
		free(f32);
		free(i32);
	}
	assert_int_equal(8 + header + total, count);
}

static void random_damage_never_crashes(void **state)
{
	(void)state;
	char *bytes;
	size_t count;
	int opened = 0;
	sample(&bytes, &count);
	unsigned char *damaged = memory_new(count, 1);
	for (uint32_t trial = 0; trial < FLIPS; trial++) {
		memcpy(damaged, bytes, count);
		philox_block random = philox(1, 0, trial, 0);
		int flips = 1 + (int)(random.word[3] % 3);
		for (int i = 0; i < flips; i++) {
			/* Half of the damage is in the header, and half of it writes JSON's characters. */
			uint32_t place = random.word[i] % (random.word[3] & 64 ? (uint32_t)count : 200);
			char json = "0123456789[]{},:"[random.word[i] >> 16 & 15];
			damaged[place] = (unsigned char)(random.word[3] & 128 ? (uint32_t)json : random.word[i] >> 24);
		}
		safetensors *st;
		status s = open_bytes(&st, damaged, count, NULL);
		assert_true(s == STATUS_OK || s == STATUS_CORRUPT);
		assert_int_equal(s == STATUS_OK, st != NULL);
		if (st)
			read_everything(st, damaged, count), opened++;
		safetensors_close(st);
	}
	assert_true(opened > FLIPS / 100 && opened < FLIPS);
	free(damaged);
	free(bytes);
}

/* --- impossible files --------------------------------------------------------------------------- */

static void a_missing_file_is_not_found_and_a_folder_is_no_file(void **state)
{
	(void)state;
	safetensors *st;
	unlink(path);
	assert_int_equal(safetensors_open(&st, path, NULL), STATUS_NOT_FOUND);
	assert_null(st);
	assert_int_equal(safetensors_open(&st, folder, NULL), STATUS_IO);
	assert_null(st);
}

static void a_tensor_too_large_to_count_is_not_written(void **state)
{
	(void)state;
	const safetensors_item item = {"x", ST_F32, 2, {INT64_MAX, 2}, NULL};
	error err = ERROR_INIT;
	unlink(path);
	assert_int_equal(safetensors_write(path, &item, 1, NULL, &err), STATUS_INVALID);
	assert_string_equal(err.param, "x");
	assert_int_not_equal(access(path, F_OK), 0);
}

/* --- several threads ------------------------------------------------------------------------- */

enum { WORDS = 9 << 20 /* nine chunks, more than two threads keep */, RANGES = 48, RANGE = 3 << 18 };

typedef struct reader {
	safetensors *file;
	uint64_t seed;
	int wrong;
	status result;
} reader;

/* Element i is i mod 2^24, which a float holds exactly. */
static void *read_ranges(void *context)
{
	reader *r = context;
	float *x = malloc(RANGE * sizeof *x);
	for (int k = 0; k < RANGES && r->result == STATUS_OK; k++) {
		const int64_t first = philox_below(philox(r->seed, 0, 0, (uint64_t)k).word[0], WORDS - RANGE);
		r->result = safetensors_load_f32(r->file, safetensors_at(r->file, 0), first, RANGE, x, NULL);
		for (int64_t i = 0; i < RANGE; i++)
			r->wrong += x[i] != (float)((first + i) % (1 << 24));
	}
	free(x);
	return NULL;
}

static void threads_read_the_chunks_of_one_file(void **state)
{
	(void)state;
	float *data = malloc((size_t)WORDS * sizeof *data);
	for (int64_t i = 0; i < WORDS; i++)
		data[i] = (float)(i % (1 << 24));
	const safetensors_item item = {.name = "x", .type = ST_F32, .rank = 1, .dim = {WORDS}, .data = data};
	safetensors *st;
	assert_int_equal(safetensors_write(path, &item, 1, NULL, NULL), STATUS_OK);
	free(data);
	assert_int_equal(safetensors_open_verified(&st, path, NULL, NULL), STATUS_OK);
	safetensors_use_threads(st, 2);
	reader readers[2] = {{.file = st, .seed = 1}, {.file = st, .seed = 2}};
	pthread_t other;
	assert_int_equal(pthread_create(&other, NULL, read_ranges, &readers[1]), 0);
	read_ranges(&readers[0]);
	pthread_join(other, NULL);
	safetensors_close(st);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(readers[i].result, STATUS_OK);
		assert_int_equal(readers[i].wrong, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_written_file_is_read_back_unchanged),
	    cmocka_unit_test(the_data_of_a_written_file_begins_at_a_multiple_of_eight),
	    cmocka_unit_test(a_file_without_tensors_is_legal),
	    cmocka_unit_test(tensors_may_be_in_any_order_and_at_any_address),
	    cmocka_unit_test(half_precision_numbers_convert_exactly),
	    cmocka_unit_test(wide_and_integer_numbers_round_to_float),
	    cmocka_unit_test(integers_that_do_not_fit_and_floats_are_refused_by_name),
	    cmocka_unit_test(booleans_are_not_numbers),
	    cmocka_unit_test(false_headers_are_corrupt),
	    cmocka_unit_test(the_wrong_tensor_is_named),
	    cmocka_unit_test(a_million_nested_brackets_are_refused),
	    cmocka_unit_test(a_header_over_the_limit_is_refused_before_it_is_parsed),
	    cmocka_unit_test(impossible_header_lengths_are_refused),
	    cmocka_unit_test(a_truncated_file_is_refused),
	    cmocka_unit_test(random_damage_never_crashes),
	    cmocka_unit_test(a_missing_file_is_not_found_and_a_folder_is_no_file),
	    cmocka_unit_test(a_tensor_too_large_to_count_is_not_written),
	    cmocka_unit_test(threads_read_the_chunks_of_one_file),
	};
	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
