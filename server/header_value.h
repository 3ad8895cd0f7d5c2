/* header_value.h - parameters of a header's value: `form-data; name="file"; filename=a.txt` (RFC 2045, RFC 9110).
 *
 * A parameter's value is a token or a quoted string, names are compared without case, parameters come in any order, and
 * white space is allowed around `;` and `=`. Empty parameters, as after a `;` at the end, are skipped. */
#ifndef SERVER_HEADER_VALUE_H
#define SERVER_HEADER_VALUE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum header_found {
	HEADER_ABSENT,
	HEADER_PRESENT,
	HEADER_MALFORMED /* the parameters cannot be read, or the value does not fit into `out` */
} header_found;

/* Copy the value of the first parameter of that name to out. In a quoted string a backslash escapes a quotation mark
 * and a backslash; any other backslash is kept, because clients write Windows paths unescaped. */
header_found header_parameter(const char *value, const char *name, char *out, size_t size);
/* Decode an extended value (RFC 8187), "UTF-8''caf%C3%A9" or "ISO-8859-1''caf%E9", to UTF-8. False if it is malformed,
 * has another charset, or does not fit. */
bool header_decode_extended(const char *value, char *out, size_t size);

#endif
