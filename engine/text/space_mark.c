#include "engine/text/space_mark.h"

#include <string.h>

size_t space_mark_at(const char *text, size_t bytes)
{
	if (bytes > 0 && *text == ' ')
		return 1;
	return bytes >= SPACE_MARK_BYTES && memcmp(text, SPACE_MARK, SPACE_MARK_BYTES) == 0 ? SPACE_MARK_BYTES : 0;
}

bool space_mark_is_inside(const char *text, size_t bytes)
{
	bool other = false;
	for (size_t at = 0, n; at < bytes; at += n ? n : 1) {
		n = space_mark_at(text + at, bytes - at);
		if (n > 0 && other)
			return true;
		other = n == 0;
	}
	return false;
}
