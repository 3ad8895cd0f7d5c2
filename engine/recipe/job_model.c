#include "engine/recipe/job_model.h"

status job_model_open(model **out, const job_model *from, backend *b, error *err)
{
	*out = NULL;
	if (from->folder[0])
		return model_open(out, from->folder, DTYPE_F32, b, err);
	TRY(model_create(out, from->architecture, from->config, from->seed, b, err));
	status s = from->counts ? model_set_counts(*out, from->counts, err) : STATUS_OK;
	if (s != STATUS_OK) {
		model_free(*out);
		*out = NULL;
	}
	return s;
}
