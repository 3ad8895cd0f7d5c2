/* generate - continue a text with a model.
 *
 *   cc generate.c $(pkg-config --cflags --libs additive) -o generate
 *   ./generate FOLDER "a text" [TOKENS [TEMPERATURE [SEED]]]
 *
 * Temperature 0, the default, always takes the most likely token. The text is written to standard output, and what it
 * cost to standard error. */
#include <additive.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static additive_error error;

/* End the program if a call has failed. */
static void need_ok(additive_code code)
{
	if (code == ADDITIVE_OK)
		return;
	fprintf(stderr, "generate: %s%s%s\n", error.field, error.field[0] ? ": " : "", error.message);
	exit(1);
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Write up to `most` tokens; return their number. */
static int generate(const additive_model *model, additive_session *session, const additive_sampling *sampling, int most)
{
	additive_text *text;
	int32_t token = -1;
	size_t bytes;
	int n = 0;
	need_ok(additive_text_open(&text, model, 1, &error));
	while (n < most) {
		need_ok(additive_session_sample(session, sampling, &token, &error));
		n++;
		if (additive_token_ends(model, token))
			break;
		fputs(additive_text_append(text, token, &bytes), stdout);
		if (n < most)
			need_ok(additive_session_step(session, token, &error));
	}
	puts(additive_text_append(text, -1, &bytes));
	additive_text_close(text);
	return n;
}

int main(int argc, char **argv)
{
	additive_device *device;
	additive_model *model;
	additive_session *session;
	additive_sampling sampling;
	additive_facts facts;
	struct rusage used;
	int32_t *tokens;
	size_t count;
	if (argc < 3) {
		fprintf(stderr, "usage: generate FOLDER TEXT [TOKENS [TEMPERATURE [SEED]]]\n");
		return 2;
	}
	additive_sampling_default(&sampling);
	sampling.temperature = argc > 4 ? strtof(argv[4], NULL) : 0;
	sampling.seed = argc > 5 ? strtoull(argv[5], NULL, 10) : 0;

	need_ok(additive_device_open(&device, "cpu", 0, &error));
	need_ok(additive_model_open(&model, device, argv[1], "fp32", 0, &error));
	need_ok(additive_session_open(&session, model, ADDITIVE_POSITIONS_ERROR, &error));
	need_ok(additive_tokenize(model, argv[2], strlen(argv[2]), 0, &tokens, &count, &error));
	need_ok(additive_session_read(session, tokens, count, &error));

	const double began = seconds();
	const int n = generate(model, session, &sampling, argc > 3 ? atoi(argv[3]) : 32);
	const double took = seconds() - began;
	additive_model_facts(model, &facts);
	getrusage(RUSAGE_SELF, &used);
	fprintf(stderr, "%d tokens, %.1f µs for each; %lld bytes of state, %ld KiB of memory at most\n", n,
	        took * 1e6 / (n ? n : 1), (long long)facts.state_bytes, used.ru_maxrss);

	additive_free(tokens);
	additive_session_close(session);
	need_ok(additive_model_close(model, &error));
	need_ok(additive_device_close(device, &error));
	return 0;
}
