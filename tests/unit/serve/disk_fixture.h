/* disk_fixture.h - a scheduler whose states of prompts move to a folder of the test. */
#ifndef TESTS_UNIT_SERVE_DISK_FIXTURE_H
#define TESTS_UNIT_SERVE_DISK_FIXTURE_H

#include "tests/unit/serve/fixture.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"

/* A prompt of PROMPT tokens takes several times PREFIX_DISK_READ_NS, so the disk is worth it. */
enum { LONG = 2048, PROMPT = 600, NAME_MOST = 100 };

typedef struct disk_fixture {
	fixture f;
	void (*write)(const char *folder, backend *b, uint64_t seed);
	char folder[64], kept[96];
	int64_t memory, limit, least_free;
	prefix_models models; /* given to the next start */
	prefix_disk *disk;
} disk_fixture;

static int32_t ids[LONG];
static client with, without;

static inline prefix_disk_stats stats_of(const disk_fixture *x)
{
	prefix_disk_stats s;
	prefix_disk_read_stats(x->disk, &s);
	return s;
}

/* Wait until the disk has done all of its work. */
static inline prefix_disk_stats settle(const disk_fixture *x)
{
	while (stats_of(x).waiting > 0)
		usleep(1000);
	return stats_of(x);
}

static inline void serve(disk_fixture *x)
{
	scheduler_limits limits = roomy;
	error err = ERROR_INIT;
	if (prefix_disk_open(&x->disk, x->kept, x->limit, x->least_free, &x->models, &err) != STATUS_OK)
		fail_msg("%s", err.message);
	limits.prefix_bytes = x->memory;
	limits.prefix_disk = x->disk;
	fixture_serve(&x->f, &limits);
	if (x->disk)
		settle(x);
}

static inline void stop(disk_fixture *x)
{
	scheduler_free(x->f.scheduler);
	prefix_disk_close(x->disk);
}

static inline void restart(disk_fixture *x)
{
	stop(x);
	serve(x);
}

static inline int open_with(void **state, void (*write)(const char *folder, backend *b, uint64_t seed))
{
	disk_fixture *x = calloc(1, sizeof *x);
	fixture_folder_on(&x->f, cpu_reference_open, 1); /* slower than the disk */
	if (write)
		write(x->f.folder, x->f.backend, 1);
	else
		write_model(x->f.folder, x->f.backend, 1, LONG, POSITION_ERROR);
	folder_new(x->folder);
	snprintf(x->kept, sizeof x->kept, "%s/prefixes", x->folder);
	x->memory = 1 << 20;
	x->limit = 64 << 20;
	serve(x);
	*state = x;
	return 0;
}

static inline int setup_disk(void **state)
{
	return open_with(state, NULL);
}

static inline void write_long_gpt2(const char *folder, backend *b, uint64_t seed)
{
	(void)seed;
	write_configured(folder, b, "gpt2",
	                 "{\"n_embd\": 16, \"vocab_size\": 259, \"n_head\": 2, \"n_positions\": 2048, \"n_layer\": 2, "
	                 "\"initializer_range\": 0.3}");
}

/* The state after 512 tokens takes 4 MB and more: 32 layers with keys and values of 32 and the head's one number. */
static inline void write_deep_gpt2(const char *folder, backend *b, uint64_t seed)
{
	(void)seed;
	write_configured(folder, b, "gpt2",
	                 "{\"n_embd\": 32, \"vocab_size\": 259, \"n_head\": 1, \"n_positions\": 1024, \"n_layer\": 32, "
	                 "\"initializer_range\": 0.1}");
}

static inline int setup_gpt2(void **state)
{
	return open_with(state, write_long_gpt2);
}

static inline int teardown_disk(void **state)
{
	disk_fixture *x = *state;
	scheduler_free(x->f.scheduler);
	prefix_disk_close(x->disk);
	backend_close(x->f.backend);
	assert_int_equal(file_remove_tree(x->f.folder, NULL), STATUS_OK);
	assert_int_equal(file_remove_tree(x->folder, NULL), STATUS_OK);
	free(x);
	return 0;
}

/* Wait for the state on the disk, however long it takes. */
static inline void wait_ready(disk_fixture *x, const generation_request *r)
{
	prefix_cache *c = &x->f.scheduler->prefixes;
	prefix_wait w = {0};
	while (!scheduler_prefix_ready(x->f.scheduler, "m", r, &w)) {
		usleep(100);
		w.since_ns = clock_ns();
		c->read.began_ns = c->read.began_ns ? w.since_ns : 0;
	}
}

/* Run a request with kept states and one that reads all of its prompt; both give the same tokens. Returns the number of
 * tokens that the first did not read. */
static inline int64_t ask(disk_fixture *x, int64_t n, const char *owner)
{
	generation_request r = request(&without, ids, n, 6);
	r.sampling.temperature = 1;
	r.sampling.seed = (uint64_t)n;
	r.owner = owner;
	r.reads_all = true;
	run(&x->f, NULL, &without, &r);
	assert_int_equal(without.result.cached_tokens, 0);
	r.context = memset(&with, 0, sizeof with);
	r.reads_all = false;
	wait_ready(x, &r);
	run(&x->f, NULL, &with, &r);
	assert_int_equal(with.result.status, STATUS_OK);
	assert_int_equal(with.n_tokens, without.n_tokens);
	assert_memory_equal(with.tokens, without.tokens, (size_t)with.n_tokens * sizeof(int32_t));
	return with.result.cached_tokens;
}

/* Leave one prompt's states on the disk only. */
static inline void leave(disk_fixture *x, uint64_t seed, const char *owner)
{
	random_tokens(ids, LONG, seed);
	assert_int_equal(ask(x, PROMPT, owner), 0);
	restart(x);
}

/* Write the path of the i-th file; false: there are fewer. */
static inline bool file_at(const disk_fixture *x, int i, char path[256])
{
	DIR *dir = opendir(x->kept);
	struct dirent *e;
	while ((e = readdir(dir)) && (e->d_name[0] == '.' || i-- > 0))
		;
	if (e)
		snprintf(path, 256, "%s/%.*s", x->kept, NAME_MOST, e->d_name);
	closedir(dir);
	return e;
}

static inline int count_files(const disk_fixture *x, int64_t *bytes)
{
	char path[256];
	struct stat st;
	int n = 0;
	for (*bytes = 0; file_at(x, n, path); n++) {
		assert_int_equal(stat(path, &st), 0);
		*bytes += st.st_size;
	}
	return n;
}

/* A model whose states take more than a turn to copy. */
static inline int setup_large(void **state)
{
	open_with(state, write_deep_gpt2);
	disk_fixture *x = *state;
	x->memory = 32 << 20;
	restart(x);
	return 0;
}

#endif
