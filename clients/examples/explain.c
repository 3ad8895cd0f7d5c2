/* explain - show which tokens a prediction depends on.
 *
 *   cc explain.c $(pkg-config --cflags --libs additive) -o explain
 *   ./explain FOLDER "a text"
 *
 * Each line is a token: its contribution to the score of the predicted token or class, its importance weight or "-",
 * its text. The last lines are the parts of the score that belong to no token. The contributions and these sum to the
 * score. */
#include <additive.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static additive_error error;

/* End the program if a call has failed. */
static void need_ok(additive_code code)
{
	if (code == ADDITIVE_OK)
		return;
	fprintf(stderr, "explain: %s%s%s\n", error.field, error.field[0] ? ": " : "", error.message);
	exit(1);
}

static void print_token(additive_text *text, int32_t token)
{
	size_t bytes;
	const char *characters = additive_text_append(text, token, &bytes);
	putchar('"');
	for (size_t i = 0; i < bytes; i++)
		if (characters[i] == '\n')
			printf("\\n");
		else
			putchar(characters[i]);
	printf("\"\n");
}

int main(int argc, char **argv)
{
	additive_device *device;
	additive_model *model;
	additive_text *text;
	additive_facts facts;
	additive_explanation explanation = {.method = ADDITIVE_CONTRIBUTIONS, .output = -1, .other = -1};
	int32_t *tokens;
	size_t count;
	double rest = 0;
	if (argc != 3) {
		fprintf(stderr, "usage: explain FOLDER TEXT\n");
		return 2;
	}
	need_ok(additive_device_open(&device, "cpu", 0, &error));
	need_ok(additive_model_open(&model, device, argv[1], "fp32", 0, &error));
	need_ok(additive_tokenize(model, argv[2], strlen(argv[2]), 0, &tokens, &count, &error));

	float *numbers = calloc(count ? count : 1, 3 * sizeof *numbers);
	if (!numbers)
		return 1;
	float *parts = numbers, *others = numbers + count, *weights = numbers + 2 * count;
	need_ok(additive_explain(model, tokens, count, &explanation, parts, others, &error));
	const int weighed = additive_explain_weights(model, tokens, count, -1, -1, 0, weights, &error) == ADDITIVE_OK;
	if (!weighed)
		fprintf(stderr, "explain: no weights: %s\n", error.message);

	need_ok(additive_text_open(&text, model, 0, &error));
	for (size_t i = 0; i < count; i++) {
		printf("%+.6f ", (double)parts[i]);
		if (weighed)
			printf("%.6f ", (double)weights[i]);
		else
			printf("- ");
		print_token(text, tokens[i]);
		rest += (double)others[i];
	}
	additive_text_close(text);
	printf("positions and biases %+.6f\n", rest + explanation.head);
	printf("score %+.6f of ", explanation.score);
	additive_model_facts(model, &facts);
	need_ok(additive_text_open(&text, model, 1, &error));
	if (facts.classifier)
		printf("class %d\n", (int)explanation.output);
	else
		print_token(text, explanation.output);

	additive_text_close(text);
	free(numbers);
	additive_free(tokens);
	need_ok(additive_model_close(model, &error));
	need_ok(additive_device_close(device, &error));
	return 0;
}
