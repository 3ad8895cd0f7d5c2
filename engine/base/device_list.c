#include "engine/base/device_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

status device_list_parse(const char *text, int devices[DEVICE_LIST_MAX], int *n, error *err)
{
	*n = 0;
	do {
		const size_t digits = strspn(text, "0123456789");
		const long number = digits > 0 && digits < 5 ? strtol(text, NULL, 10) : -1;
		text += digits;
		if (number < 0 || number > DEVICE_LIST_MAX_NUMBER || (*text && *text != ','))
			return error_set(err, STATUS_INVALID, NULL,
			                 "--device must be numbers from 0 to %d, separated by commas",
			                 DEVICE_LIST_MAX_NUMBER);
		for (int i = 0; i < *n; i++)
			if (devices[i] == (int)number)
				return error_set(err, STATUS_INVALID, NULL, "--device names device %ld twice", number);
		if (*n == DEVICE_LIST_MAX)
			return error_set(err, STATUS_INVALID, NULL, "--device names more than %d devices",
			                 DEVICE_LIST_MAX);
		devices[(*n)++] = (int)number;
	} while (*text++ == ',');
	return STATUS_OK;
}

void device_list_write(const int *devices, int n, char out[DEVICE_LIST_BYTES])
{
	int used = 0;
	out[0] = 0;
	for (int i = 0; i < n; i++)
		used += snprintf(out + used, (size_t)(DEVICE_LIST_BYTES - used), "%s%d", i ? "," : "", devices[i]);
}
