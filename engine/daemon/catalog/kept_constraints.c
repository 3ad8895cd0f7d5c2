#include "engine/daemon/catalog/kept_constraints.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* shared by all models */

static int kept_constraints_locate(const kept_constraints *k, const char *format)
{
	for (int i = 0; i < KEPT_CONSTRAINTS && k->places[i].constraint; i++)
		if (strcmp(k->places[i].format, format) == 0)
			return i;
	return -1;
}

static void kept_constraints_release(struct kept_constraint *place)
{
	free(place->format);
	constraint_free(place->constraint);
	*place = (struct kept_constraint){0};
}

/* Move the first i places one back. */
static void move_back(kept_constraints *k, int i)
{
	memmove(&k->places[1], &k->places[0], (size_t)i * sizeof *k->places);
}

constraint *kept_constraints_find(kept_constraints *k, const char *format)
{
	constraint *found = NULL;
	pthread_mutex_lock(&lock);
	const int i = kept_constraints_locate(k, format);
	if (i >= 0) {
		const struct kept_constraint place = k->places[i];
		move_back(k, i);
		k->places[0] = place;
		found = constraint_share(place.constraint);
	}
	pthread_mutex_unlock(&lock);
	return found;
}

void kept_constraints_add(kept_constraints *k, const char *format, constraint *c)
{
	char *copy = strlen(format) < KEPT_FORMAT_BYTES ? strdup(format) : NULL;
	pthread_mutex_lock(&lock);
	if (copy && kept_constraints_locate(k, format) < 0) {
		kept_constraints_release(&k->places[KEPT_CONSTRAINTS - 1]);
		move_back(k, KEPT_CONSTRAINTS - 1);
		k->places[0] = (struct kept_constraint){copy, constraint_share(c)};
		copy = NULL;
	}
	pthread_mutex_unlock(&lock);
	free(copy);
}

void kept_constraints_fini(kept_constraints *k)
{
	for (int i = 0; i < KEPT_CONSTRAINTS; i++)
		kept_constraints_release(&k->places[i]);
}
