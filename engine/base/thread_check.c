#include "engine/base/thread_check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/base/memory.h"

static void *wait_for_all(void *mutex)
{
	pthread_mutex_lock(mutex);
	pthread_mutex_unlock(mutex);
	return NULL;
}

static status thread_check_refuse(int n, int created, int code, error *err)
{
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
	char most[32] = "unlimited";
	getrlimit(RLIMIT_NPROC, &limit);
	if (limit.rlim_cur != RLIM_INFINITY)
		snprintf(most, sizeof most, "%llu", (unsigned long long)limit.rlim_cur);
	return error_set(err, STATUS_NOMEM, NULL,
	                 "only %d of %d threads can be created: %s. Raise the limit of processes (ulimit -u is %s) or "
	                 "pids.max of the control group, or use fewer --threads",
	                 created, n, strerror(code), most);
}

status thread_check(int n, error *err)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_t *threads = memory_new((size_t)n, sizeof *threads);
	int created = 0, code = 0;
	if (!threads)
		return error_settle(err, STATUS_NOMEM);
	pthread_mutex_lock(&mutex);
	while (created < n && (code = pthread_create(&threads[created], NULL, wait_for_all, &mutex)) == 0)
		created++;
	pthread_mutex_unlock(&mutex);
	for (int i = 0; i < created; i++)
		pthread_join(threads[i], NULL);
	free(threads);
	return created == n ? STATUS_OK : thread_check_refuse(n, created, code, err);
}
