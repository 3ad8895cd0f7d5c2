/* count.h - counts of the emulated device: one record for each piece of work that ran while counting was on.
 *
 * The plug-in exports these functions; a test finds them with emulator_counting. They count in both builds, but the
 * bytes of kernels only in the checked one. ADDITIVE_EMULATOR_COUNT=FILE writes the same for a whole program, one
 * line of JSON for each piece of work (tests/emulator/traffic.py reads it). Plain C and C++. */
#ifndef EMULATOR_COUNT_H
#define EMULATOR_COUNT_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum emulator_kind { EMULATOR_KERNEL, EMULATOR_PRODUCT, EMULATOR_COPY, EMULATOR_SET } emulator_kind;

/* Bytes are bytes of device memory. */
typedef struct emulator_work {
	const char *name; /* a kernel's name, with its template's arguments */
	emulator_kind kind;
	bool early;                        /* the launch may begin before the previous work has ended */
	unsigned grid[3], threads;         /* products: m, n, k, and the batch */
	uint64_t read, written;            /* requested bytes: the sum of all accesses */
	uint64_t read_once, written_once;  /* each byte counted once: the least that memory has to move */
	uint64_t moved, used;              /* 32 bytes per sector of each access of a warp; those that lanes requested */
	uint64_t prefetched;               /* bytes that a kernel brings to the L2 cache in bulk */
	unsigned signals;                  /* words that kernels add to with add_release */
	uint64_t flop;                     /* products: 2 m n k */
	unsigned processors;               /* products: number of processors to use; 0: all */
	unsigned candidate;                /* products: index of the algorithm among those that the library offers */
} emulator_work;

/* Both first run all work issued before. The `count` records of _end live until the next _begin. */
#ifdef __cplusplus
extern "C" {
void emulator_count_begin(void);
const emulator_work *emulator_count_end(size_t *count);
}
#endif
typedef struct emulator_counter {
	void (*begin)(void); /* NULL: not an emulated device */
	const emulator_work *(*end)(size_t *count);
} emulator_counter;

/* Find the functions of the plug-in that this process has loaded from ADDITIVE_PLUGIN_DIR. */
static inline emulator_counter emulator_counting(void)
{
	emulator_counter out = {NULL, NULL};
	char path[4096];
	const char *folder = getenv("ADDITIVE_PLUGIN_DIR");
	snprintf(path, sizeof path, "%s/additive-cuda.so", folder ? folder : ".");
	void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	void *begin = plugin ? dlsym(plugin, "emulator_count_begin") : NULL;
	void *end = plugin ? dlsym(plugin, "emulator_count_end") : NULL;
	memcpy(&out.begin, &begin, sizeof begin); /* ISO C has no cast from objects to functions */
	memcpy(&out.end, &end, sizeof end);
	if (plugin)
		dlclose(plugin); /* the program's own handle keeps it loaded */
	return out;
}

#endif
