#include "engine/text/huggingface/word_room.h"

#include <stdlib.h>

static void free_all(word_room *r)
{
	free(r->ids);
	free(r->lengths);
	free(r->next);
	free(r->previous);
	free(r->heap);
	r->ids = NULL;
	r->lengths = r->next = r->previous = NULL;
	r->heap = NULL;
	r->capacity = 0;
}

void word_room_fini(word_room *r)
{
	free_all(r);
	free(r->name);
	free(r->nodes);
	*r = (word_room){0};
}

status word_room_reserve(word_room *r, size_t count)
{
	if (count <= r->capacity)
		return STATUS_OK;
	free_all(r);
	r->ids = malloc(count * sizeof *r->ids);
	r->lengths = malloc(count * sizeof *r->lengths);
	if (!r->ids || !r->lengths)
		return STATUS_NOMEM;
	r->capacity = count;
	return STATUS_OK;
}
