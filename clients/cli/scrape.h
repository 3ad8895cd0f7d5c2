/* scrape.h - numbers of /metrics, Prometheus' text format. */
#ifndef CLI_SCRAPE_H
#define CLI_SCRAPE_H

#include "clients/cli/text.h"

/* The first sample of this name, as an integer. A name may include labels. 0: there is none. */
long long scrape_number(const text *metrics, const char *name);
/* True if there is such a sample. */
bool scrape_has(const text *metrics, const char *name);

#endif
