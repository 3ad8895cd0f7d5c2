/* death_log.h - the work that was running when the process died, and how many times in a row.
 *
 * The log is a page of memory that is mapped from a file, so an entry survives the process without a system call. An
 * entry belongs to a piece of work: a job, a request, the loading of a model. Opening the log counts a death for each
 * entry that was running, unless the work had advanced since its previous deaths. Work that has died DEATH_LOG_LIMIT
 * times without progress is poison: its owner does not start it again.
 *
 * The log distinguishes two kinds of deaths. A crash (including a stack overflow and a sanitizer's finding), an exit()
 * of a library, and a kill by the kernel for lack of memory count in full. A kill from outside counts in full only for
 * work that had run for a second and had made no progress since its previous death. Otherwise it counts a quarter, so
 * that an operator's kills do not condemn innocent work.
 *
 * A power cut may lose the last entries; this only delays the verdict. Any thread. */
#ifndef ENGINE_BASE_DEATH_LOG_H
#define ENGINE_BASE_DEATH_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

enum { DEATH_LOG_LIMIT = 3, DEATH_LOG_ENTRIES = 1024, DEATH_LOG_PAUSE_SECONDS = 600 };

typedef struct death_log death_log;

/* One log per process: it handles the signals of a crash. A file that cannot be read as a log is replaced by an empty
 * one. */
status death_log_open(death_log **out, const char *path, error *err);
void death_log_close(death_log *l); /* NULL is legal */

/* Count a crash of the calling thread also if its stack has overflowed. The thread that opens the log needs no call. */
void death_log_guard_thread(void);
/* The process is alive now (clock_ns). Called every second or more often. */
void death_log_alive(death_log *l, uint64_t now_ns);
/* The process ends on purpose: no running work counts as dead. */
void death_log_pardon(death_log *l);

/* Start and end a piece of work; each begin needs one end. A NULL log is legal everywhere: nothing is counted. */
void death_log_begin(death_log *l, const char *work);
void death_log_end(death_log *l, const char *work);
/* The work has reached `place`, which only grows. Once it is past its place at the previous death, its deaths are
 * forgotten. */
void death_log_progress(death_log *l, const char *work, int64_t place);
/* Forget the deaths of a piece of work: it has succeeded, or a client wants it to be tried again. */
void death_log_forget(death_log *l, const char *work);
/* Deaths in a row. */
int death_log_count(death_log *l, const char *work);
/* True if the work has died too often. */
bool death_log_poison(death_log *l, const char *work);
/* True if the work has died too often and its last death was less than DEATH_LOG_PAUSE_SECONDS ago. */
bool death_log_refuses(death_log *l, const char *work);

#endif
