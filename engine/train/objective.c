#include "engine/train/objective.h"

#include <math.h>
#include <string.h>

static const objective *const objectives[] = {
#define OBJECTIVE(name) &objective_##name,
#include "gen/objectives.def"
#undef OBJECTIVE
};
enum { OBJECTIVES = sizeof objectives / sizeof objectives[0] };

const objective *objective_at(int index)
{
	return index >= 0 && index < OBJECTIVES ? objectives[index] : NULL;
}

const objective *objective_find(const char *name)
{
	for (int i = 0; i < OBJECTIVES; i++)
		if (strcmp(objectives[i]->name, name) == 0)
			return objectives[i];
	return NULL;
}

double train_metric(const train_progress *p, const char *name)
{
	for (int i = 0; p->objective && p->objective->metrics[i]; i++)
		if (strcmp(p->objective->metrics[i], name) == 0)
			return p->metrics[i];
	return NAN;
}
