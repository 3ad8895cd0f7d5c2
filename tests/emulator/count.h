/* count.h - what the emulated device did: one record for each piece of work that ran while it was counted.
 *
 * The plug-in exports these functions; a test finds them with emulator_counting. They count in both builds, the bytes of
 * kernels only in the checked one. ADDITIVE_EMULATOR_COUNT=FILE writes the same for a whole program, one line of JSON for
 * each piece of work (tests/emulator/traffic.py reads it). Plain C and C++. */
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

/* Bytes are of device memory. */
typedef struct emulator_work {
	const char *name; /* a kernel's, with its template's arguments */
	emulator_kind kind;
	bool early;                        /* a launch that may begin before the work before it has ended */
	unsigned grid[3], threads;         /* of a product: m, n, k, and its batch */
	uint64_t read, written;            /* asked for: the sum of all accesses */
	uint64_t read_once, written_once;  /* the same, each byte counted once: what memory has to move at least */
	uint64_t moved, used;              /* 32 bytes for each sector of each access of a warp; those its lanes asked for */
	uint64_t flop;                     /* of a product: 2 m n k */
	unsigned processors;               /* of a product: at how many it is aimed; 0: all */
} emulator_work;

/* Both run all that was issued first. The records of _end, `count` of them, live until the next _begin. */
#ifdef __cplusplus
extern "C" {
void emulator_count_begin(void);
const emulator_work *emulator_count_end(size_t *count);
}
#endif
typedef struct emulator_counter {
	void (*begin)(void); /* NULL: this is no emulated device */
	const emulator_work *(*end)(size_t *count);
} emulator_counter;

/* Of the plug-in that this process has loaded from ADDITIVE_PLUGIN_DIR. */
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
