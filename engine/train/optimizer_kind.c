#include "engine/train/optimizer_kind.h"

#include <string.h>

static const optimizer_kind *const kinds[] = {
#define OPTIMIZER(name) &optimizer_kind_##name,
#include "gen/optimizers.def"
#undef OPTIMIZER
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

const optimizer_kind *optimizer_kind_at(int index)
{
	return index >= 0 && index < KINDS ? kinds[index] : NULL;
}

const optimizer_kind *optimizer_kind_find(const char *name)
{
	for (int i = 0; i < KINDS; i++)
		if (strcmp(kinds[i]->name, name) == 0)
			return kinds[i];
	return NULL;
}

bool optimizer_kind_reads(const optimizer_kind *kind, const char *option)
{
	for (int i = 0; i < KINDS; i++)
		for (int k = 0; (!kind || kinds[i] == kind) && kinds[i]->options[k]; k++)
			if (strcmp(kinds[i]->options[k], option) == 0)
				return true;
	return false;
}
