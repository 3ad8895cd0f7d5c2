#include "proto/short_slice.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLICE_NS = 100000 };

void short_slice_take(void)
{
	struct sched_attr a;
	if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 || a.sched_policy != SCHED_NORMAL)
		return;
	a.size = sizeof a;
	a.sched_flags = SCHED_FLAG_RESET_ON_FORK;
	a.sched_runtime = SLICE_NS;
	(void)!syscall(SYS_sched_setattr, 0, &a, 0);
}
