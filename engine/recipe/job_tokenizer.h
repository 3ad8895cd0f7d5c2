/* job_tokenizer.h - the tokenizer of a job's model: of the model that it continues from, out of an uploaded file,
 * trained on the job's texts, or made from a spec alone.
 *
 * Training is done by a child process (tokenizer_training.h), so that it can be cancelled and cannot take
 * the engine with it. What it makes follows from the spec and the bytes of the files alone. It is kept in the cache of
 * tokens under their hashes; a run that does not find it there trains it again. All functions block: pool threads. */
#ifndef ENGINE_RECIPE_JOB_TOKENIZER_H
#define ENGINE_RECIPE_JOB_TOKENIZER_H

#include <limits.h>
#include <stdatomic.h>

#include "engine/recipe/corpus.h"
#include "engine/text/tokenizer.h"

typedef struct job_tokenizer_source {
	const char *folder; /* a model's, whose tokenizer it is; "": the spec says */
	int64_t vocab;      /* with a folder: what the tokenizer may have at most */
	const json_t *spec;
	corpus_paths paths;      /* path of the file that a spec names */
	char (*texts)[PATH_MAX]; /* files to train on */
	size_t n_texts;
	const char *cache, *temporary; /* the folder where it is kept; the beginning of a name for what is unfinished */
	const atomic_bool *cancel;     /* set: end with STATUS_CANCELLED */
} job_tokenizer_source;

/* The id of the file that a spec names, NULL: none. */
const char *job_tokenizer_file(const json_t *spec);
/* Out of an uploaded file, at `path`. err->param: "file". */
status job_tokenizer_read(tokenizer **out, const char *path, const char *id, error *err);
/* err->param: a key of the spec, "training_file" where the texts cannot be read, or "". */
status job_tokenizer_open(tokenizer **out, const job_tokenizer_source *c, error *err);

#endif
