/* data_folder.h - a data folder with one object of each kind, and ways to damage it. Include after cmocka.h; failures fail the test. */
#ifndef TESTS_UNIT_SUPPORT_DATA_FOLDER_H
#define TESTS_UNIT_SUPPORT_DATA_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/store/store.h"

enum { DATA_FOLDER_KINDS = 6, DATA_FOLDER_BLOB = 20000 };

/* Objects that data_folder_fill(s, n, …) puts into a data folder; their bytes begin with n. The job is "ftjob-n", with
 * one event and the checkpoint "ckpt-n" of step 10, the model "model-n", the adapter "adapter-n", the session
 * "sess-n". */
typedef struct data_objects {
	char file[STORE_ID_BYTES], model[STORE_ID_BYTES], job[STORE_ID_BYTES], checkpoint[STORE_ID_BYTES],
	    session[STORE_ID_BYTES], adapter[STORE_ID_BYTES];
	int64_t number;
} data_objects;

/* Make a new folder below `where` ("/tmp"); remove it with file_remove_tree. */
void data_folder_new(const char *where, char out[64]);
void data_folder_fill(store *s, int64_t number, data_objects *out);
/* Add an object of one kind. A model or session of that number is replaced by its next version. */
void data_folder_put_file(store *s, int64_t number, char id[STORE_ID_BYTES]);
void data_folder_put_model(store *s, const char *id, int64_t number);
void data_folder_put_adapter(store *s, const char *id, int64_t number);
void data_folder_put_session(store *s, const char *id, int64_t number);
void data_folder_put_checkpoint(store *s, const char *job, int64_t step, const char *id, int64_t number);
/* Fail unless every object is present and every byte is right. */
void data_folder_check(store *s, const data_objects *o);
/* The number in a blob; -1 if data_folder_put_… did not write the blob. */
int64_t data_folder_number(const void *blob, size_t bytes);

/* Path, relative to the folder, of the largest file of an object; kind: one of data_folder_kinds. */
extern const char *const data_folder_kinds[DATA_FOLDER_KINDS];
const char *data_folder_id(const data_objects *o, const char *kind);
void data_folder_blob(const data_objects *o, const char *kind, char out[PATH_MAX]);

typedef enum data_damage { DATA_MISSING, DATA_EMPTY, DATA_TRUNCATED, DATA_FLIPPED, DATA_DAMAGES } data_damage;
/* Replace a file by a damaged copy; hard links to the old file keep its contents. */
void data_folder_damage(const char *folder, const char *path, data_damage how);

#endif
