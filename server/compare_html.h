/* compare_html.h - two explanations as one self-contained page (server/pages/compare.*): no network, light and dark,
 * readable without scripts. */
#ifndef SERVER_COMPARE_HTML_H
#define SERVER_COMPARE_HTML_H

#include <jansson.h>

#include "server/buffer.h"

/* Append the page for an answer of compare_join. nonce: that of the Content-Security-Policy, letters and digits.
 * Contents of tokens are shown as text, never as markup or script. */
void compare_html_write(const json_t *answer, const char *nonce, buffer *out);

#endif
