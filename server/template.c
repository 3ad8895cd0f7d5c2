#include "server/template.h"

#include <assert.h>
#include <string.h>

static const template_part *template_find(const template_part *parts, const char *name, size_t bytes)
{
	for (; parts->name; parts++)
		if (strlen(parts->name) == bytes && memcmp(parts->name, name, bytes) == 0)
			return parts;
	return NULL;
}

void template_write(buffer *out, const embedded_file *file, const template_part *parts, const void *context)
{
	const char *at = file->data, *mark, *end;
	while ((mark = strstr(at, "{{")) != NULL && (end = strstr(mark, "}}")) != NULL) {
		const template_part *part = template_find(parts, mark + 2, (size_t)(end - mark) - 2);
		assert(part && "a part of this name");
		buffer_append(out, at, (size_t)(mark - at));
		part->write(out, context);
		at = end + 2;
	}
	buffer_append(out, at, (size_t)(file->data + file->bytes - at));
}
