/* faithfulness_html.h - how faithful explanations are, as one self-contained page (server/pages/faithfulness.*):
 * charts, tables, and the numbers themselves as JSON; no scripts, no network. */
#ifndef SERVER_FAITHFULNESS_HTML_H
#define SERVER_FAITHFULNESS_HTML_H

#include <jansson.h>

#include "server/buffer.h"

/* Append the page of an evaluation, or of a job, which has one when it has succeeded. What is malformed is left out. */
void faithfulness_html_write(const json_t *answer, buffer *out);

#endif
