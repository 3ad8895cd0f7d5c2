/* Learns to prefer one of two completions of a prompt, compared with the model that the run starts from. c and r are the
 * log-probabilities of the chosen and of the rejected completion, each minus that by this reference. β is the option
 * beta, ε is label_smoothing. The loss of a record:
 *
 *   dpo   -(1 - ε) ln σ(β (c - r)) - ε ln σ(-β (c - r))                          Rafailov et al. 2023; ε: cDPO
 *   ipo   (c / |chosen| - r / |rejected| - 1 / (2 β))²                           Azar et al. 2023, by tokens
 *   kto   (1 - σ(β (c - max(0, mean r))) + 1 - σ(β (max(0, mean c) - r))) / 2    Ethayarajh et al. 2024
 *
 * They equal TRL's sigmoid, ipo and kto_pair. The means of kto are over the records of a batch and take no gradient.
 * The end of a completion is one of its tokens.
 *
 *   accuracy                          share of the records with c > r
 *   margin                            mean of β (c - r)
 *   chosen_reward, rejected_reward    means of β c and β r */
#include <math.h>

#include "engine/train/objective.h"

enum { CHOSEN, REJECTED, SEQUENCES };

static void preference_make_example(const example *x, void *const *values)
{
	const text_record *r = x->record;
	for (int s = 0; s < SEQUENCES; s++) {
		const int64_t first = r && s == REJECTED ? r->second : 0;
		const int64_t n = !r ? 0 : s == REJECTED ? r->count - first : r->second;
		int32_t *ids = (int32_t *)values[0] + s * x->length, *labels = (int32_t *)values[1] + s * x->length;
		for (int64_t i = 0; i < x->length; i++) {
			ids[i] = i < n ? r->ids[first + i] : dataset_pad(x->data);
			labels[i] = i + 1 < n && i + 1 >= r->source ? r->ids[first + i + 1] : -1;
		}
	}
}

static double logistic(double x)
{
	return 1 / (1 + exp(-x));
}

static double log_sigmoid(double x)
{
	return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

/* The mean of the records' log-ratios of one sequence, at least 0. */
static double mean_ratio(const sequence_batch *b, int sequence)
{
	double sum = 0;
	for (int64_t i = 0; i < b->records; i++)
		sum += (double)b->sums[i * SEQUENCES + sequence] - (double)b->reference[i * SEQUENCES + sequence];
	return fmax(0, sum / (double)b->records);
}

/* Return the loss of a record. slope: its derivatives with respect to both log-probabilities. */
static double record_loss(const train_options *o, const double ratio[SEQUENCES], const int64_t labels[SEQUENCES],
                          const double mean[SEQUENCES], double slope[SEQUENCES])
{
	const double beta = o->beta, smooth = o->label_smoothing;
	double z[SEQUENCES], tokens[SEQUENCES];
	switch (o->preference_loss) {
	case PREFERENCE_LOSS_IPO:
		for (int s = 0; s < SEQUENCES; s++)
			tokens[s] = labels[s] > 0 ? (double)labels[s] : 1;
		z[0] = ratio[CHOSEN] / tokens[CHOSEN] - ratio[REJECTED] / tokens[REJECTED] - 1 / (2 * beta);
		slope[CHOSEN] = 2 * z[0] / tokens[CHOSEN];
		slope[REJECTED] = -2 * z[0] / tokens[REJECTED];
		return z[0] * z[0];
	case PREFERENCE_LOSS_KTO:
		z[CHOSEN] = logistic(beta * (ratio[CHOSEN] - mean[REJECTED]));
		z[REJECTED] = logistic(beta * (mean[CHOSEN] - ratio[REJECTED]));
		slope[CHOSEN] = -beta * z[CHOSEN] * (1 - z[CHOSEN]) / 2;
		slope[REJECTED] = beta * z[REJECTED] * (1 - z[REJECTED]) / 2;
		return (1 - z[CHOSEN] + 1 - z[REJECTED]) / 2;
	default:
		z[0] = beta * (ratio[CHOSEN] - ratio[REJECTED]);
		slope[CHOSEN] = beta * (smooth * logistic(z[0]) - (1 - smooth) * logistic(-z[0]));
		slope[REJECTED] = -slope[CHOSEN];
		return -(1 - smooth) * log_sigmoid(z[0]) - smooth * log_sigmoid(-z[0]);
	}
}

typedef struct preference_tally {
	int64_t right;
	double reward[SEQUENCES];
} preference_tally;

static size_t preference_tally_bytes(const dataset *d)
{
	(void)d;
	return sizeof(preference_tally);
}

static void preference_weigh(sequence_batch *b)
{
	const double mean[] = {mean_ratio(b, CHOSEN), mean_ratio(b, REJECTED)};
	preference_tally *tally = b->tally;
	b->loss = 0;
	for (int64_t i = 0; i < b->records; i++) {
		double ratio[SEQUENCES];
		for (int s = 0; s < SEQUENCES; s++)
			ratio[s] = (double)b->sums[i * SEQUENCES + s] - (double)b->reference[i * SEQUENCES + s];
		b->loss += record_loss(b->options, ratio, b->labels + i * SEQUENCES, mean, b->slopes + i * SEQUENCES);
		for (int s = 0; s < SEQUENCES; s++)
			b->slopes[i * SEQUENCES + s] /= (double)b->records;
		if (!tally)
			continue;
		tally->right += ratio[CHOSEN] > ratio[REJECTED];
		for (int s = 0; s < SEQUENCES; s++)
			tally->reward[s] += b->options->beta * ratio[s];
	}
	b->loss /= (double)b->records;
}

static void preference_measure(const evaluation *e, double *metrics)
{
	const preference_tally *t = e->tally;
	const double n = (double)e->records;
	metrics[0] = (double)t->right / n;
	metrics[1] = (t->reward[CHOSEN] - t->reward[REJECTED]) / n;
	metrics[2] = t->reward[CHOSEN] / n;
	metrics[3] = t->reward[REJECTED] / n;
}

/* A guess is right for half of the records. */
static bool at_chance(const train_progress *p)
{
	return train_metric(p, "accuracy") <= 0.5;
}

const objective objective_preference = {
    .name = "preference",
    .model = "additive2",
    .options = (const char *const[]){"beta", "preference_loss", NULL},
    .form = &form_causal,
    .records = RECORD_PREFERENCE,
    .continues = true,
    .ports = {PORT_TOKENS, PORT_LABELS},
    .n_ports = 2,
    .example = preference_make_example,
    .rows = SEQUENCES,
    .weigh = preference_weigh,
    .metrics = {"accuracy", "margin", "chosen_reward", "rejected_reward"},
    .measure = preference_measure,
    .at_chance = at_chance,
    .tally_bytes = preference_tally_bytes,
};
