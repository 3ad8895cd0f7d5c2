/* device.h - open the CUDA backend for a test: the plug-in of ADDITIVE_PLUGIN_DIR, or else the emulated device, whose
 * folder is in ADDITIVE_EMULATOR. Include after cmocka.h. */
#ifndef TESTS_UNIT_CUDA_DEVICE_H
#define TESTS_UNIT_CUDA_DEVICE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/tensor/backend.h"

static inline void find_plugin(void)
{
	const char *emulator = getenv("ADDITIVE_EMULATOR");
	if (emulator)
		setenv("ADDITIVE_PLUGIN_DIR", emulator, 0);
}

/* If the device is emulated, use the faster one that does not check every access: for long runs of kernels that other
 * tests check. Call it before a device is opened. */
static inline void find_plain_plugin(void)
{
	const char *checked = getenv("ADDITIVE_EMULATOR");
	char plain[4096];
	if (checked && snprintf(plain, sizeof plain, "%s/..", checked) < (int)sizeof plain)
		setenv("ADDITIVE_PLUGIN_DIR", plain, 0);
}

/* The emulated device's NCCL is in the folder of its plug-in. */
static inline void find_nccl(void)
{
	char path[4096];
	find_plugin();
	const char *folder = getenv("ADDITIVE_PLUGIN_DIR");
	if (getenv("ADDITIVE_EMULATOR") && snprintf(path, sizeof path, "%s/libnccl.so.2", folder) < (int)sizeof path)
		setenv("ADDITIVE_NCCL", path, 0);
}

static inline backend *open_device_as(const backend_options *options)
{
	backend *b;
	error err = ERROR_INIT;
	find_plugin();
	if (backend_open(&b, "cuda", options, cpu_open, 0, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	return b;
}

static inline backend *open_device(void)
{
	return open_device_as(NULL);
}

/* True for the emulated device, on which tests use smaller sizes. */
static inline bool device_is_emulated(const backend *b)
{
	return strstr(b->device, "emulated") != NULL;
}

/* True if an emulated device leaves this case out: from cases that differ only in size it runs each `stride`-th. With
 * ADDITIVE_ALL_CASES (`.ci/run`), and on a GPU, all cases run. A stride has no common factor with the lengths of
 * the lists that `turn` walks through. */
static inline bool is_left_out(const backend *b, int turn, int stride)
{
	return turn % stride != 0 && device_is_emulated(b) && !getenv("ADDITIVE_ALL_CASES");
}

/* Become the only rank of a group; skips, with the reason, if there is no NCCL. */
static inline void join_alone(backend *b)
{
	backend_site site;
	unsigned char id[BACKEND_GROUP_BYTES];
	error err = ERROR_INIT;
	find_nccl();
	if (b->collective_find(b, &site, &err) != STATUS_OK) {
		print_message("skipped: %s\n", error_message(&err));
		skip();
	}
	if (b->collective_id(b, id, &err) != STATUS_OK || b->collective_open(b, id, 0, 1, 30, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
}

/* For tests of faults: a real device does not fail on command. */
static inline void skip_unless_emulated(void)
{
	backend *b = open_device();
	bool emulated = device_is_emulated(b);
	backend_close(b);
	if (!emulated)
		skip();
}

#endif
