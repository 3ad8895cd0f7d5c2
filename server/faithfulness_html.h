/* faithfulness_html.h - an evaluation of explanation methods as one self-contained page (server/pages/faithfulness.*):
 * charts, tables, and the numbers as JSON. No scripts, no network. */
#ifndef SERVER_FAITHFULNESS_HTML_H
#define SERVER_FAITHFULNESS_HTML_H

#include <jansson.h>

#include "server/buffer.h"

/* Append the page of an evaluation, or of a job that has succeeded. Malformed parts are left out. */
void faithfulness_html_write(const json_t *answer, buffer *out);

#endif
