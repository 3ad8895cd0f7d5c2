#include "engine/explain/attribution.h"

#include <math.h>

/* Return the index of the largest logit other than `not`; -1: none. */
static int32_t attribution_largest(const float *logits, int64_t n, int32_t not )
{
	int32_t best = -1;
	for (int64_t v = 0; v < n; v++)
		if (v != not &&isfinite(logits[v]) && (best < 0 || logits[v] > logits[best]))
			best = (int32_t)v;
	return best;
}

void explain_target_choose(const explain_target *t, const float *logits, int64_t n, float *coefficients,
                           explain_parts *out)
{
	const int32_t top = attribution_largest(logits, n, -1), token = t->token >= 0 ? t->token : top;
	const double most = top >= 0 ? (double)logits[top] : 0;
	double sum = 0;
	for (int64_t v = 0; v < n; v++)
		sum += isfinite(logits[v]) ? exp((double)logits[v] - most) : 0;
	out->logit = token >= 0 ? (double)logits[token] : 0;
	out->log_probability = out->logit - most - log(sum);
	out->kind = t->kind != EXPLAIN_USUAL                       ? t->kind
	            : out->log_probability >= log(EXPLAIN_CERTAIN) ? EXPLAIN_DIFFERENCE
	                                                           : EXPLAIN_CONTRAST;
	const int32_t other =
	    t->other >= 0 || out->kind != EXPLAIN_DIFFERENCE ? t->other : attribution_largest(logits, n, token);
	for (int64_t v = 0; v < n; v++) {
		double c = v == token;
		if (out->kind == EXPLAIN_CONTRAST)
			c -= exp((double)logits[v] - most) / sum;
		if (out->kind == EXPLAIN_DIFFERENCE)
			c -= v == other;
		coefficients[v] = isfinite(logits[v]) ? (float)c : 0;
	}
	out->token = token;
	out->other = other;
	out->score = explain_score_of(coefficients, logits, n);
}

double explain_score_of(const float *coefficients, const float *logits, int64_t n)
{
	double score = 0;
	for (int64_t v = 0; v < n; v++)
		score += isfinite(logits[v]) ? (double)coefficients[v] * (double)logits[v] : 0;
	return score;
}

double explain_log_probability_of(const float *logits, int64_t n, int32_t v)
{
	const int32_t top = attribution_largest(logits, n, -1);
	double sum = 0;
	for (int64_t u = 0; top >= 0 && u < n; u++)
		sum += isfinite(logits[u]) ? exp((double)logits[u] - (double)logits[top]) : 0;
	return top >= 0 && v >= 0 ? (double)logits[v] - (double)logits[top] - log(sum) : NAN;
}

/* Legendre polynomial P_n(x) and its derivative. */
static double legendre(int n, double x, double *slope)
{
	double before = 1, now = x;
	for (int k = 2; k <= n; k++) {
		double next = ((2 * k - 1) * x * now - (k - 1) * before) / k;
		before = now;
		now = next;
	}
	*slope = n * (x * now - before) / (x * x - 1);
	return now;
}

/* Factor of the word vectors and its slope, for u from 0 to 1. */
static void path_at(double u, double size, double *factor, double *slope)
{
	const double epsilon = 1e-5, rate = size > 0 ? log(101) : 8, rising = expm1(rate * u) / expm1(rate),
	             rises = rate * exp(rate * u) / expm1(rate);
	if (size <= 0) {
		*factor = rising;
		*slope = rises;
		return;
	}
	const double c = sqrt(epsilon) / size, most = 1 / sqrt(1 + c * c), v = most * rising, rest = 1 - v * v;
	*factor = c * v / sqrt(rest);
	*slope = c * most * rises / (rest * sqrt(rest));
}

void explain_mean_baseline(const float *words, int64_t n, int64_t width, float *out)
{
	double squares = 0, mean = 0;
	for (int64_t c = 0; c < width; c++) {
		double sum = 0;
		for (int64_t j = 0; j < n; j++) {
			sum += (double)words[j * width + c];
			squares += (double)words[j * width + c] * (double)words[j * width + c];
		}
		out[c] = (float)(sum / (double)n);
		mean += (double)out[c] * (double)out[c];
	}
	for (int64_t c = 0; c < width && mean > 0; c++)
		out[c] *= (float)sqrt(squares / (double)n / mean);
}

void explain_straight_path(int steps, double *factors, double *weights)
{
	for (int i = 0; i < steps; i++) {
		double x = -cos(M_PI * (i + 0.75) / (steps + 0.5)), slope = 1; /* Newton iterations */
		for (int k = 0; k < 100; k++) {
			double change = legendre(steps, x, &slope) / slope;
			x -= change;
			if (fabs(change) < 1e-15)
				break;
		}
		factors[i] = (1 + x) / 2;
		weights[i] = 1 / ((1 - x * x) * slope * slope);
	}
}

void explain_path(int steps, double size, double *factors, double *weights)
{
	explain_straight_path(steps, factors, weights);
	for (int i = 0; i < steps; i++) {
		double slope;
		path_at(factors[i], size, &factors[i], &slope);
		weights[i] *= slope;
	}
}
