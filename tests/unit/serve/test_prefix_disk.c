/* States after the beginnings of prompts on the disk return with the same bits, and to their owner only. They keep the
 * limits. A damaged one is as good as none. */
#include "tests/unit/serve/fixture.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/serve/session_blob.h"

/* A prompt of PROMPT tokens takes several times PREFIX_DISK_READ_NS, so the disk is worth it. */
enum { LONG = 2048, PROMPT = 600, NAME_MOST = 100 };

typedef struct disk_fixture {
	fixture f;
	void (*write)(const char *folder, backend *b, uint64_t seed);
	char folder[64], kept[96];
	int64_t limit, least_free;
	prefix_models models; /* given to the next start */
	prefix_disk *disk;
} disk_fixture;

static int32_t ids[LONG];
static client with, without;

static prefix_disk_stats stats_of(const disk_fixture *x)
{
	prefix_disk_stats s;
	prefix_disk_read_stats(x->disk, &s);
	return s;
}

/* Wait until the disk has done all of its work. */
static prefix_disk_stats settle(const disk_fixture *x)
{
	while (stats_of(x).waiting > 0)
		usleep(1000);
	return stats_of(x);
}

static void serve(disk_fixture *x)
{
	scheduler_limits limits = roomy;
	error err = ERROR_INIT;
	if (prefix_disk_open(&x->disk, x->kept, x->limit, x->least_free, &x->models, &err) != STATUS_OK)
		fail_msg("%s", err.message);
	limits.prefix_bytes = 1 << 20;
	limits.prefix_disk = x->disk;
	fixture_serve(&x->f, &limits);
	if (x->disk)
		settle(x);
}

static void stop(disk_fixture *x)
{
	scheduler_free(x->f.scheduler);
	prefix_disk_close(x->disk);
}

static void restart(disk_fixture *x)
{
	stop(x);
	serve(x);
}

static int open_with(void **state, void (*write)(const char *folder, backend *b, uint64_t seed))
{
	disk_fixture *x = calloc(1, sizeof *x);
	fixture_folder_on(&x->f, cpu_reference_open, 1); /* slower than the disk */
	if (write)
		write(x->f.folder, x->f.backend, 1);
	else
		write_model(x->f.folder, x->f.backend, 1, LONG, POSITION_ERROR);
	folder_new(x->folder);
	snprintf(x->kept, sizeof x->kept, "%s/prefixes", x->folder);
	x->limit = 64 << 20;
	serve(x);
	*state = x;
	return 0;
}

static int setup_disk(void **state)
{
	return open_with(state, NULL);
}

static void write_long_gpt2(const char *folder, backend *b, uint64_t seed)
{
	(void)seed;
	write_configured(folder, b, "gpt2",
	                 "{\"n_embd\": 16, \"vocab_size\": 259, \"n_head\": 2, \"n_positions\": 2048, \"n_layer\": 2, "
	                 "\"initializer_range\": 0.3}");
}

static int setup_gpt2(void **state)
{
	return open_with(state, write_long_gpt2);
}

static int teardown_disk(void **state)
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
static void wait_ready(disk_fixture *x, const generation_request *r)
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
static int64_t ask(disk_fixture *x, int64_t n, const char *owner)
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
static void leave(disk_fixture *x, uint64_t seed, const char *owner)
{
	random_tokens(ids, LONG, seed);
	assert_int_equal(ask(x, PROMPT, owner), 0);
	restart(x);
}

/* Write the path of the i-th file; false: there are fewer. */
static bool file_at(const disk_fixture *x, int i, char path[256])
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

static int count_files(const disk_fixture *x, int64_t *bytes)
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

/* Nothing is in memory after a restart. */
static void a_state_returns_after_a_restart(void **state)
{
	disk_fixture *x = *state;
	leave(x, 1, "a");
	assert_int_equal(x->f.scheduler->prefixes.count, 0);
	assert_true(ask(x, PROMPT, "a") >= PROMPT - 1);
	assert_int_equal(stats_of(x).reads, 1);
	assert_true(ask(x, PROMPT, "a") >= PROMPT - 1); /* it is in memory now */
	assert_int_equal(stats_of(x).reads, 1);
}

static void a_state_of_whole_pieces_returns(void **state)
{
	disk_fixture *x = *state;
	assert_false(x->f.model->any_pieces);
	leave(x, 2, NULL);
	assert_int_equal(ask(x, PROMPT, NULL), (PROMPT - 1) / SCHEDULER_PREFILL_CHUNK * SCHEDULER_PREFILL_CHUNK);
	assert_int_equal(stats_of(x).reads, 1);
}

/* A cache of a few tokens is small on the disk: the rest of its slot may belong to others. */
static void only_what_the_tokens_have_written_is_stored(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	random_tokens(ids, LONG, 3);
	ask(x, 300, NULL);
	restart(x);
	assert_int_equal(count_files(x, &bytes), 1);
	const int64_t slot = (int64_t)statepool_slot_bytes(x->f.model->pool);
	assert_in_range(bytes, slot * 256 / LONG, slot * 256 / LONG + 256 * (int64_t)sizeof(int32_t) + 256);
}

static void states_leave_memory_for_the_disk_and_return(void **state)
{
	disk_fixture *x = *state;
	prefix_cache *c = &x->f.scheduler->prefixes;
	random_tokens(ids, LONG, 4);
	ask(x, PROMPT, NULL);
	c->limit = c->bytes;
	for (int i = 1; i < 4; i++) {
		ids[0] = 3 + i;
		assert_int_equal(ask(x, PROMPT, NULL), 0);
		assert_true(c->bytes <= c->limit);
	}
	assert_true(settle(x).writes >= 3);
	for (int i = 1; i < 4; i++) {
		ids[0] = 3 + i;
		assert_true(ask(x, PROMPT, NULL) >= PROMPT - 1);
		settle(x);
	}
	assert_in_range(stats_of(x).reads, 2, 3);
	assert_true(c->bytes <= c->limit);
}

static void an_owner_reads_its_own_states_only(void **state)
{
	disk_fixture *x = *state;
	leave(x, 5, "a");
	assert_int_equal(ask(x, PROMPT, "b"), 0);
	assert_int_equal(ask(x, PROMPT, NULL), 0);
	assert_int_equal(stats_of(x).reads, 0);
	assert_true(ask(x, PROMPT, "a") > 0);
}

static void a_removed_owner_has_no_states(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 6, "a");
	ask(x, PROMPT, "a"); /* in memory, too */
	ask(x, PROMPT, "a tenant");
	ask(x, PROMPT, "b");
	const int before = count_files(x, &bytes);
	prefix_disk_remove_owner(x->disk, "a");
	assert_int_equal(settle(x).states, 0);
	assert_int_equal(ask(x, PROMPT, "a"), 0);
	assert_int_equal(ask(x, PROMPT, "a tenant"), 0);
	restart(x);
	assert_in_range(count_files(x, &bytes), 1, before); /* b's */
	assert_int_equal(ask(x, PROMPT, "a"), 0);
	assert_true(ask(x, PROMPT, "b") > 0);
}

static void a_removed_model_has_no_states(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 7, "a");
	ask(x, PROMPT - 400, "a");
	assert_int_equal(scheduler_model_unload(x->f.scheduler, "m", NULL), STATUS_OK);
	prefix_disk_remove_model(x->disk, "another");
	assert_true(stats_of(x).states > 0);
	prefix_disk_remove_model(x->disk, "m"); /* also what waits to be written */
	assert_int_equal(settle(x).states, 0);
	assert_int_equal(count_files(x, &bytes), 0);
	restart(x);
	assert_int_equal(ask(x, PROMPT, "a"), 0);
}

/* Have the thread wait in a read, so that states stay queued. Writes the path of its file. */
static void block(disk_fixture *x, prefix_read *r, char path[256])
{
	*r = (prefix_read){.key = {1, 1, 1, 1}};
	snprintf(path, 256, "%s/%016x-%016x-%016x-1", x->kept, 1, 1, 1);
	assert_int_equal(mkfifo(path, 0600), 0);
	prefix_disk_read(x->disk, r);
}

static void unblock(disk_fixture *x, prefix_read *r, const char *path)
{
	fclose(fopen(path, "w"));
	prefix_disk_cancel(x->disk, r);
	assert_int_equal(unlink(path), 0);
}

static void what_is_queued_is_removed_with_its_model(void **state)
{
	disk_fixture *x = *state;
	prefix_read r;
	char path[256];
	int64_t bytes;
	block(x, &r, path);
	random_tokens(ids, LONG, 71);
	ask(x, PROMPT, NULL);
	prefixes_free(&x->f.scheduler->prefixes, x->f.model);
	assert_true(stats_of(x).waiting > 0);
	prefix_disk_remove_model(x->disk, "m");
	unblock(x, &r, path);
	assert_int_equal(settle(x).writes, 0);
	assert_int_equal(count_files(x, &bytes), 0);
}

/* Queue n of the largest states and return how many are queued then. */
static int64_t put_largest(disk_fixture *x, uint64_t n, int64_t extra)
{
	static uint64_t hash;
	for (uint64_t i = 0; i < n; i++) {
		session_transfer t = {.blob = calloc(1, PREFIX_DISK_STATE_BYTES), .bytes = PREFIX_DISK_STATE_BYTES};
		prefix_disk_put(x->disk, &(prefix_key){prefix_disk_name("m"), 0, ++hash, 1}, &t, extra);
	}
	return stats_of(x).waiting;
}

static void the_queue_has_a_limit(void **state)
{
	enum { FITTING = PREFIX_DISK_QUEUE_BYTES / PREFIX_DISK_STATE_BYTES };
	disk_fixture *x = *state;
	prefix_read r;
	char path[256];
	block(x, &r, path);
	assert_int_equal(put_largest(x, FITTING + 1, 0), FITTING);
	assert_int_equal(put_largest(x, 3, 2 * PREFIX_DISK_STATE_BYTES), FITTING + 2);
	assert_int_equal(stats_of(x).unwritten, 2);
	prefix_disk_remove_model(x->disk, "m");
	unblock(x, &r, path);
	assert_int_equal(settle(x).writes, 0);
}

/* As after a kill between the removal of a model and that of its files. */
static void the_start_removes_files_of_models_that_do_not_exist(void **state)
{
	disk_fixture *x = *state;
	const char *const names[] = {"m", "other"};
	int64_t bytes;
	for (int i = 0; i < 2; i++) {
		leave(x, 70, NULL);
		stop(x);
		x->models.names = malloc(sizeof *x->models.names);
		x->models.names[x->models.n++] = prefix_disk_name(names[i]);
		serve(x);
		assert_int_equal(count_files(x, &bytes), i == 0);
		prefix_disk_remove_model(x->disk, "m");
		settle(x);
	}
}

static void damage(const disk_fixture *x, void (*how)(const char *path, int64_t bytes))
{
	char path[256];
	struct stat st;
	for (int i = 0; file_at(x, i, path); i++) {
		assert_int_equal(stat(path, &st), 0);
		how(path, st.st_size);
	}
}

static void cut(const char *path, int64_t bytes)
{
	assert_int_equal(truncate(path, bytes / 2), 0);
}

static void cut_all(const char *path, int64_t bytes)
{
	(void)bytes;
	assert_int_equal(truncate(path, 0), 0);
}

static void flip(const char *path, int64_t bytes)
{
	FILE *file = fopen(path, "r+b");
	assert_int_equal(fseek(file, (long)bytes / 3, SEEK_SET), 0);
	const int c = fgetc(file);
	assert_int_equal(fseek(file, (long)bytes / 3, SEEK_SET), 0);
	fputc(c ^ 16, file);
	fclose(file);
}

static void a_damaged_state_is_not_used(void **state)
{
	disk_fixture *x = *state;
	void (*const ways[])(const char *path, int64_t bytes) = {cut, cut_all, flip};
	for (uint64_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		leave(x, 8 + i, NULL);
		stop(x);
		damage(x, ways[i]);
		serve(x);
		const int64_t states = stats_of(x).states;
		assert_true(states > 0);
		assert_int_equal(ask(x, PROMPT, NULL), 0);
		const prefix_disk_stats s = settle(x);
		assert_int_equal(s.reads, 0);
		assert_in_range(s.damaged, 1, states); /* and each of them once */
		assert_int_equal(s.states, states - (int64_t)s.damaged);
	}
}

/* A whole file under another's name has other tokens. */
static void a_state_under_another_name_is_not_used(void **state)
{
	disk_fixture *x = *state;
	char first[256], second[256];
	int64_t bytes;
	leave(x, 20, NULL);
	assert_true(file_at(x, 0, first));
	leave(x, 21, NULL);
	stop(x);
	assert_int_equal(count_files(x, &bytes), 2);
	for (int i = 0; i < 2; i++)
		if (file_at(x, i, second) && strcmp(first, second) != 0)
			break;
	assert_int_equal(rename(first, second), 0);
	serve(x);
	assert_int_equal(ask(x, PROMPT, NULL), 0);
	assert_int_equal(settle(x).states, 0);
}

static void other_files_in_the_folder_are_removed(void **state)
{
	disk_fixture *x = *state;
	char path[160];
	int64_t bytes;
	leave(x, 21, NULL);
	const int n = count_files(x, &bytes);
	stop(x);
	snprintf(path, sizeof path, "%s/note", x->kept);
	assert_int_equal(file_write_scratch(path, "text", 4, NULL), STATUS_OK);
	serve(x);
	assert_int_equal(count_files(x, &bytes), n);
	assert_true(ask(x, PROMPT, NULL) > 0);
}

static void the_least_recently_used_files_leave_the_limit(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 22, NULL);
	count_files(x, &bytes);
	x->limit = 3 * bytes;
	for (int i = 1; i < 6; i++) {
		restart(x);
		ids[0] = 3 + i;
		assert_int_equal(ask(x, PROMPT, NULL), 0);
		restart(x);
		ids[0] = 4; /* stays in use */
		assert_true(ask(x, PROMPT, NULL) > 0);
		count_files(x, &bytes);
		assert_true(bytes <= x->limit);
	}
	x->limit = 0;
	restart(x);
	assert_int_equal(access(x->kept, F_OK), -1); /* off: nothing stays on the disk */
}

static void writing_keeps_the_limit(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 23, NULL);
	count_files(x, &bytes);
	x->limit = 2 * bytes;
	restart(x);
	for (int i = 0; i < 4; i++) {
		ids[0] = 3 + i;
		ask(x, PROMPT, NULL);
		prefixes_free(&x->f.scheduler->prefixes, x->f.model);
		const int64_t counted = settle(x).bytes;
		count_files(x, &bytes);
		assert_int_equal(bytes, counted);
		assert_in_range(bytes, 1, x->limit);
	}
	assert_true(stats_of(x).writes >= 3);
}

/* The disk does not write a file only to remove it for a later one. */
static void a_model_that_is_unloaded_writes_what_the_limit_allows(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 24, NULL);
	const int files = count_files(x, &bytes);
	x->limit = 2 * bytes + bytes / 2;
	restart(x);
	for (int i = 0; i < 5; i++) {
		ids[0] = 3 + i;
		assert_int_equal(ask(x, PROMPT, NULL), 0);
	}
	assert_int_equal(settle(x).writes, 0);
	prefixes_free(&x->f.scheduler->prefixes, x->f.model);
	assert_in_range(settle(x).writes, files, 5 * files / 2);
	restart(x);
	assert_true(ask(x, PROMPT, NULL) > 0); /* the latest */
}

/* A limit that shrinks applies at once. */
static void a_smaller_limit_removes_files_at_the_start(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes, less;
	for (uint64_t i = 0; i < 3; i++)
		leave(x, 30 + i, NULL);
	count_files(x, &bytes);
	x->limit = bytes / 2;
	restart(x);
	assert_true(count_files(x, &less) > 0 && less <= x->limit);
	assert_int_equal(stats_of(x).bytes, less);
	assert_true(ask(x, PROMPT, NULL) > 0); /* the latest */
}

static void a_disk_that_cannot_be_written_fails_nothing(void **state)
{
	disk_fixture *x = *state;
	struct rlimit before, none;
	int64_t bytes;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	none = (struct rlimit){.rlim_cur = 10, .rlim_max = before.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
	random_tokens(ids, LONG, 40);
	ask(x, PROMPT, NULL);
	prefixes_free(&x->f.scheduler->prefixes, x->f.model);
	assert_int_equal(ask(x, PROMPT, NULL), 0);
	const prefix_disk_stats s = settle(x);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(s.writes, 0);
	assert_true(s.unwritten > 0);
	assert_int_equal(count_files(x, &bytes), 0);
}

/* Files are removed while the file system is nearly full, and no state is written. */
static void a_full_disk_gets_its_room_back(void **state)
{
	disk_fixture *x = *state;
	int64_t bytes;
	leave(x, 43, NULL);
	assert_true(count_files(x, &bytes) > 0);
	x->least_free = INT64_MAX / 2;
	restart(x);
	while (stats_of(x).states > 0)
		usleep(1000);
	settle(x);
	assert_int_equal(count_files(x, &bytes), 0);
	ask(x, PROMPT, NULL);
	prefixes_free(&x->f.scheduler->prefixes, x->f.model);
	assert_int_equal(settle(x).writes, 0);
	assert_true(stats_of(x).unwritten > 0);
	assert_int_equal(ask(x, PROMPT, NULL), 0);
}

/* A state that is faster to compute than to read is neither written nor read. */
static void a_state_that_saves_no_time_is_not_used(void **state)
{
	disk_fixture *x = *state;
	leave(x, 41, NULL);
	x->f.model->prompt_ns = 1;
	assert_int_equal(ask(x, PROMPT, NULL), 0);
	assert_int_equal(stats_of(x).reads, 0);
	const uint64_t unwritten = stats_of(x).unwritten;
	x->f.model->prompt_ns = 1;
	prefixes_free(&x->f.scheduler->prefixes, x->f.model);
	assert_int_equal(settle(x).writes, 0);
	assert_int_equal(stats_of(x).unwritten, unwritten);
}

/* A slow disk delays a prompt by PREFIXES_WAIT_NS at most. */
static void a_prompt_does_not_wait_for_a_slow_disk(void **state)
{
	disk_fixture *x = *state;
	leave(x, 42, NULL);
	prefix_cache *c = &x->f.scheduler->prefixes;
	generation_request r = request(&with, ids, PROMPT, 2);
	prefix_wait w = {0}, other = {0}, without_state = {0};
	generation_request b = r;
	b.owner = "b";
	assert_false(scheduler_prefix_ready(x->f.scheduler, "m", &r, &w));
	while (!atomic_load(&c->read.done))
		usleep(1000);
	atomic_store(&c->read.done, false); /* as if it took longer */
	w.since_ns = c->read.began_ns = clock_ns();
	assert_false(scheduler_prefix_ready(x->f.scheduler, "m", &r, &w));
	assert_true(scheduler_prefix_ready(x->f.scheduler, "m", &b, &without_state)); /* it has nothing to read */
	w.since_ns -= PREFIXES_WAIT_NS;
	assert_true(scheduler_prefix_ready(x->f.scheduler, "m", &r, &w));
	c->read.began_ns -= PREFIXES_WAIT_NS; /* and others do not begin to wait for it */
	assert_true(scheduler_prefix_ready(x->f.scheduler, "m", &r, &other));
	run(&x->f, NULL, &with, &r);
	assert_int_equal(with.result.cached_tokens, 0);
	atomic_store(&c->read.done, true);
	assert_true(ask(x, PROMPT, NULL) > 0);
}

static void a_read_in_progress_is_cancelled_with_its_model(void **state)
{
	disk_fixture *x = *state;
	for (uint64_t i = 0; i < 5; i++) {
		leave(x, 50 + i, NULL);
		generation_request r = request(&with, ids, PROMPT, 2);
		prefix_wait w = {0};
		assert_false(scheduler_prefix_ready(x->f.scheduler, "m", &r, &w));
		usleep((useconds_t)(100 * i));
		restart(x);
	}
	assert_true(ask(x, PROMPT, NULL) > 0);
}

/* A model is unloaded, and its read is gone, while the thread still waits for the disk. */
static void a_cancelled_read_does_not_wait_for_the_disk(void **state)
{
	disk_fixture *x = *state;
	prefix_read first = {.key = {2, 2, 2, 2}}, *r = calloc(1, sizeof *r);
	char path[256];
	prefix_disk_read(x->disk, &first); /* there is no such file, so it ends at once */
	block(x, r, path);
	while (!atomic_load(&first.done))
		usleep(1000);
	usleep(20000); /* the thread is in the next read, or this test shows nothing */
	prefix_disk_cancel(x->disk, r);
	assert_int_equal(r->began_ns, 0);
	free(r);
	unblock(x, &first, path);
	settle(x);
	assert_null(first.blob.blob);
}

static void a_bare_blob_is_no_session(void **state)
{
	disk_fixture *x = *state;
	char path[256], *data;
	size_t bytes;
	session *made;
	leave(x, 60, NULL);
	assert_true(file_at(x, 0, path));
	assert_int_equal(file_read(path, 1 << 24, &data, &bytes, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_import(x->f.scheduler, x->f.model, "s", data, bytes, &made, NULL),
	                 STATUS_UNSUPPORTED);
	assert_null(scheduler_session_find(x->f.scheduler, "s"));
	free(data);
	made = open_session(&x->f, "s", POSITION_ERROR, false);
	append(&x->f, made, ids, PROMPT);
	session_transfer t = {.bare = true};
	assert_int_equal(scheduler_session_export(x->f.scheduler, made, (void **)&t.blob, &t.bytes, NULL), STATUS_OK);
	assert_int_equal(session_blob_check(x->f.model, &t, NULL), STATUS_UNSUPPORTED);
	t.bare = false;
	assert_int_equal(session_blob_check(x->f.model, &t, NULL), STATUS_OK);
	scheduler_transfer_fini(&t);
	drop(&x->f, made);
}

/* Prompts that branch at random, with room in memory for one or two states. */
static void random_conversations_have_the_same_tokens(void **state)
{
	disk_fixture *x = *state;
	uint64_t random = 61;
	int64_t cached = 0;
	random_tokens(ids, LONG, 62);
	x->f.scheduler->prefixes.limit = 40000;
	for (int i = 0; i < 30; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		const int64_t n = PROMPT / 2 + (int64_t)(random >> 33) % (PROMPT / 2),
		              from = (int64_t)(random >> 43) % n;
		if (i % 3 == 0)
			random_tokens(ids + from, LONG - from, random);
		cached += ask(x, n, i % 2 ? "a" : "b");
	}
	assert_true(cached > PROMPT);
	assert_true(stats_of(x).reads > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_state_returns_after_a_restart, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_state_of_whole_pieces_returns, setup_gpt2, teardown_disk),
	    cmocka_unit_test_setup_teardown(only_what_the_tokens_have_written_is_stored, setup_gpt2, teardown_disk),
	    cmocka_unit_test_setup_teardown(states_leave_memory_for_the_disk_and_return, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(an_owner_reads_its_own_states_only, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_removed_owner_has_no_states, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_removed_model_has_no_states, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(what_is_queued_is_removed_with_its_model, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(the_queue_has_a_limit, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(the_start_removes_files_of_models_that_do_not_exist, setup_disk,
	                                    teardown_disk),
	    cmocka_unit_test_setup_teardown(a_damaged_state_is_not_used, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_state_under_another_name_is_not_used, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(other_files_in_the_folder_are_removed, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(the_least_recently_used_files_leave_the_limit, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(writing_keeps_the_limit, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_model_that_is_unloaded_writes_what_the_limit_allows, setup_disk,
	                                    teardown_disk),
	    cmocka_unit_test_setup_teardown(a_smaller_limit_removes_files_at_the_start, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_disk_that_cannot_be_written_fails_nothing, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_full_disk_gets_its_room_back, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_state_that_saves_no_time_is_not_used, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_prompt_does_not_wait_for_a_slow_disk, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_read_in_progress_is_cancelled_with_its_model, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_cancelled_read_does_not_wait_for_the_disk, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_bare_blob_is_no_session, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(random_conversations_have_the_same_tokens, setup_disk, teardown_disk),
	};
	return RUN_ALL_WAYS(tests);
}
