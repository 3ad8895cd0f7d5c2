/* device_list.h - the option --device: numbers of devices, separated by commas. */
#ifndef ENGINE_BASE_DEVICE_LIST_H
#define ENGINE_BASE_DEVICE_LIST_H

#include "engine/base/error.h"

/* DEVICE_LIST_BYTES: of a list as text. */
enum { DEVICE_LIST_MAX = 16, DEVICE_LIST_MAX_NUMBER = 1023, DEVICE_LIST_BYTES = 5 * DEVICE_LIST_MAX + 1 };

/* Parse "0,2" for example. STATUS_INVALID: not 1 to DEVICE_LIST_MAX different numbers. */
status device_list_parse(const char *text, int devices[DEVICE_LIST_MAX], int *n, error *err);
/* Write what device_list_parse reads. */
void device_list_write(const int *devices, int n, char out[DEVICE_LIST_BYTES]);

#endif
