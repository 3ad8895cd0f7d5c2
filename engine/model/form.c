#include "engine/model/architecture.h"

int64_t form_last_row(const model_dims *d, const int32_t *ids, int64_t count)
{
	(void)d;
	(void)ids;
	return count - 1;
}

int64_t form_whole_context(int64_t n, int64_t row)
{
	(void)row;
	return n;
}

int64_t form_earlier_context(int64_t n, int64_t row)
{
	(void)n;
	return row + 1;
}

double form_whole_removals(double tokens)
{
	return tokens * (tokens + 1);
}

status form_check_source(const model_dims *d, int64_t n, error *err)
{
	if (!d->form->source)
		return n == 0 ? STATUS_OK : error_set(err, STATUS_INVALID, "source", "this model reads no source");
	return n > 0 && n <= d->source
	           ? STATUS_OK
	           : error_set(err, STATUS_INVALID, "source", "%lld tokens; this model reads sources of 1 to %lld",
	                       (long long)n, (long long)d->source);
}
