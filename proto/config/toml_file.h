/* toml_file.h - read a TOML file. The parser is toml++, a C++ library. */
#ifndef PROTO_CONFIG_TOML_FILE_H
#define PROTO_CONFIG_TOML_FILE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum toml_type {
	TOML_STRING,
	TOML_INTEGER,
	TOML_NUMBER, /* a float */
	TOML_BOOLEAN,
	TOML_STRINGS, /* an array of strings */
	TOML_OTHER    /* any other type, or a string with a NUL; `texts` is empty */
} toml_type;

typedef struct toml_entry {
	const char *table; /* "": the key is in no table */
	const char *key;   /* NULL: the table itself */
	int line;          /* from 1 */
	toml_type type;
	const char *const *texts; /* the value, or the values of an array, in the form of TOML without quotes */
	size_t n_texts;
} toml_entry;

/* False: stop reading. The entry is valid during the call. */
typedef bool toml_take(void *context, const toml_entry *entry);

/* Call `take` for each table and each of its entries. A table within a table is an entry of type TOML_OTHER. False if
 * `take` returned false, or if the file cannot be read or is not TOML; only then `problem` is set, "FILE:LINE: …".
 * *out_of_memory becomes true if an allocation failed. */
bool toml_file_read(const char *path, toml_take *take, void *context, char *problem, size_t bytes, bool *out_of_memory);

#ifdef __cplusplus
}
#endif
#endif
