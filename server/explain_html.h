/* explain_html.h - an explanation as one self-contained page (server/pages/explain.*): no network, light and dark,
 * readable without scripts. */
#ifndef SERVER_EXPLAIN_HTML_H
#define SERVER_EXPLAIN_HTML_H

#include <jansson.h>

#include "server/buffer.h"

/* Append the page. nonce: that of the Content-Security-Policy, letters and digits. Contents of tokens are shown as
 * text, never as markup or script. */
void explain_html_write(const json_t *explanation, const char *nonce, buffer *out);

#endif
