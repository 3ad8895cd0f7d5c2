#include "engine/base/status.h"

static const struct {
	const char *name, *text;
	int http;
} table[STATUS_COUNT] = {
#define STATUS(name, wire, text, http) {wire, text, http},
#include "engine/base/status.def"
#undef STATUS
};

const char *status_name(status s)
{
	return (unsigned)s < STATUS_COUNT ? table[s].name : "internal_error";
}

const char *status_text(status s)
{
	return (unsigned)s < STATUS_COUNT ? table[s].text : "internal error";
}

int status_http(status s)
{
	return (unsigned)s < STATUS_COUNT ? table[s].http : 500;
}
