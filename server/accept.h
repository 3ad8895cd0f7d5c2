/* accept.h - choose the representation that a client prefers (RFC 9110, 12.5.1). */
#ifndef SERVER_ACCEPT_H
#define SERVER_ACCEPT_H

/* The index of the best offer ("text/html", "gzip") for an Accept or Accept-Encoding header: highest q, then the earlier offer. The first offer
 * when accept is NULL or empty; -1 when none is acceptable. */
int accept_pick(const char *accept, const char *const *offers, int n_offers);

#endif
