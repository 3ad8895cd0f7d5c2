/* device.c - errors and devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/cpu/cpu.h"
#include "engine/library/handles.h"

#define SAME(name) _Static_assert((int)ADDITIVE_##name == (int)STATUS_##name, "the public codes are the statuses")
SAME(OK);
SAME(INVALID);
SAME(UNSUPPORTED);
SAME(NOT_FOUND);
SAME(CONFLICT);
SAME(TOO_LARGE);
SAME(BUSY);
SAME(CANCELLED);
SAME(NOMEM);
SAME(UNAVAILABLE);
SAME(CORRUPT);
SAME(IO);
SAME(DEVICE);
SAME(INTERNAL);
SAME(STORAGE);
SAME(FULL);

additive_code handles_report(additive_error *out, status s, const error *err)
{
	if (s == STATUS_OK || !out)
		return (additive_code)s;
	error settled = *err;
	error_settle(&settled, s);
	*out = (additive_error){.code = (additive_code)s};
	snprintf(out->field, sizeof out->field, "%s", settled.param);
	snprintf(out->message, sizeof out->message, "%s", error_message(&settled));
	return out->code;
}

const char *additive_version(void)
{
	return ADDITIVE_VERSION;
}

void additive_free(void *memory)
{
	free(memory);
}

static status device_from_name(additive_device **out, const char *name, int threads, error *err)
{
	enum { MOST_THREADS = 1024 };
	if (threads < 0 || threads > MOST_THREADS)
		return error_set(err, STATUS_INVALID, "threads", "%d is not between 0 and %d", threads, MOST_THREADS);
	/* The plug-in calls functions of its program, which are local symbols in the library. */
	if (strcmp(name, "cuda") == 0)
		return error_set(err, STATUS_UNAVAILABLE, "device",
		                 "the library runs on the CPU alone; a GPU needs the service");
	if (strcmp(name, "cpu") != 0 && strcmp(name, "auto") != 0)
		return error_set(err, STATUS_INVALID, "device", "is \"%.32s\", must be cpu or auto", name);
	additive_device *d = memory_new(1, sizeof *d);
	if (!d)
		return STATUS_NOMEM;
	status s = cpu_open(&d->backend, threads, err);
	if (s != STATUS_OK) {
		free(d);
		return s;
	}
	*out = d;
	return STATUS_OK;
}

additive_code additive_device_open(additive_device **device, const char *name, int threads, additive_error *failure)
{
	error err = ERROR_INIT;
	*device = NULL;
	return handles_report(failure, device_from_name(device, name, threads, &err), &err);
}

const char *additive_device_description(const additive_device *device)
{
	return device->backend->device;
}

additive_code additive_device_close(additive_device *device, additive_error *failure)
{
	error err = ERROR_INIT;
	if (!device)
		return ADDITIVE_OK;
	if (device->models > 0)
		return handles_report(
		    failure, error_set(&err, STATUS_CONFLICT, "device", "%d models are open", device->models), &err);
	backend_close(device->backend);
	free(device);
	return ADDITIVE_OK;
}
