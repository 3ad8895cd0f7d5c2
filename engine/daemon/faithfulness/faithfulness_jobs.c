/* faithfulness_jobs.c - evaluations of explanations, for one input, and as a kind of jobs over the texts of a file.
 *
 * The numbers of a text and the job's row that counts it are one commit; the texts are events of the job in the ledger.
 * After any stop a job therefore continues with the text that it was reading. */
#include "engine/daemon/faithfulness/faithfulness_creation.h"
#include "engine/daemon/faithfulness/faithfulness_job.h"
#include "engine/daemon/faithfulness/faithfulness_run.h"
#include "engine/daemon/requests/listing.h"

/* Maximum numbers on a page of texts, about 11 bytes of JSON each; the loop reads them from the ledger. */
enum { FAITHFULNESS_JOBS_PAGE_NUMBERS = 50000 };

static void release_texts(queued_job *j)
{
	faithfulness_corpus_fini(&((faithfulness_job *)j)->texts);
}

/* Maximum texts on a page. */
static json_int_t most_texts(const json_t *document)
{
	const json_t *settings = json_object_get(document, "settings");
	const json_int_t orders = 2 + (json_int_t)json_array_size(json_object_get(settings, "methods"));
	const json_int_t metrics = 8 + 2 * (json_int_t)json_array_size(json_object_get(settings, "fractions"));
	const json_int_t points = metrics + json_integer_value(json_object_get(settings, "grid"));
	const json_int_t positions = json_integer_value(json_object_get(settings, "spread")) +
	                             (json_int_t)json_array_size(json_object_get(settings, "positions"));
	const json_int_t numbers = 2 * orders * points * positions;
	return numbers > 0 && numbers < FAITHFULNESS_JOBS_PAGE_NUMBERS ? FAITHFULNESS_JOBS_PAGE_NUMBERS / numbers : 1;
}

static void faithfulness_jobs_rows(stream *s, job_queue *q)
{
	error err = ERROR_INIT;
	json_t *document;
	status found = job_queue_document(q, s->target, &document, &err);
	const json_int_t most = most_texts(document);
	json_decref(document);
	if (found != STATUS_OK)
		stream_error(s, &err, NULL);
	else if (listing_limit(s, most))
		listing_answer(s, STORE_EVENTS, s->target, most < JOB_QUEUE_LISTED ? most : JOB_QUEUE_LISTED, NULL);
}

static const job_method methods[] = {{"faithfulness.rows", faithfulness_jobs_rows, false}, {0}};

const job_kind faithfulness_jobs = {
    .name = "faithfulness",
    .object = "explain.evaluation.job",
    .noun = "evaluation",
    .prefix = "evaluation-",
    .use = "a job that has not ended evaluates it",
    .hidden = {"request"},
    .max_active = 100,
    .max_drafts = 64,
    .max_page = 50, /* rows contain their results */
    .job_bytes = sizeof(faithfulness_job),
    .release = release_texts,
    .methods = methods,
    .draft = &faithfulness_creation_steps,
    .run = &faithfulness_run_steps,
};
