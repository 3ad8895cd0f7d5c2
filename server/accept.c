/* For each offer the most specific range decides its q: type/subtype over type/ * over * / *. Parameters other than q
 * are ignored. */
#include "server/accept.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* 3: the same, 2: the same type, 1: anything, 0: no match. */
static int accept_specificity(const char *range, size_t bytes, const char *offer)
{
	size_t type = strcspn(offer, "/");
	if (bytes == strlen(offer) && strncasecmp(range, offer, bytes) == 0)
		return 3;
	if (bytes == type + 2 && strncasecmp(range, offer, type + 1) == 0 && range[type + 1] == '*')
		return 2;
	return bytes == 3 && strncmp(range, "*/*", 3) == 0;
}

static double accept_quality(const char *parameters, const char *end)
{
	for (const char *p = parameters; p < end; p++)
		if (*p == ';') {
			p += 1 + strspn(p + 1, " \t");
			if ((*p == 'q' || *p == 'Q') && p[1] == '=')
				return strtod(p + 2, NULL);
		}
	return 1;
}

static double accept_offer_quality(const char *accept, const char *offer)
{
	int best = 0;
	double quality = 0;
	while (*accept) {
		accept += strspn(accept, " \t,");
		const char *end = accept + strcspn(accept, ",");
		int specificity = accept_specificity(accept, strcspn(accept, " \t;,"), offer);
		if (specificity > best) {
			best = specificity;
			quality = accept_quality(accept, end);
		}
		accept = end;
	}
	return quality;
}

int accept_pick(const char *accept, const char *const *offers, int n_offers)
{
	if (!accept || !*accept)
		return 0;
	int best = -1;
	double quality = 0;
	for (int i = 0; i < n_offers; i++) {
		double q = accept_offer_quality(accept, offers[i]);
		if (q > quality) {
			best = i;
			quality = q;
		}
	}
	return best;
}
