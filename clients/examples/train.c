/* train - train a model on a text.
 *
 *   cc train.c $(pkg-config --cflags --libs additive) -o train
 *   ./train RECIPE.json TEXT FOLDER
 *
 * The recipe is the body of POST /v1/fine_tuning/jobs without its file. The model is written to FOLDER/model. Ctrl-C
 * saves the last step, and the same command continues there. */
#include <additive.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
	(void)signal;
	interrupted = 1;
}

/* Return a file's text, or end the program. */
static char *read_file(const char *path)
{
	enum { MOST = 1 << 20 };
	FILE *f = fopen(path, "r");
	char *text = calloc(1, MOST + 1);
	if (!f || !text || fread(text, 1, MOST, f) == 0) {
		fprintf(stderr, "train: %s cannot be read\n", path);
		exit(1);
	}
	fclose(f);
	return text;
}

static int show_progress(void *context, const additive_progress *p)
{
	(void)context;
	if (p->evaluated)
		printf("step %lld of %lld: loss %.4f, validation %.4f, %.0f tokens/s\n", (long long)p->step,
		       (long long)p->total_steps, p->train_loss, p->valid_loss, p->tokens_per_second);
	return interrupted;
}

int main(int argc, char **argv)
{
	additive_device *device;
	additive_error error;
	if (argc != 4) {
		fprintf(stderr, "usage: train RECIPE.json TEXT FOLDER\n");
		return 2;
	}
	signal(SIGINT, interrupt);
	char *recipe = read_file(argv[1]);
	additive_code code = additive_device_open(&device, "auto", 0, &error);
	if (code == ADDITIVE_OK) {
		code = additive_train(device, recipe, argv[2], argv[3], show_progress, NULL, &error);
		additive_device_close(device, NULL);
	}
	free(recipe);
	if (code == ADDITIVE_OK)
		printf("the model is in %s/model\n", argv[3]);
	else
		fprintf(stderr, "train: %s%s%s\n", error.field, error.field[0] ? ": " : "", error.message);
	return code != ADDITIVE_OK;
}
