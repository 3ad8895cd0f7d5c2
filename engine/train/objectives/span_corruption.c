/* Spans of a text are removed, and the decoder writes them (Raffel et al. 2020, section 3.1.4). With the sentinels s0,
 * s1, … of the tokenizer (tokenizer_sentinels), a text of kept tokens k and removed tokens o becomes
 *
 *   source   k k k s0 k k s1 [end]
 *   target   s0 o o o s1 o s2 [end]        the sentinel after the last span marks the end
 *
 * and the decoder reads the start token and the target without its last token, as in sequence_to_sequence.c.
 *
 *   perplexity   e to the mean loss over the tokens of the targets
 *   accuracy     share of them that had the largest logit, the first of equals
 *
 * From n tokens, o = min(max(round(f n), 1), n - 1) are removed, f = mask_fraction, in s = min(max(round(o /
 * span_length), 1), n - o) spans. A text begins with kept tokens, and each of its s kept pieces and s spans has at
 * least one token. The n - o kept tokens are divided into s pieces, every division being equally likely, and so are the
 * o removed ones. To divide m items into s pieces from left to right, cut after an item with probability (cuts still to
 * make) / (places still to come), with s - 1 cuts and m - 1 places (Knuth, "Seminumerical algorithms", 3.4.2, algorithm
 * S). The random words are a function of the order's seed, the epoch and the place in it (philox.h); an evaluation
 * always uses the same.
 *
 * A record has as many tokens as fit: n is the largest number with n - o + s + 1 <= source_length and o + s + 2 <=
 * sequence_length. A single token has no span and no label. */
#include <math.h>
#include <string.h>

#include "engine/base/philox.h"
#include "engine/train/objective.h"

typedef struct division {
	int64_t left_out, spans;
} division;

static int64_t clamp(int64_t x, int64_t least, int64_t most)
{
	x = x > least ? x : least;
	return x < most ? x : most;
}

/* n must be at least 2. */
static division span_corruption_divide(const train_options *o, int64_t n)
{
	int64_t left_out = clamp(llround(o->mask_fraction * (double)n), 1, n - 1);
	return (division){left_out, clamp(llround((double)left_out / o->span_length), 1, n - left_out)};
}

static bool span_corruption_fits(const train_options *o, int64_t n)
{
	division d = span_corruption_divide(o, n);
	return n - d.left_out + d.spans + 1 <= train_options_source(o) &&
	       d.left_out + d.spans + 2 <= o->sequence_length;
}

/* Both lengths grow with n, and one of them grows at least every second step. */
static int64_t record_length(const train_options *o)
{
	int64_t n = 1;
	while (span_corruption_fits(o, n + 1))
		n++;
	return n;
}

static status span_corruption_check(const dataset *d, const model_dims *dims, const train_options *o, error *err)
{
	int sentinels;
	dataset_sentinels(d, &sentinels);
	int64_t spans = span_corruption_divide(o, dataset_length(d)).spans;
	TRY(example_check_end(d, err));
	if (sentinels == 0)
		return error_set(err, STATUS_INVALID, "tokenizer",
		                 "it has no sentinels <extra_id_0>, <extra_id_1>, …, which stand for the spans");
	if (sentinels <= spans)
		return error_set(err, STATUS_INVALID, "span_length",
		                 "leaves %lld spans out of a text; the tokenizer's %d sentinels are enough for %d",
		                 (long long)spans, sentinels, sentinels - 1);
	return example_check_start(d, dims, err);
}

/* A division of items into pieces. */
typedef struct pieces {
	int64_t items, cuts; /* still to come */
} pieces;

/* Take an item; true if its piece ends. */
static bool span_corruption_take(pieces *p, uint32_t word)
{
	p->items--;
	if (p->items > 0 && philox_below(word, p->items) >= p->cuts)
		return false;
	p->cuts--;
	return true;
}

static uint32_t span_corruption_draw(const example *x, int64_t item, int word)
{
	uint64_t index = (uint64_t)(x->place * dataset_length(x->data) + item);
	return philox(x->seed, PHILOX_STREAM_SPAN, (uint32_t)x->epoch, index).word[word];
}

/* Corrupt a record of at least two tokens. Return the tokens of the source; *target: tokens of the target. */
static int64_t corrupt(const example *x, int32_t *source, int32_t *target, int64_t *target_count)
{
	const text_record *r = x->record;
	const division d = span_corruption_divide(x->options, r->count);
	pieces kept = {r->count - d.left_out, d.spans - 1}, left_out = {d.left_out, d.spans - 1};
	int sentinels;
	const int32_t *sentinel = dataset_sentinels(x->data, &sentinels);
	int64_t at = 0, n = 0, m = 0;
	for (int64_t span = 0; span < d.spans; span++) {
		bool last;
		do {
			last = span_corruption_take(&kept, span_corruption_draw(x, kept.items, 0));
			source[n++] = r->ids[at++];
		} while (!last);
		source[n++] = target[m++] = sentinel[span];
		do {
			last = span_corruption_take(&left_out, span_corruption_draw(x, left_out.items, 1));
			target[m++] = r->ids[at++];
		} while (!last);
	}
	target[m++] = sentinel[d.spans];
	source[n++] = target[m++] = dataset_end(x->data);
	*target_count = m;
	return n;
}

static void span_corruption_make_example(const example *x, void *const *values)
{
	int32_t *source = values[0], *labels = values[3];
	int64_t n = 0, m = 0;
	if (x->record && x->record->count > 1)
		n = corrupt(x, source, labels, &m);
	example_fill_source(x, n, source, values[1]);
	example_shift_labels(x, m, values[2], labels);
}

const objective objective_span_corruption = {
    .name = "span_corruption",
    .model = "transformer",
    .options = (const char *const[]){"source_length", "mask_fraction", "span_length", NULL},
    .form = &form_encoder_decoder,
    .uneven = true,
    .records = RECORD_BLOCK,
    .record_length = record_length,
    .ports = {PORT_SOURCE, PORT_SOURCE_MASK, PORT_TOKENS, PORT_LABELS},
    .n_ports = 4,
    .check = span_corruption_check,
    .example = span_corruption_make_example,
    .metrics = {"perplexity", "accuracy"},
    .measure = objective_measure_hits,
    .hits = true,
    .tally_bytes = objective_hits_bytes,
    .tally = objective_tally_hits,
};
