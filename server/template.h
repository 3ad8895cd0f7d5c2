/* template.h - a page out of a file of server/pages: "{{name}}" in it is replaced by what the part of that name
 * appends. What a part appends is not looked at again. */
#ifndef SERVER_TEMPLATE_H
#define SERVER_TEMPLATE_H

#include "server/buffer.h"
#include "server/embedded.h"

typedef struct template_part {
	const char *name;
	void (*write)(buffer *out, const void *context);
} template_part;

/* parts ends with a NULL name, and has every name of the file: the parts and the file are of one program. */
void template_write(buffer *out, const embedded_file *file, const template_part *parts, const void *context);

#endif
