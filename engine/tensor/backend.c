/* `additive-cuda.so` is looked for in ADDITIVE_PLUGIN_DIR when it is set, else beside the executable, then in
 * ../lib/additive from there, where `make install` puts it. Plug-ins are found by path only, never by the dynamic
 * loader's search, so that no other folder can supply one. */
#include "engine/tensor/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"

static status plugin_path(char *out, size_t size, const char *name, error *err)
{
	char folder[PATH_MAX];
	const char *set = getenv("ADDITIVE_PLUGIN_DIR");
	if (set && set[0]) {
		snprintf(folder, sizeof folder, "%s", set);
	} else {
		ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
		if (n < 0)
			return error_set(err, STATUS_UNAVAILABLE, NULL, "cannot find the folder of this program");
		folder[n] = 0;
		char *slash = strrchr(folder, '/');
		if (slash)
			*slash = 0;
	}
	int n = snprintf(out, size, "%s/additive-%s.so", folder, name);
	if ((!set || !set[0]) && access(out, F_OK) != 0)
		n = snprintf(out, size, "%s/../lib/additive/additive-%s.so", folder, name);
	if (n < 0 || (size_t)n >= size)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "the plug-in folder's path is too long");
	return STATUS_OK;
}

/* dlerror's words without the folder in front: messages hold no absolute path. */
static const char *load_error(const char *path)
{
	const char *words = dlerror();
	size_t n = strlen(path);
	if (!words)
		return "unknown reason";
	return strncmp(words, path, n) == 0 && strncmp(words + n, ": ", 2) == 0 ? words + n + 2 : words;
}

static status check_plugin(const backend_plugin *plugin, const char *name, error *err)
{
	if (!plugin)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "additive-%s.so is not a plug-in of this program",
		                 name);
	if (plugin->abi != BACKEND_ABI)
		return error_set(err, STATUS_UNAVAILABLE, NULL,
		                 "additive-%s.so is built for interface %08x and this program for %08x: build both "
		                 "from the same sources",
		                 name, (unsigned)plugin->abi, (unsigned)BACKEND_ABI);
	return STATUS_OK;
}

/* The handle is kept for the life of the process: the backend's code lives there,
 * and a driver does not survive being unloaded and loaded again. */
static status open_plugin(backend **out, const char *name, const backend_options *options, error *err)
{
	char path[PATH_MAX + 32];
	TRY(plugin_path(path, sizeof path, name, err));
	if (access(path, R_OK) != 0)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "there is no additive-%s.so beside the program", name);
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "additive-%s.so cannot be loaded: %s", name,
		                 load_error(path));
	const backend_plugin *plugin = dlsym(handle, "additive_backend_plugin");
	status s = check_plugin(plugin, name, err);
	if (s != STATUS_OK) {
		dlclose(handle);
		return s;
	}
	s = plugin->open(out, options ? options : &(backend_options){0}, err);
	if (s != STATUS_OK)
		error_set(err, s, NULL, "the %s backend cannot be opened: %s", name, status_text(s));
	return s;
}

status backend_open(backend **out, const char *name, const backend_options *options, backend_opener cpu, int threads,
                    error *err)
{
	*out = NULL;
	if (strcmp(name, "cpu") == 0)
		return cpu(out, threads, err);
	if (strcmp(name, "cuda") == 0)
		return open_plugin(out, name, options, err);
	if (strcmp(name, "auto") != 0)
		return error_set(err, STATUS_INVALID, "backend", "backend is \"%.32s\", must be auto, cpu or cuda",
		                 name);
	error reason = ERROR_INIT;
	if (open_plugin(out, "cuda", options, &reason) == STATUS_OK)
		return STATUS_OK;
	log_line(LOG_INFO, "running on the CPU: %s", error_message(&reason));
	return cpu(out, threads, err);
}

void backend_close(backend *b)
{
	if (b)
		b->close(b);
}

bool backend_is_lost(const backend *b)
{
	return !b->lost || b->lost(b);
}
