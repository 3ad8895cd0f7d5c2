/* A graph is three growing lists: values, nodes and names. Names are looked up by
 * linear search: there are a few hundred, asked for when a plan is built. */
#include "engine/tensor/graph.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/tensor/graph_internal.h"

graph *graph_new(void)
{
	return memory_new(1, sizeof(graph));
}

/* --- lists ------------------------------------------------------------------ */

/* Takes ownership of item, also on failure. NULL is out of memory. */
static bool list_add(graph_list *list, void *item)
{
	if (!item)
		return false;
	if (!MEMORY_ROOM(list->items, list->capacity, list->count + 1)) {
		free(item);
		return false;
	}
	list->items[list->count++] = item;
	return true;
}

static void list_free(graph_list *list)
{
	for (int i = 0; i < list->count; i++)
		free(list->items[i]);
	free(list->items);
}

void graph_free(graph *g)
{
	if (!g)
		return;
	for (int i = 0; i < g->nodes.count; i++)
		free((void *)(uintptr_t)graph_node(g, i)->params);
	for (int i = 0; i < g->names.count; i++)
		free(((graph_name *)g->names.items[i])->text);
	free(g->checkpoints);
	list_free(&g->nodes);
	list_free(&g->names);
	list_free(&g->values);
	free(g);
}

/* --- errors ----------------------------------------------------------------- */

status graph_fail(graph *g, status s, const char *param, const char *format, ...)
{
	if (g->error.status != STATUS_OK)
		return s;
	char message[sizeof g->error.message];
	va_list args;
	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	return error_set(&g->error, s, param, "%s", message);
}

static status graph_no_memory(graph *g)
{
	return graph_fail(g, STATUS_NOMEM, NULL, "out of memory while building a graph");
}

status graph_status(const graph *g, error *err)
{
	if (err && err->status == STATUS_OK)
		*err = g->error;
	return g->error.status;
}

/* --- values ----------------------------------------------------------------- */

graph_value_slot *graph_slot(const graph *g, value v)
{
	assert(v >= 0 && v < g->values.count);
	return g->values.items[v];
}

static value add_value(graph *g, value_role role, dtype type, shape s, int producer)
{
	graph_value_slot *slot = memory_new(1, sizeof *slot);
	if (!list_add(&g->values, slot)) {
		graph_no_memory(g);
		return VALUE_NONE;
	}
	slot->info = (value_info){.role = role, .type = type, .shape = s, .producer = producer};
	slot->gradient = VALUE_NONE;
	return g->values.count - 1;
}

/* A shape whose elements and bytes can be counted. */
static bool shape_usable(shape s, dtype type)
{
	size_t bytes;
	return shape_check(s) == STATUS_OK && shape_bytes(s, type, &bytes) && bytes <= INT64_MAX;
}

static status add_name(graph *g, value v, const char *text)
{
	if (!text[0])
		return graph_fail(g, STATUS_INVALID, NULL, "a value's name is empty");
	if (graph_find(g, text) != VALUE_NONE)
		return graph_fail(g, STATUS_INVALID, text, "the name %s is used twice in a graph", text);
	graph_name *name = memory_new(1, sizeof *name);
	if (!list_add(&g->names, name))
		return graph_no_memory(g);
	name->v = v;
	name->text = strdup(text);
	if (!name->text) {
		free(name);
		g->names.count--;
		return graph_no_memory(g);
	}
	value_info *info = &graph_slot(g, v)->info;
	if (!info->name)
		info->name = name->text;
	return STATUS_OK;
}

static value add_named(graph *g, value_role role, dtype type, shape s, const char *name)
{
	if (g->error.status != STATUS_OK)
		return VALUE_NONE;
	if (!shape_usable(s, type)) {
		graph_fail(g, STATUS_INVALID, name, "the shape of %s is not valid", name);
		return VALUE_NONE;
	}
	value v = add_value(g, role, type, s, -1);
	if (v == VALUE_NONE || add_name(g, v, name) != STATUS_OK)
		return VALUE_NONE;
	return v;
}

value graph_input(graph *g, const char *name, dtype type, shape s)
{
	return add_named(g, ROLE_INPUT, type, s, name);
}

value graph_parameter(graph *g, const char *name, shape s)
{
	return graph_weight(g, name, DTYPE_F32, s);
}

value graph_weight(graph *g, const char *name, dtype type, shape s)
{
	return add_named(g, ROLE_PARAMETER, type, s, name);
}

value graph_state(graph *g, const char *name, shape s)
{
	return add_named(g, ROLE_STATE, DTYPE_F32, s, name);
}

void graph_output(graph *g, value v, const char *format, ...)
{
	if (g->error.status != STATUS_OK)
		return;
	char name[256];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(name, sizeof name, format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof name)
		graph_fail(g, STATUS_INVALID, NULL, "an output's name is too long");
	else if (v == VALUE_NONE)
		graph_fail(g, STATUS_INVALID, name, "output %s has no value", name);
	else if (add_name(g, v, name) == STATUS_OK)
		graph_slot(g, v)->info.output = true;
}

value graph_find(const graph *g, const char *name)
{
	for (int i = 0; i < g->names.count; i++) {
		const graph_name *n = g->names.items[i];
		if (strcmp(n->text, name) == 0)
			return n->v;
	}
	return VALUE_NONE;
}

int graph_value_count(const graph *g)
{
	return g->values.count;
}

/* Description of VALUE_NONE in a graph that has failed: every dimension can be read, and no node has such a value. */
static const value_info failed_value = {
    .role = ROLE_TEMPORARY, .type = DTYPE_F32, .shape = {1, {1, 1, 1, 1}}, .producer = -1};

const value_info *graph_value(const graph *g, value v)
{
	if (v == VALUE_NONE && g->error.status != STATUS_OK)
		return &failed_value;
	return &graph_slot(g, v)->info;
}

/* --- nodes ------------------------------------------------------------------ */

int graph_node_count(const graph *g)
{
	return g->nodes.count;
}

const op_node *graph_node(const graph *g, int index)
{
	assert(index >= 0 && index < g->nodes.count);
	return g->nodes.items[index];
}

/* An input that is updated in place must be memory that lives across runs (a
 * temporary has one value, given by its producer), and no other argument. */
static status check_mutation(graph *g, const op *o, const value *in, int n_in)
{
	for (int i = 0; i < n_in; i++) {
		if (!(o->mutates >> i & 1) || in[i] == VALUE_NONE)
			continue;
		value_role role = graph_value(g, in[i])->role;
		if (role != ROLE_STATE && role != ROLE_PARAMETER)
			return graph_fail(g, STATUS_INVALID, o->name,
			                  "input %d of %s is updated in place, so it must be a state or a parameter", i,
			                  o->name);
		for (int j = 0; j < n_in; j++)
			if (j != i && in[j] == in[i])
				return graph_fail(g, STATUS_INVALID, o->name,
				                  "input %d of %s is updated in place and also given as input %d", i,
				                  o->name, j);
	}
	return STATUS_OK;
}

/* Run the op's check on the described arguments; call->out gets the outputs. */
static status check_node(graph *g, const op *o, const value *in, int n_in, const void *params, op_call *call)
{
	if (n_in < o->min_in || n_in > o->max_in)
		return graph_fail(g, STATUS_INVALID, o->name, "%s takes %d to %d inputs, not %d", o->name, o->min_in,
		                  o->max_in, n_in);
	*call = (op_call){.params = params, .n_in = n_in, .n_out = o->n_out};
	for (int i = 0; i < n_in; i++) {
		if (in[i] == VALUE_NONE)
			continue;
		/* There is no memory yet: any address says that the argument is present. */
		graph_value_slot *slot = graph_slot(g, in[i]);
		call->in[i] = (tensor){slot, slot->info.type, slot->info.shape};
	}
	TRY(check_mutation(g, o, in, n_in));
	error err = ERROR_INIT;
	status s = o->check(call, &err);
	if (s != STATUS_OK) {
		error_prefix(&err, o->name);
		return graph_fail(g, s, err.param[0] ? err.param : o->name, "%s: %s", o->name, error_message(&err));
	}
	for (int i = 0; i < o->n_out; i++)
		if (!shape_usable(call->out[i].shape, call->out[i].type))
			return graph_fail(g, STATUS_INVALID, o->name, "%s: the result is too large", o->name);
	return STATUS_OK;
}

static status add_node(graph *g, op_id id, const op_call *call, const value *in, value *out)
{
	const op *o = op_get(id);
	op_node *node = memory_new(1, sizeof *node);
	if (!list_add(&g->nodes, node))
		return graph_no_memory(g);
	node->id = id;
	node->n_in = call->n_in;
	for (int i = 0; i < call->n_in; i++)
		node->in[i] = in[i];
	if (call->params) {
		void *copy = memory_new(1, o->params_bytes);
		if (!copy)
			return graph_no_memory(g);
		memcpy(copy, call->params, o->params_bytes);
		node->params = copy;
	}
	for (int i = 0; i < o->n_out; i++) {
		node->out[i] = add_value(g, ROLE_TEMPORARY, call->out[i].type, call->out[i].shape, g->nodes.count - 1);
		if (node->out[i] == VALUE_NONE)
			return g->error.status;
		out[i] = node->out[i];
		node->n_out++;
	}
	return STATUS_OK;
}

void graph_checkpoint(graph *g)
{
	if (g->error.status != STATUS_OK)
		return;
	int *marks = realloc(g->checkpoints, (size_t)(g->n_checkpoints + 1) * sizeof *marks);
	if (!marks) {
		graph_no_memory(g);
		return;
	}
	g->checkpoints = marks;
	marks[g->n_checkpoints++] = g->nodes.count;
}

status graph_apply(graph *g, op_id id, const value *in, int n_in, const void *params, value *out)
{
	const op *o = op_get(id);
	for (int i = 0; i < o->n_out; i++)
		out[i] = VALUE_NONE;
	TRY(g->error.status);
	op_call call;
	TRY(check_node(g, o, in, n_in, params, &call));
	return add_node(g, id, &call, in, out);
}

value graph_apply_one(graph *g, op_id id, const value *in, int n_in, const void *params)
{
	value out;
	graph_apply(g, id, in, n_in, params, &out);
	return out;
}
