#include "engine/base/death_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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
	int64_t place, place_before; /* in this process and at the previous death */
	int64_t died;                /* Unix time of the last death */
} entry;

typedef struct page {
	char magic[8];
	entry entries[DEATH_LOG_ENTRIES];
} page;

static const char magic[8] = "ADDLOG01";

struct death_log {
	pthread_mutex_t lock;
	page *page;
};

static void count_deaths(page *p)
{
	for (int i = 0; i < DEATH_LOG_ENTRIES; i++) {
		entry *e = &p->entries[i];
		if (e->running <= 0)
			continue;
		e->deaths = e->place > e->place_before ? 1 : e->deaths + 1;
		e->place_before = e->place > e->place_before ? e->place : e->place_before;
		e->died = clock_unix();
		e->running = 0;
		e->place = 0;
	}
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
	*out = l;
	return STATUS_OK;
}

void death_log_close(death_log *l)
{
	if (!l)
		return;
	munmap(l->page, sizeof *l->page);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static uint64_t key_of(const char *work)
{
	uint64_t key = digest_bytes(work, strlen(work));
	return key ? key : 1;
}

static entry *find(death_log *l, const char *work)
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

static void release_unused(entry *e)
{
	if (!e->running && !e->deaths)
		*e = (entry){0};
}

void death_log_begin(death_log *l, const char *work)
{
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	entry *e = find(l, work);
	if (!e && (e = find_room(l)))
		*e = (entry){.work = key_of(work)};
	if (e)
		e->running++;
	pthread_mutex_unlock(&l->lock);
}

/* Lock the log and find the entry of a piece of work. NULL: there is none, and the log is not locked. */
static entry *take(death_log *l, const char *work)
{
	if (!l)
		return NULL;
	pthread_mutex_lock(&l->lock);
	entry *e = find(l, work);
	if (!e)
		pthread_mutex_unlock(&l->lock);
	return e;
}

static void give_back(death_log *l, entry *e)
{
	release_unused(e);
	pthread_mutex_unlock(&l->lock);
}

void death_log_end(death_log *l, const char *work)
{
	entry *e = take(l, work);
	if (!e)
		return;
	if (e->running > 0)
		e->running--;
	give_back(l, e);
}

void death_log_progress(death_log *l, const char *work, int64_t place)
{
	entry *e = take(l, work);
	if (!e)
		return;
	if (place > e->place)
		e->place = place;
	if (e->place > e->place_before)
		e->deaths = 0;
	give_back(l, e);
}

void death_log_forget(death_log *l, const char *work)
{
	entry *e = take(l, work);
	if (!e)
		return;
	e->deaths = 0;
	give_back(l, e);
}

int death_log_count(death_log *l, const char *work)
{
	entry *e = take(l, work);
	int deaths = e ? e->deaths : 0;
	if (e)
		give_back(l, e);
	return deaths;
}

bool death_log_refuses(death_log *l, const char *work)
{
	entry *e = take(l, work);
	if (!e)
		return false;
	bool refused = e->deaths >= DEATH_LOG_LIMIT && clock_unix() - e->died < DEATH_LOG_PAUSE_SECONDS;
	give_back(l, e);
	return refused;
}
