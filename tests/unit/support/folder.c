#include "tests/unit/support/folder.h"

#include <stdio.h>
#include <stdlib.h>

void folder_new(char out[FOLDER_BYTES])
{
	const char *below = getenv("TMPDIR");
	int n = snprintf(out, FOLDER_BYTES, "%s/additive-XXXXXX", below && *below ? below : "/tmp");
	if (n >= FOLDER_BYTES || !mkdtemp(out)) {
		perror(out);
		abort();
	}
}
