/* train.c - upload a text, train on it, show how it goes. A dry run checks the options before the text is sent. */
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli.h"
#include "clients/cli/source.h"
#include "clients/cli/watch.h"
#include "gen/options.h"

enum { TRAIN_MAX_TEXTS = 64 };

static const option_row train_options[] = {
    {"validation", OPTION_TEXT, "FILE", "validation text (default: the end of FILE)", NULL},
    SOURCE_FORMAT_OPTION,
    {"weights", OPTION_TEXT, "W,W,...", "how often an epoch goes over each FILE (1)", NULL},
    FINE_TUNING_JOB_OPTIONS,
    {"config", OPTION_MEMBERS, "KEY=VALUE",
     "a key of the new model's configuration, with JSON as its value (repeatable)", "additive.config"},
    {"adapter", OPTION_TEXT, "KIND", "train an adapter of the model, which stays as it is: state or lora",
     "method.adapter.kind"},
    {"lora-rank", OPTION_INTEGER, "N", "rank of a lora (8)", "method.adapter.rank"},
    {"lora-alpha", OPTION_NUMBER, "X", "factor of a lora (its rank)", "method.adapter.alpha"},
    {"lora-targets", OPTION_WORDS, "NAME,NAME,...", "linear layers of a lora (all)", "method.adapter.targets"},
    {"follow", OPTION_FLAG, NULL, "watch the job (the default)", NULL},
    {"detach", OPTION_FLAG, NULL, "print the job's id and exit", NULL},
    WATCH_OPTIONS,
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

/* The options alone, before anything is uploaded. */
static bool train_check(cli *c, const json_t *request)
{
	json_t *dry = json_deep_copy(request);

	json_object_set_new(dry, "dry_run", json_true());
	json_t *answer = http_json(c->http, "POST", "/v1/fine_tuning/jobs", dry);
	if (!answer)
		cli_complain(c);
	json_decref(answer);
	return answer != NULL;
}

/* The texts of a job: training texts, followed by the validation text if there is one. */
typedef struct texts {
	source sources[TRAIN_MAX_TEXTS + 1];
	size_t n_training, n;
} texts;

/* The next number of a list, or 1 after its end; prints an error if malformed. */
static bool next_weight(const char **list, double *out)
{
	char *end;

	*out = 1;
	if (!*list || !**list)
		return true;
	*out = strtod(*list, &end);
	if (end == *list || (*end && *end != ',') || !(*out > 0))
		return cli_fail("--weights takes positive numbers with commas between them"), false;
	*list = *end ? end + 1 : end;
	return true;
}

/* Name what was uploaded in the request. */
static bool name_texts(const texts *t, const char *weights, json_t *request)
{
	json_t *files = json_array(), *ours = json_object_get(request, "additive");
	bool plain = t->n_training == 1 && !weights;

	if (!ours)
		json_object_set_new(request, "additive", ours = json_object());
	json_object_set_new(request, "training_file", json_string(t->sources[0].id));
	if (t->n > t->n_training)
		json_object_set_new(request, "validation_file", json_string(t->sources[t->n_training].id));
	for (size_t i = 0; i < t->n_training; i++) {
		double weight;

		if (!next_weight(&weights, &weight)) {
			json_decref(files);
			return false;
		}
		json_array_append_new(files, json_pack("{s:s, s:f}", "file", t->sources[i].id, "weight", weight));
	}
	if (weights && *weights) {
		json_decref(files);
		return cli_fail("--weights has more numbers than there are files"), false;
	}
	if (plain)
		json_decref(files);
	else
		json_object_set_new(ours, "training_files", files);
	return true;
}

static bool send_texts(cli *c, texts *t)
{
	for (size_t i = 0; i < t->n; i++)
		if (!source_send(c, &t->sources[i], "fine-tune"))
			return false;
	return true;
}

/* The job, or NULL after a complaint; then nothing is left of it on the service. */
static json_t *create(cli *c, json_t *request, texts *t)
{
	json_t *job = NULL;

	if (train_check(c, request) && send_texts(c, t) &&
	    name_texts(t, options_text(&c->options, "weights"), request)) {
		job = http_json(c->http, "POST", "/v1/fine_tuning/jobs", json_incref(request));
		if (!job)
			cli_complain(c);
	}
	for (size_t i = 0; i < t->n && !job; i++)
		source_take_back(c, &t->sources[i]);
	return job;
}

static int follow(cli *c, const json_t *job)
{
	const char *id = json_string_value(json_object_get(job, "id"));

	if (!id)
		return cli_fail("the service's answer is not a job");
	if (!options_flag(&c->options, "detach"))
		return watch_job(c, id);
	if (c->json)
		cli_print_json(job);
	else
		printf("%s\n", id);
	return CLI_OK;
}

static bool open_texts(const cli *c, texts *t)
{
	const char *validation = options_text(&c->options, "validation"), *format = options_text(&c->options, "format");

	while (t->n < (size_t)c->options.n_arguments) {
		source *s = &t->sources[t->n++];

		if (!source_open(s, cli_argument(c, (int)t->n - 1), format))
			return false;
	}
	t->n_training = t->n;
	return !validation || source_open(&t->sources[t->n++], validation, format);
}

static int train_command(cli *c, json_t *request)
{
	static texts t;
	json_t *job = open_texts(c, &t) ? create(c, request, &t) : NULL;
	int status = job ? follow(c, job) : CLI_FAILED;

	json_decref(job);
	for (size_t i = 0; i < t.n; i++)
		source_close(&t.sources[i]);
	return status;
}

/* Complete the method of an adapter. False: out of memory. */
static bool name_method(json_t *request)
{
	json_t *method = json_object_get(request, "method");

	return !method || json_object_set_new(method, "type", json_string("adapter")) == 0;
}

static int train_run(cli *c)
{
	json_t *request = json_object();
	const char *validation = options_text(&c->options, "validation");
	int status, stdins = validation && strcmp(validation, "-") == 0;

	for (int i = 0; i < (int)c->options.n_arguments; i++)
		stdins += strcmp(cli_argument(c, i), "-") == 0;

	if (options_flag(&c->options, "detach") && options_flag(&c->options, "follow"))
		status = cli_usage("--follow and --detach exclude each other");
	else if (stdins > 1)
		status = cli_usage("only one text can come from stdin");
	else if (!request || !options_fill(&c->options, request) || !name_method(request))
		status = cli_fail("out of memory");
	else
		status = train_command(c, request);
	json_decref(request);
	return status;
}

const command train_commands[] = {
    {"train", "FILE...", 1, TRAIN_MAX_TEXTS, "train a model on one text or several",
     "FILE is plain UTF-8 text, or JSON lines or arrays with \"text\", with \"prompt\" and "
     "\"completion\" or with\nconversations (\"messages\", ShareGPT, Alpaca), as it is "
     "or compressed by gzip or zstd; \"-\" is stdin. Lines\nwith \"text\" and \"label\" "
     "need --objective classification, lines with \"source\" and \"target\"\n"
     "--objective sequence_to_sequence.\n\nThe first messages name the size of the job and "
     "the time that it will take. A text that the service has\nalready is not sent again. "
     "The id of the new model or adapter is printed at the end. Ctrl-C leaves the job running.",
     train_options, train_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
