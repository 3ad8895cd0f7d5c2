#include "engine/text/tokenizer_share.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tokenizer *first; /* by `next` */

static bool are_same(const tokenizer *a, const tokenizer *b)
{
	bool same = a->n_files == b->n_files && strcmp(a->model_type, b->model_type) == 0;
	for (int i = 0; i < a->n_files && same; i++) {
		const tokenizer_file_data *x = &a->files[i], *y = &b->files[i];
		same = x->bytes == y->bytes && strcmp(x->name, y->name) == 0 && memcmp(x->data, y->data, x->bytes) == 0;
	}
	return same;
}

/* With the lock. */
static tokenizer *find(const tokenizer *files)
{
	tokenizer *t = first;
	while (t && !are_same(t, files))
		t = t->next;
	if (t)
		t->users++;
	return t;
}

tokenizer *tokenizer_share_find(const tokenizer *files)
{
	pthread_mutex_lock(&lock);
	tokenizer *found = find(files);
	pthread_mutex_unlock(&lock);
	return found;
}

tokenizer *tokenizer_share_add(tokenizer *t)
{
	pthread_mutex_lock(&lock);
	tokenizer *found = find(t);
	if (!found) {
		t->users = 1;
		t->next = first;
		first = t;
	}
	pthread_mutex_unlock(&lock);
	return found ? found : t;
}

bool tokenizer_share_leave(tokenizer *t)
{
	pthread_mutex_lock(&lock);
	const bool last = t->users <= 1;
	t->users--;
	tokenizer **link = &first;
	while (last && *link && *link != t)
		link = &(*link)->next;
	if (last && *link)
		*link = t->next;
	pthread_mutex_unlock(&lock);
	return last;
}
