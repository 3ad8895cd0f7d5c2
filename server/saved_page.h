/* saved_page.h - an explanation, a comparison or an evaluation of explanations as one page that opens offline: the
 * answer as JSON, with the modules of clients/web that draw it. */
#ifndef SERVER_SAVED_PAGE_H
#define SERVER_SAVED_PAGE_H

#include "server/request.h"

/* Answer with the page for this answer of the engine, which is stolen. Its Content-Security-Policy allows the page's own
 * script and style alone. */
void saved_page_reply(request *r, json_t *answer);

#endif
