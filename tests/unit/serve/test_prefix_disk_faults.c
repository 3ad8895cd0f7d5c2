/* A state on the disk that is damaged is as good as none. A slow, full or faulty disk delays and fails nothing. */
#include "tests/unit/serve/disk_fixture.h"

#include <signal.h>
#include <sys/resource.h>

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
	x->limit = 4 * PREFIX_DISK_STATE_BYTES;
	restart(x);
	block(x, &r, path);
	assert_int_equal(put_largest(x, FITTING + 1, 0), FITTING);
	assert_int_equal(put_largest(x, 3, 2 * PREFIX_DISK_STATE_BYTES), FITTING + 2);
	assert_int_equal(stats_of(x).unwritten, 2);
	prefix_disk_remove_model(x->disk, "m");
	unblock(x, &r, path);
	assert_int_equal(settle(x).writes, 0);
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
	assert_null(first.state.blob);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(what_is_queued_is_removed_with_its_model, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(the_queue_has_a_limit, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_damaged_state_is_not_used, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_state_under_another_name_is_not_used, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(other_files_in_the_folder_are_removed, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_disk_that_cannot_be_written_fails_nothing, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_full_disk_gets_its_room_back, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_state_that_saves_no_time_is_not_used, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_prompt_does_not_wait_for_a_slow_disk, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_read_in_progress_is_cancelled_with_its_model, setup_disk, teardown_disk),
	    cmocka_unit_test_setup_teardown(a_cancelled_read_does_not_wait_for_the_disk, setup_disk, teardown_disk),
	};
	return RUN_ALL_WAYS(tests);
}
