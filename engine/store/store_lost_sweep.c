/* Keeps lost/ within its limits: blobs that an operator has not restored are removed after some days, or when there are
 * too many. A blob's modification time in lost/ is the time when it was set aside. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/log.h"
#include "engine/store/maintenance.h"
#include "engine/store/store_private.h"

enum { DAY_SECONDS = 24 * 3600 };

typedef struct lost_item {
	char kind[64], name[256];
	int64_t set_aside, bytes;
} lost_item;

typedef struct lost_list {
	lost_item *items;
	size_t n;
	int64_t bytes;
} lost_list;

void lost_date(const char *path)
{
	utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
}

static void add_item(void *context, const char *kind, const char *name, const char *path)
{
	lost_list *all = context;
	struct stat st;
	lost_item *more = lstat(path, &st) == 0 ? realloc(all->items, (all->n + 1) * sizeof *more) : NULL;
	if (!more) /* removed meanwhile, or no memory: the next sweep sees it */
		return;
	all->items = more;
	lost_item *item = &more[all->n++];
	*item = (lost_item){.set_aside = st.st_mtime, .bytes = store_bytes_below(path)};
	snprintf(item->kind, sizeof item->kind, "%s", kind);
	snprintf(item->name, sizeof item->name, "%s", name);
	all->bytes += item->bytes;
}

static int by_age(const void *a, const void *b)
{
	const lost_item *x = a, *y = b;
	return (x->set_aside > y->set_aside) - (x->set_aside < y->set_aside);
}

static bool remove_item(const char *folder, const lost_item *item, const char *reason)
{
	error err = ERROR_INIT;
	const bool removed = lost_remove(folder, item->kind, item->name, &err) == STATUS_OK;
	log_line(LOG_WARN, removed ? "lost/%s/%s is removed: %s" : "lost/%s/%s cannot be removed: %s", item->kind,
	         item->name, removed ? reason : error_message(&err));
	return removed;
}

int64_t store_lost_sweep(const char *folder, int64_t now, const lost_limits *limits)
{
	lost_list all = {0};
	store_lost_walk(folder, add_item, &all);
	if (all.n > 1)
		qsort(all.items, all.n, sizeof *all.items, by_age);
	int64_t left = (int64_t)all.n;
	for (size_t i = 0; i < all.n; i++) {
		const lost_item *item = &all.items[i];
		const int64_t age = now - item->set_aside;
		const bool too_old = limits->days > 0 && age > (int64_t)limits->days * DAY_SECONDS,
		           too_much = limits->bytes > 0 && all.bytes > limits->bytes && age > DAY_SECONDS;
		if (!too_old && !too_much)
			continue;
		if (!remove_item(folder, item,
		                 too_old ? "it was lost for longer than --lost-days" : "lost/ is over --lost-bytes"))
			continue;
		all.bytes -= item->bytes;
		left--;
	}
	free(all.items);
	return left;
}
