/* joined.h - streams that decode while prompts are read have the bits that each has alone. Include after fixture.h. */
#ifndef TESTS_UNIT_SERVE_JOINED_H
#define TESTS_UNIT_SERVE_JOINED_H

enum { JOINED_STREAMS = 3, JOINED_PROMPTS = 4, JOINED = JOINED_STREAMS + JOINED_PROMPTS, JOINED_LONGEST = 300 };

/* Request i: streams say `said` tokens each, sampled, penalised or with log-probabilities; prompts have up to `length`
 * tokens. */
static inline generation_request joined_request(client *c, int i, const int32_t *ids, int64_t length, int64_t said)
{
	if (i >= JOINED_STREAMS)
		return request(c, ids + i, length / (i - JOINED_STREAMS + 1), 3);
	generation_request r = request(c, ids + i, 2 + i, said);
	r.sampling.temperature = (float)i * 0.5f;
	r.sampling.repetition_penalty = i == 2 ? 1.3f : 1;
	r.sampling.seed = (uint64_t)i;
	r.n_logprobs = i == 1 ? 2 : -1;
	return r;
}

/* Start request i; a stream has a session NAMEi. */
static inline session *joined_start(fixture *f, const char *name, int i, client *c, const generation_request *r)
{
	char id[16];
	snprintf(id, sizeof id, "%s%d", name, i);
	session *x = i < JOINED_STREAMS ? open_session(f, id, POSITION_CLAMP, false) : NULL;
	start(f, x, c, r);
	return x;
}

static inline void check_joined(fixture *f, int64_t length, int64_t said)
{
	static client alone[JOINED], together[JOINED];
	static int32_t ids[JOINED_LONGEST + JOINED];
	session *x[JOINED], *y[JOINED];
	random_tokens(ids, JOINED_LONGEST + JOINED, 1);
	for (int i = 0; i < JOINED; i++) {
		const generation_request r = joined_request(&alone[i], i, ids, length, said);
		x[i] = joined_start(f, "alone", i, &alone[i], &r);
		drain(f);
	}
	for (int i = 0; i < JOINED; i++) {
		const generation_request r = joined_request(&together[i], i, ids, length, said);
		y[i] = joined_start(f, "together", i, &together[i], &r);
		assert_int_equal(scheduler_tick(f->scheduler), STATUS_OK);
	}
	drain(f);
	for (int i = 0; i < JOINED; i++) {
		assert_int_equal(together[i].result.status, STATUS_OK);
		assert_int_equal(together[i].n_tokens, alone[i].n_tokens);
		assert_memory_equal(together[i].tokens, alone[i].tokens, sizeof alone[i].tokens);
		assert_memory_equal(together[i].logprobs, alone[i].logprobs, sizeof alone[i].logprobs);
		if (i < JOINED_STREAMS)
			assert_same_logits(x[i], y[i]);
	}
}

#endif
