#include "engine/base/death_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"

typedef struct entry {
	uint64_t work; /* digest of the name; 0: the entry is free */
	int32_t running, deaths;
	int32_t weight;              /* sum over the deaths: FULL, or 1 for a kill from outside */
	int64_t place, place_before; /* in this process and the furthest at previous deaths */
	int64_t died;                /* Unix time of the last death */
	uint64_t began_ns;
} entry;

typedef struct page {
	char magic[8];
	uint64_t alive_ns;           /* the process was alive at this time */
	int64_t oom_kills;           /* the count of the machine when the process began; -1: unknown */
	volatile sig_atomic_t fatal; /* the process ended by itself: a crash, a sanitizer's finding, exit() */
	entry entries[DEATH_LOG_ENTRIES];
} page;

enum { FULL = 4 };
static const uint64_t long_ns = 1000000000;
static const char magic[8] = "ADDLOG02";

struct death_log {
	pthread_mutex_t lock;
	page *page;
};

/* --- the death of a process ----------------------------------------------------------------- */

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static page *crashing; /* the page of the process, for the signal handler */
static pid_t watched;  /* the process of the page */

static void on_crash(int number)
{
	crashing->fatal = 1;
	raise(number); /* delivered after the return, with the default action */
}

/* A library has called exit(), or a sanitizer has found a fault. A forked child shares the page. */
static void on_exit_unasked(void)
{
	if (crashing && watched == getpid())
		crashing->fatal = 1;
}

/* Defined where a sanitizer is. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

void death_log_guard_thread(void)
{
	enum { STACK_BYTES = 32 << 10 };
	static _Thread_local char stack[STACK_BYTES];
	stack_t before;
	if (sigaltstack(NULL, &before) == 0 && before.ss_flags & SS_DISABLE) /* a sanitizer has its own */
		sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
}

static void watch_crashes(page *p)
{
	crashing = p;
	if (!watched) {
		atexit(on_exit_unasked);
		if (__sanitizer_set_death_callback)
			__sanitizer_set_death_callback(on_exit_unasked);
	}
	watched = getpid();
	death_log_guard_thread();
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
		struct sigaction before;
		const struct sigaction mine = {.sa_handler = on_crash, .sa_flags = SA_RESETHAND | SA_ONSTACK};
		if (sigaction(signals[i], NULL, &before) == 0 &&
		    before.sa_handler == SIG_DFL) /* a sanitizer has its own */
			sigaction(signals[i], &mine, NULL);
	}
}

/* Processes that the kernel has killed for want of memory since the machine started; -1: unknown. */
static int64_t count_oom_kills(void)
{
	char line[128];
	long long kills = -1;
	FILE *f = fopen("/proc/vmstat", "re");
	while (f && kills < 0 && fgets(line, sizeof line, f))
		if (sscanf(line, "oom_kill %lld", &kills) != 1)
			kills = -1;
	if (f)
		fclose(f);
	return kills;
}

/* A kill from outside says little about short work, and about work that ended between two places of earlier runs. */
static bool is_suspect(const page *p, const entry *e)
{
	const bool reached = e->place == 0 || e->place >= e->place_before;
	return reached && p->alive_ns >= e->began_ns + long_ns;
}

static void count_deaths(page *p)
{
	const int64_t kills = count_oom_kills();
	const bool own = p->fatal || (p->oom_kills >= 0 && kills > p->oom_kills);
	for (int i = 0; i < DEATH_LOG_ENTRIES; i++) {
		entry *e = &p->entries[i];
		if (e->running <= 0)
			continue;
		const bool further = e->place > e->place_before;
		e->deaths = further ? 1 : e->deaths + 1;
		e->weight = (further ? 0 : e->weight) + (own || is_suspect(p, e) ? FULL : 1);
		e->place_before = further ? e->place : e->place_before;
		e->died = clock_unix();
		e->running = 0;
		e->place = 0;
	}
	p->fatal = 0;
	p->oom_kills = kills;
}

static status map_page(death_log *l, const char *path, error *err)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return file_error(err, path, "cannot open");
	/* Blocks are reserved: a write to a hole on a full disk would be a SIGBUS. */
	int failed = ftruncate(fd, sizeof *l->page) != 0 ? errno : posix_fallocate(fd, 0, sizeof *l->page);
	void *memory = failed ? MAP_FAILED : mmap(NULL, sizeof *l->page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	errno = failed ? failed : errno;
	status s = memory == MAP_FAILED ? file_error(err, path, "cannot map") : STATUS_OK;
	close(fd);
	l->page = s == STATUS_OK ? memory : NULL;
	return s;
}

status death_log_open(death_log **out, const char *path, error *err)
{
	*out = NULL;
	death_log *l = memory_new(1, sizeof *l);
	if (!l)
		return STATUS_NOMEM;
	status s = map_page(l, path, err);
	if (s != STATUS_OK) {
		free(l);
		return s;
	}
	if (memcmp(l->page->magic, magic, sizeof magic) != 0) {
		memset(l->page, 0, sizeof *l->page);
		memcpy(l->page->magic, magic, sizeof magic);
	}
	pthread_mutex_init(&l->lock, NULL);
	count_deaths(l->page);
	watch_crashes(l->page);
	*out = l;
	return STATUS_OK;
}

void death_log_close(death_log *l)
{
	if (!l)
		return;
	if (crashing == l->page) {
		for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
			struct sigaction now;
			if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler == on_crash)
				signal(signals[i], SIG_DFL);
		}
		crashing = NULL;
	}
	munmap(l->page, sizeof *l->page);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

void death_log_alive(death_log *l, uint64_t now_ns)
{
	if (l)
		l->page->alive_ns = now_ns;
}

void death_log_pardon(death_log *l)
{
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	for (int i = 0; i < DEATH_LOG_ENTRIES; i++)
		l->page->entries[i].running = 0;
	pthread_mutex_unlock(&l->lock);
}

/* --- entries -------------------------------------------------------------------------------- */

static uint64_t key_of(const char *work)
{
	uint64_t key = digest_bytes(work, strlen(work));
	return key ? key : 1;
}

static entry *death_log_find(death_log *l, const char *work)
{
	uint64_t key = key_of(work);
	for (int i = 0; i < DEATH_LOG_ENTRIES; i++)
		if (l->page->entries[i].work == key)
			return &l->page->entries[i];
	return NULL;
}

/* A free entry, or else the one whose death is the oldest; NULL if all are running. */
static entry *find_room(death_log *l)
{
	entry *oldest = NULL;
	for (int i = 0; i < DEATH_LOG_ENTRIES; i++) {
		entry *e = &l->page->entries[i];
		if (!e->work)
			return e;
		if (!e->running && (!oldest || e->died < oldest->died))
			oldest = e;
	}
	return oldest;
}

void death_log_begin(death_log *l, const char *work)
{
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	entry *e = death_log_find(l, work);
	if (!e && (e = find_room(l)))
		*e = (entry){.work = key_of(work)};
	if (e && e->running++ == 0)
		e->began_ns = clock_ns();
	pthread_mutex_unlock(&l->lock);
}

/* Lock the log and find the entry of a piece of work. NULL: there is none, and the log is not locked. */
static entry *death_log_take(death_log *l, const char *work)
{
	if (!l)
		return NULL;
	pthread_mutex_lock(&l->lock);
	entry *e = death_log_find(l, work);
	if (!e)
		pthread_mutex_unlock(&l->lock);
	return e;
}

static void give_back(death_log *l, entry *e)
{
	if (!e->running && !e->deaths)
		*e = (entry){0};
	pthread_mutex_unlock(&l->lock);
}

void death_log_end(death_log *l, const char *work)
{
	entry *e = death_log_take(l, work);
	if (!e)
		return;
	if (e->running > 0)
		e->running--;
	give_back(l, e);
}

void death_log_progress(death_log *l, const char *work, int64_t place)
{
	entry *e = death_log_take(l, work);
	if (!e)
		return;
	if (place > e->place)
		e->place = place;
	if (e->place > e->place_before)
		e->deaths = e->weight = 0;
	give_back(l, e);
}

void death_log_forget(death_log *l, const char *work)
{
	entry *e = death_log_take(l, work);
	if (!e)
		return;
	e->deaths = e->weight = 0;
	give_back(l, e);
}

int death_log_count(death_log *l, const char *work)
{
	entry *e = death_log_take(l, work);
	int deaths = e ? e->deaths : 0;
	if (e)
		give_back(l, e);
	return deaths;
}

static bool is_poison(const entry *e)
{
	return e->weight >= DEATH_LOG_LIMIT * FULL;
}

bool death_log_poison(death_log *l, const char *work)
{
	entry *e = death_log_take(l, work);
	if (!e)
		return false;
	bool poison = is_poison(e);
	give_back(l, e);
	return poison;
}

bool death_log_refuses(death_log *l, const char *work)
{
	entry *e = death_log_take(l, work);
	if (!e)
		return false;
	bool refused = is_poison(e) && clock_unix() - e->died < DEATH_LOG_PAUSE_SECONDS;
	give_back(l, e);
	return refused;
}
