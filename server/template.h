/* template.h - fill in a page of server/pages: each "{{name}}" is replaced by the output of the part with that name.
 * The output is not scanned again. */
#ifndef SERVER_TEMPLATE_H
#define SERVER_TEMPLATE_H

#include "server/buffer.h"
#include "server/embedded.h"

typedef struct template_part {
	const char *name;
	void (*write)(buffer *out, const void *context);
} template_part;

/* parts ends with a NULL name and has every name of the file. */
void template_write(buffer *out, const embedded_file *file, const template_part *parts, const void *context);

#endif
