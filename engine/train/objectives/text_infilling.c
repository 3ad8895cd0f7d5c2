/* Some words of a text are replaced by blanks, and the decoder writes the whole text (Lewis et al. 2020, section 2.2,
 * with the blanks of Cirilla). blanks.h selects the words, differently in each epoch.
 *
 *   source   [before] k k M k k M k [after]
 *   target   the text [end]
 *
 * M is the mask token: a blank for one word or more. [before] and [after] are the tokens that the tokenizer puts around
 * the texts that encoders read (tokenizer_encode). A record is a text without these and without the end token. Words
 * begin where dataset_begins_word is true. A token that represents no text belongs to no word and hides none. White
 * space before a blank is kept if it has tokens of its own. A source therefore has the tokens of a request's text that
 * contains the name of the mask (engine/daemon/generation/mask_text.h). The decoder reads the start token and the
 * target without its last token, as in sequence_to_sequence.c. All tokens of the target are labels, including copied
 * ones.
 *
 *   perplexity       e to the mean loss over the tokens of the targets
 *   accuracy         share of them that had the largest logit, the first of equals
 *   blank_accuracy   the same for the tokens that blanks hide
 *
 * A record has at most sequence_length - 1 and at most source_length - 2 tokens, which leaves room for one token before
 * and one after. */
#include <math.h>
#include <string.h>

#include "engine/train/blanks.h"
#include "engine/train/objective.h"

enum { SOURCE_FRAME = 2 };

static int64_t record_length(const train_options *o)
{
	const int64_t target = o->sequence_length - 1, source = train_options_source(o) - SOURCE_FRAME;
	return target < source ? target : source;
}

static status text_infilling_check(const dataset *d, const model_dims *dims, const train_options *o, error *err)
{
	const tokenizer_frame *f = dataset_source_frame(d);
	(void)o;
	if (f->n_before + f->n_behind > SOURCE_FRAME)
		return error_set(err, STATUS_INVALID, "tokenizer",
		                 "puts %d tokens around a source, for which there is room for %d",
		                 f->n_before + f->n_behind, SOURCE_FRAME);
	TRY(example_check_end(d, err));
	TRY(example_check_mask(d, dims, err));
	return example_check_start(d, dims, err);
}

/* A record's tokens by word. */
typedef struct sentence {
	const dataset *data;
	const int32_t *ids; /* [count] */
	int64_t count, words;
} sentence;

static bool text_infilling_is_text(const sentence *s, int64_t i)
{
	return dataset_token_bytes(s->data, s->ids[i]) > 0;
}

static bool text_infilling_begins(const sentence *s, int64_t i)
{
	return text_infilling_is_text(s, i) &&
	       (i == 0 || !text_infilling_is_text(s, i - 1) || dataset_begins_word(s->data, s->ids[i - 1], s->ids[i]));
}

static sentence sentence_of(const dataset *d, const text_record *r)
{
	const tokenizer_frame *f = dataset_source_frame(d);
	sentence s = {.data = d, .ids = r->ids, .count = r->count};
	if (s.count > 0 && s.ids[s.count - 1] == dataset_end(d))
		s.count--;
	if (s.count >= f->n_before && memcmp(s.ids, f->before, (size_t)f->n_before * sizeof *s.ids) == 0) {
		s.ids += f->n_before;
		s.count -= f->n_before;
	}
	for (int64_t i = 0; i < s.count; i++)
		s.words += text_infilling_begins(&s, i);
	return s;
}

static blanks blanks_of(const sentence *s, uint64_t seed, int64_t epoch, int64_t place)
{
	return s->words > 0 ? blanks_draw(seed, epoch, place, s->words) : (blanks){.n = 0};
}

static int64_t text_infilling_put(int32_t *out, int64_t count, const int32_t *ids, int n)
{
	memcpy(out + count, ids, (size_t)n * sizeof *out);
	return count + n;
}

static int64_t make_source(const sentence *s, const blanks *b, int32_t mask, int32_t *out)
{
	const tokenizer_frame *f = dataset_source_frame(s->data);
	int64_t n = text_infilling_put(out, 0, f->before, f->n_before), word = -1;
	for (int64_t i = 0; i < s->count; i++) {
		word += text_infilling_begins(s, i);
		bool hidden = text_infilling_is_text(s, i) && blanks_hide(b, word);
		if (hidden && dataset_token_space(s->data, s->ids[i]) == SPACE_ALL)
			hidden = n > 0 && out[n - 1] == mask; /* between two blanks */
		n = blanks_append(out, n, s->ids[i], hidden, mask);
	}
	return text_infilling_put(out, n, f->behind, f->n_behind);
}

static void text_infilling_make_example(const example *x, void *const *values)
{
	int32_t *source = values[0], *labels = values[3];
	int64_t n = 0, m = 0;
	if (x->record) {
		const sentence s = sentence_of(x->data, x->record);
		const blanks b = blanks_of(&s, x->seed, x->epoch, x->place);
		n = make_source(&s, &b, (int32_t)example_mask(x->data, x->dims), source);
		memcpy(labels, s.ids, (size_t)s.count * sizeof *labels);
		m = s.count;
		labels[m++] = dataset_end(x->data);
	}
	example_fill_source(x, n, source, values[1]);
	example_shift_labels(x, m, values[2], labels);
}

typedef struct infilling_tally {
	int64_t hits, hidden, found; /* hits of all labels; labels of hidden tokens; hits of these */
} infilling_tally;

static size_t text_infilling_tally_bytes(const dataset *d)
{
	(void)d;
	return sizeof(infilling_tally);
}

static status text_infilling_tally(evaluation *e, plan *p, int64_t first, int64_t rows)
{
	infilling_tally *t = e->tally;
	text_record *r = &e->record;
	const graph *g = plan_graph(p);
	const int64_t length = shape_last(graph_value(g, port_find(g, PORT_TOKENS))->shape);
	int64_t all;
	TRY(objective_count_hits(e, p, &all));
	t->hits += all;
	for (int64_t row = 0; row < rows; row++) {
		const int64_t place = first + row * e->stride;
		int64_t word = -1;
		TRY(dataset_record(e->data, 0, 0, place, r, NULL));
		const sentence s = sentence_of(e->data, r);
		const blanks b = blanks_of(&s, 0, 0, place);
		for (int64_t i = 0; i < s.count; i++) {
			word += text_infilling_begins(&s, i);
			const bool hidden = text_infilling_is_text(&s, i) && blanks_hide(&b, word);
			t->hidden += hidden;
			t->found += hidden && e->hits[row * length + i] != 0;
		}
	}
	return STATUS_OK;
}

static void text_infilling_measure(const evaluation *e, double *metrics)
{
	const infilling_tally *t = e->tally;
	metrics[0] = exp(e->nats / e->labels);
	metrics[1] = (double)t->hits / e->labels;
	metrics[2] = (double)t->found / (double)t->hidden;
}

const objective objective_text_infilling = {
    .name = "text_infilling",
    .model = "transformer",
    .options = (const char *const[]){"source_length", NULL},
    .form = &form_encoder_decoder,
    .uneven = true,
    .masks = true,
    .records = RECORD_BLOCK,
    .record_length = record_length,
    .ports = {PORT_SOURCE, PORT_SOURCE_MASK, PORT_TOKENS, PORT_LABELS},
    .n_ports = 4,
    .check = text_infilling_check,
    .example = text_infilling_make_example,
    .metrics = {"perplexity", "accuracy", "blank_accuracy"},
    .measure = text_infilling_measure,
    .hits = true,
    .tally_bytes = text_infilling_tally_bytes,
    .tally = text_infilling_tally,
};
