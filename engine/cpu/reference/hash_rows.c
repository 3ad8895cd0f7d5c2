/* Rows of a table by the hash of a label. */
#include "engine/tensor/ops/hash_rows.h"

#include "engine/cpu/reference/reference.h"

/* index [n] -> [n]: the row that index + first has in this round; -1 for an index below 0 */
status reference_hash_rows(backend *unused, const op_call *call)
{
	(void)unused;
	const hash_rows_params *p = call->params;
	const int32_t *index = call->in[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		((int32_t *)call->out[0].data)[i] = index[i] < 0 ? -1 : hash_row(p->first + index[i], (int)p->round);
	return STATUS_OK;
}
