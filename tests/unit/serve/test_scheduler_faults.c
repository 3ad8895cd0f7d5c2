/* A short scenario runs again and again with the N-th call to the backend failing, for N = 1, 2, 3 … until a run ends
 * before the fault. After any failure, every generation ends once and delivers only tokens of a run without faults.
 * Later requests work as usual. */
#include "tests/unit/serve/fault_backend.h"
#include "tests/unit/serve/fixture.h"
#include "tests/unit/serve/refusal.h"
#include "tests/unit/support/allocations.h"

#include <math.h>

enum { CLIENTS = 4, LONGEST = 8 };

typedef struct day {
	fixture *f;
	fault_backend *fault;
	client clients[CLIENTS];
	bool accepted[CLIENTS];
	int refused; /* calls that returned an error */
	bool device; /* a tick reported STATUS_DEVICE */
} day;

static const int64_t prompt_lengths[CLIENTS] = {20, 3, 30, 7};
static const int64_t max_tokens[CLIENTS] = {LONGEST, 6, 0, 7};
static const scheduler_limits limits = {.max_models = 1, .max_sessions = 8, .max_generations = 8, .max_batch = 4};

static void tick_until_idle(day *d)
{
	for (int i = 0; scheduler_runnable(d->f->scheduler); i++) {
		assert_true(i < 1000);
		status s = scheduler_tick(d->f->scheduler);
		assert_true(s == STATUS_OK || s == STATUS_DEVICE);
		d->device |= s == STATUS_DEVICE;
	}
}

static void begin(day *d, int i, session *x)
{
	int32_t ids[40];
	random_tokens(ids, 40, (uint64_t)i);
	generation_request r = request(&d->clients[i], ids, prompt_lengths[i], max_tokens[i]);
	r.n_alpha = i == 3 ? 2 : 0;
	r.score_prompt = i == 3;
	r.n_logprobs = i == 3 ? 2 : -1;
	r.explain = i == 1;
	error err = ERROR_INIT;
	status s = scheduler_generate(d->f->scheduler, d->f->model, x, &r, &d->clients[i].generation, &err);
	d->accepted[i] = s == STATUS_OK;
	d->refused += s != STATUS_OK;
	assert_true(s == STATUS_OK || s == STATUS_DEVICE || s == STATUS_NOMEM);
	assert_true(s == STATUS_OK || err.status == s);
}

/* Sessions, generations, a fork, an export and an import; the pool grows past its first four slots. */
static void run_day(day *d)
{
	fixture *f = d->f;
	session *x = NULL, *y = NULL, *z, *w;
	session_options plain = {.policy = POSITION_ERROR}, explained = {.policy = POSITION_CLAMP, .explain = true};
	void *blob = NULL;
	size_t bytes = 0;
	d->refused += scheduler_session_new(f->scheduler, f->model, "x", &explained, &x, NULL) != STATUS_OK;
	d->refused += scheduler_session_new(f->scheduler, f->model, "y", &plain, &y, NULL) != STATUS_OK;
	if (x)
		begin(d, 0, x);
	begin(d, 1, NULL);
	if (y)
		begin(d, 2, y);
	begin(d, 3, NULL);
	tick_until_idle(d);
	if (x)
		d->refused += scheduler_session_fork(f->scheduler, x, "z", &z, NULL) != STATUS_OK;
	if (y && scheduler_session_export(f->scheduler, y, &blob, &bytes, NULL) == STATUS_OK)
		d->refused += scheduler_session_import(f->scheduler, f->model, "w", blob, bytes, &w, NULL) != STATUS_OK;
	else
		d->refused++;
	free(blob);
}

static void rise(day *d, fixture *f, fault_backend *fault)
{
	memset(d, 0, sizeof *d);
	d->f = f;
	d->fault = fault;
	fixture_serve(f, &limits);
}

/* A session either reports that it is lost, or continues like a session that reads its tokens from the start. */
static void check_session(day *d, session *x)
{
	client c;
	int32_t ids[2] = {77, 78};
	error err = ERROR_INIT;
	session_options o = {.policy = POSITION_CLAMP};
	session *fresh;
	generation_request r = request(&c, ids, 2, 0);
	status s = scheduler_generate(d->f->scheduler, NULL, x, &r, &c.generation, &err);
	assert_int_equal(s, x->lost ? STATUS_DEVICE : STATUS_OK);
	drain(d->f);
	assert_int_equal(c.finished, s == STATUS_OK);
	if (x->lost)
		return;
	assert_int_equal(scheduler_session_new(d->f->scheduler, d->f->model, "fresh", &o, &fresh, NULL), STATUS_OK);
	int32_t *all = tokens_of(x);
	append(d->f, fresh, all, x->tokens);
	free(all);
	for (int i = 0; i < VOCAB; i++)
		assert_true(fabs(fresh->logits[i] - x->logits[i]) <= 1e-3 * (1 + fabs(x->logits[i])));
	assert_int_equal(scheduler_session_delete(d->f->scheduler, fresh, NULL), STATUS_OK);
}

/* After the fault, a request gets its golden answer. */
static void the_day_after(day *d, const day *golden)
{
	client c;
	int32_t ids[40];
	random_tokens(ids, 40, 1);
	d->fault->left = -1;
	generation_request r = request(&c, ids, prompt_lengths[1], max_tokens[1]);
	run(d->f, NULL, &c, &r);
	assert_int_equal(c.result.status, STATUS_OK);
	assert_memory_equal(c.tokens, golden->clients[1].tokens, (size_t)max_tokens[1] * sizeof(int32_t));
	const string_table *all = &d->f->scheduler->sessions;
	for (string_node *n = NULL; (n = string_table_next(all, n));)
		check_session(d, STRING_TABLE_OWNER(n, session, node));
}

static void judge(const day *d, const day *golden, fault_kind kind)
{
	int ended_badly = 0;
	for (int i = 0; i < CLIENTS; i++) {
		const client *c = &d->clients[i], *g = &golden->clients[i];
		assert_int_equal(c->finished, d->accepted[i]);
		if (!d->accepted[i])
			continue;
		assert_true(c->n_tokens <= g->n_tokens);
		assert_memory_equal(c->tokens, g->tokens, (size_t)c->n_tokens * sizeof(int32_t));
		if (c->result.status == STATUS_OK) {
			assert_int_equal(c->n_tokens, g->n_tokens);
			assert_int_equal(c->n_alpha, g->n_alpha);
		} else {
			assert_int_equal(c->result.status, kind >= FAULT_ALLOCATE ? STATUS_NOMEM : STATUS_DEVICE);
			assert_true(c->result.error.message[0] != '\0');
			ended_badly++;
		}
	}
	if (kind == FAULT_ALLOCATE && !d->fault->lasting) /* one short allocation costs at most one request */
		assert_true(ended_badly + d->refused <= 1);
	if (kind < FAULT_ALLOCATE && ended_badly > 0)
		assert_int_equal(d->device, !d->fault->refuses);
	assert_int_equal(d->f->model->users, d->f->scheduler->sessions.count);
}

/* Run the scenario with call number n of a kind failing; true if that call was made. */
static bool run_day_with_fault(day *d, fault_kind kind, int64_t n, bool lasting)
{
	if (kind != FAULT_MALLOC) {
		fault_arm(d->fault, kind, n, lasting);
		run_day(d);
		return d->fault->struck;
	}
	int64_t before = allocations_count();
	allocations_limit(n);
	run_day(d);
	allocations_limit(-1);
	return allocations_count() - before > n;
}

static void fail_each_call_as(fault_kind kind, bool refuses, bool lasting, int64_t stride)
{
	fixture f;
	fixture_folder(&f);
	fault_backend *fault = fault_backend_new(f.backend);
	fault->refuses = refuses;
	f.backend = &fault->base;
	static day golden, d;
	rise(&golden, &f, fault);
	run_day(&golden);
	assert_int_equal(golden.refused, 0);
	scheduler_free(f.scheduler);
	int64_t n = 0;
	/* Each of the first sixty calls (a step has about as many kernels), then every `stride`-th. */
	for (bool struck = true; struck; n += n < 60 ? 1 : stride) {
		rise(&d, &f, fault);
		struck = run_day_with_fault(&d, kind, n, lasting);
		judge(&d, &golden, kind);
		the_day_after(&d, &golden);
		scheduler_free(f.scheduler);
		assert_int_equal(fault->memory, 0);
	}
	assert_true(n > 10);
	f.scheduler = NULL;
	fixture_close(&f);
}

static void fail_each_call(fault_kind kind, bool lasting, int64_t stride)
{
	fail_each_call_as(kind, false, lasting, stride);
}

static void any_kernel_may_fail_once(void **state)
{
	(void)state;
	fail_each_call(FAULT_KERNEL, false, 11);
}

static void any_transfer_may_fail_once(void **state)
{
	(void)state;
	fail_each_call(FAULT_TRANSFER, false, 11);
}

static void any_kernel_may_be_refused(void **state)
{
	(void)state;
	fail_each_call_as(FAULT_KERNEL, true, false, 11);
}

static void any_transfer_may_be_refused(void **state)
{
	(void)state;
	fail_each_call_as(FAULT_TRANSFER, true, false, 11);
}

static void all_kernels_may_be_refused_from_any_one_on(void **state)
{
	(void)state;
	fail_each_call_as(FAULT_KERNEL, true, true, 37);
}

static void any_allocation_may_fail_once(void **state)
{
	(void)state;
	fail_each_call(FAULT_ALLOCATE, false, 11);
}

static void the_device_may_be_lost_permanently_at_any_kernel(void **state)
{
	(void)state;
	fail_each_call(FAULT_KERNEL, true, 11);
}

static void memory_may_run_out_permanently_at_any_allocation(void **state)
{
	(void)state;
	fail_each_call(FAULT_ALLOCATE, true, 11);
}

static void the_host_may_run_out_of_memory_at_any_allocation(void **state)
{
	(void)state;
	fail_each_call(FAULT_MALLOC, true, 37);
}

/* Plans for one row exist, and one for four cannot be made: rows are then computed one at a time. */
static void without_memory_for_a_batch_its_rows_run_one_at_a_time(void **state)
{
	(void)state;
	fixture f;
	client c[CLIENTS], alone;
	int32_t token = 60;
	fixture_folder(&f);
	fault_backend *fault = fault_backend_new(f.backend);
	f.backend = &fault->base;
	fixture_serve(&f, &limits);
	generation_request r = request(&alone, &token, 1, LONGEST);
	run(&f, NULL, &alone, &r);
	fault->full = true;
	for (int i = 0; i < CLIENTS; i++) {
		r = request(&c[i], &token, 1, LONGEST);
		start(&f, NULL, &c[i], &r);
	}
	drain(&f);
	for (int i = 0; i < CLIENTS; i++) {
		assert_int_equal(c[i].result.status, STATUS_OK);
		assert_memory_equal(c[i].tokens, alone.tokens, LONGEST * sizeof(int32_t));
	}
	/* A fifth session needs a larger pool. */
	session_options o = {.policy = POSITION_ERROR};
	session *x[5];
	char id[16];
	for (int i = 0; i < 5; i++) {
		snprintf(id, sizeof id, "x%d", i);
		assert_int_equal(scheduler_session_new(f.scheduler, f.model, id, &o, &x[i], NULL),
		                 i < 4 ? STATUS_OK : STATUS_NOMEM);
	}
	assert_null(x[4]);
	fixture_close(&f);
}

/* A session whose generation ended between the delivery of a token and its reading, and the tokens that it should
 * have. */
enum { PENDING_PROMPT = 17 }; /* too long for the plan that reads one token */
typedef struct pending_session {
	fixture f;
	fault_backend *fault;
	session *x;
	client all, first;
	int32_t prompt[PENDING_PROMPT];
} pending_session;

static void pending_open(pending_session *o)
{
	memset(o, 0, sizeof *o);
	fixture_folder(&o->f);
	o->fault = fault_backend_new(o->f.backend);
	o->f.backend = &o->fault->base;
	fixture_serve(&o->f, &limits);
	random_tokens(o->prompt, PENDING_PROMPT, 3);
	generation_request r = request(&o->all, o->prompt, PENDING_PROMPT, LONGEST);
	r.sampling.temperature = 1;
	run(&o->f, NULL, &o->all, &r);
	o->x = open_session(&o->f, "x", POSITION_ERROR, true); /* with scores, so its plans are not those of o->all */
	r.context = memset(&o->first, 0, sizeof o->first);
	start(&o->f, o->x, &o->first, &r);
}

/* Continue the session and check that its tokens follow the delivered ones. */
static void assert_continues(pending_session *o, session *x)
{
	client rest;
	int delivered = o->first.n_tokens;
	assert_true(delivered > 0 && delivered < LONGEST);
	assert_memory_equal(o->first.tokens, o->all.tokens, (size_t)delivered * sizeof(int32_t));
	generation_request r = request(&rest, NULL, 0, LONGEST - delivered);
	r.sampling.temperature = 1;
	run(&o->f, x, &rest, &r);
	assert_int_equal(rest.result.status, STATUS_OK);
	assert_memory_equal(rest.tokens, o->all.tokens + delivered, (size_t)(LONGEST - delivered) * sizeof(int32_t));
	assert_int_equal(x->tokens, PENDING_PROMPT + LONGEST);
	assert_equals_new_session(&o->f, x);
}

static void delivered_tokens_are_read_once_memory_is_available(void **state)
{
	(void)state;
	pending_session o;
	session *fork, *import;
	void *blob = NULL;
	size_t bytes;
	error err = ERROR_INIT;
	pending_open(&o);
	while (o.first.n_tokens == 0)
		assert_int_equal(scheduler_tick(o.f.scheduler), STATUS_OK);
	o.fault->full = true; /* no plan for a decode step with scores */
	drain(&o.f);
	assert_int_equal(o.first.result.status, STATUS_NOMEM);
	assert_int_equal(o.first.n_tokens, 1);
	assert_int_equal(o.x->tokens, PENDING_PROMPT);
	assert_int_equal(scheduler_session_export(o.f.scheduler, o.x, &blob, &bytes, &err), STATUS_NOMEM);
	assert_true(err.message[0] != '\0');
	assert_int_equal(scheduler_session_fork(o.f.scheduler, o.x, "fork", &fork, NULL), STATUS_NOMEM);
	o.fault->full = false;
	assert_int_equal(scheduler_session_export(o.f.scheduler, o.x, &blob, &bytes, NULL), STATUS_OK);
	assert_int_equal(o.x->tokens, PENDING_PROMPT + 1);
	assert_int_equal(scheduler_session_fork(o.f.scheduler, o.x, "fork", &fork, NULL), STATUS_OK);
	assert_int_equal(scheduler_session_import(o.f.scheduler, o.f.model, "import", blob, bytes, &import, NULL),
	                 STATUS_OK);
	free(blob);
	assert_continues(&o, o.x);
	assert_continues(&o, fork);
	assert_continues(&o, import);
	fixture_close(&o.f);
}

static void delivered_tokens_are_read_after_the_device_failed_others(void **state)
{
	(void)state;
	pending_session o;
	client other;
	pending_open(&o);
	while (o.first.n_tokens < 3)
		assert_int_equal(scheduler_tick(o.f.scheduler), STATUS_OK);
	generation_request r = request(&other, o.prompt, 3, 5);
	start(&o.f, NULL, &other, &r);
	o.first.generation->credit = 0; /* so that its own step is not the failing one */
	fault_arm(o.fault, FAULT_KERNEL, 0, false);
	assert_int_equal(scheduler_tick(o.f.scheduler), STATUS_DEVICE);
	assert_int_equal(other.result.status, STATUS_DEVICE);
	assert_int_equal(o.first.result.status, STATUS_DEVICE);
	assert_int_equal(o.first.n_tokens, 3);
	assert_continues(&o, o.x);
	fixture_close(&o.f);
}

static void only_tokens_are_copied_to_the_host_until_a_session_stops(void **state)
{
	(void)state;
	pending_session o;
	client c;
	pending_open(&o);
	drain(&o.f);
	size_t row = VOCAB * sizeof(float);
	generation_request r = request(&c, o.prompt, PENDING_PROMPT, LONGEST);
	o.fault->downloaded = 0;
	run(&o.f, NULL, &c, &r);
	assert_int_equal(o.fault->downloaded, LONGEST * sizeof(int32_t));
	session *x = open_session(&o.f, "y", POSITION_ERROR, false);
	r.context = memset(&c, 0, sizeof c);
	o.fault->downloaded = 0;
	run(&o.f, x, &c, &r);
	assert_int_equal(o.fault->downloaded, LONGEST * sizeof(int32_t) + row);
	r.context = memset(&c, 0, sizeof c);
	r.n_logprobs = 2;
	o.fault->downloaded = 0;
	run(&o.f, NULL, &c, &r);
	assert_int_equal(o.fault->downloaded, LONGEST * (sizeof(int32_t) + row));
	fixture_close(&o.f);
}

static void loading_may_fail_at_any_call(void **state)
{
	(void)state;
	fixture f;
	fixture_folder(&f);
	fault_backend *fault = fault_backend_new(f.backend);
	f.backend = &fault->base;
	for (fault_kind kind = FAULT_TRANSFER; kind <= FAULT_ALLOCATE; kind++) {
		bool struck = true;
		for (int64_t n = 0; struck; n++) {
			error err = ERROR_INIT;
			assert_int_equal(scheduler_new(&f.scheduler, f.backend, &limits), STATUS_OK);
			fault_arm(fault, kind, n, false);
			status s = scheduler_model(f.scheduler, "m", f.folder, DTYPE_PANEL_F32, &f.model, &err);
			struck = fault->struck;
			assert_int_equal(s == STATUS_OK, !struck);
			assert_int_equal(scheduler_model_loaded(f.scheduler, "m"), !struck);
			scheduler_free(f.scheduler);
			assert_int_equal(fault->memory, 0);
		}
	}
	f.scheduler = NULL;
	fixture_close(&f);
}

static void a_model_without_memory_takes_that_of_an_idle_one(void **state)
{
	(void)state;
	fixture f;
	int unloaded = 0;
	served_model *b;
	error err = ERROR_INIT;
	fixture_folder(&f);
	fault_backend *fault = fault_backend_new(f.backend);
	f.backend = &fault->base;
	bool struck = true;
	for (int64_t n = 0; struck; n++) {
		fixture_serve(&f, &roomy);
		fault_arm(fault, FAULT_ALLOCATE, n, false);
		assert_int_equal(scheduler_model(f.scheduler, "b", f.folder, DTYPE_PANEL_F32, &b, &err), STATUS_OK);
		assert_int_equal(err.status, STATUS_OK);
		struck = fault->struck;
		unloaded += !scheduler_model_loaded(f.scheduler, "m");
		scheduler_free(f.scheduler);
	}
	assert_true(unloaded > 0);
	fault_arm(fault, FAULT_ALLOCATE, INT32_MAX, false);
	fixture_serve(&f, &roomy);
	session *x;
	const session_options o = {.policy = POSITION_ERROR};
	assert_int_equal(scheduler_session_new(f.scheduler, f.model, "x", &o, &x, &err), STATUS_OK);
	fault_arm(fault, FAULT_ALLOCATE, 0, false);
	assert_int_equal(scheduler_model(f.scheduler, "b", f.folder, DTYPE_PANEL_F32, &b, &err), STATUS_NOMEM);
	assert_true(scheduler_model_loaded(f.scheduler, "m"));
	fixture_close(&f);
}

static void arm_refusal(void *context, int call)
{
	fault_arm(context, FAULT_KERNEL, call, false);
}

static void a_refused_call_ends_only_its_step(void **state)
{
	enum { CALLS = 120 }; /* more than a step of a prompt and a decode step have */
	fixture f;
	refusal_day golden, d;
	refusal_count all = {0};
	(void)state;
	fixture_folder(&f);
	fault_backend *fault = fault_backend_new(f.backend);
	f.backend = &fault->base;
	fault->refuses = true;
	refusal_run(&golden, &f, NULL, NULL, 0);
	for (int call = 0; call < CALLS; call++) {
		refusal_run(&d, &f, arm_refusal, fault, call);
		assert_true(fault->struck);
		refusal_judge(&d, &golden, &all);
		refusal_end(&d);
	}
	refusal_end(&golden);
	assert_true(all.decode > 0 && all.prompt > 0);
	assert_true(all.kept > 0 && all.lost > 0);
	f.scheduler = NULL;
	fixture_close(&f);
}

/* A step of two parts runs; then the upload of the next step's second part is refused. */
static void a_step_that_does_not_begin_has_changed_nothing(void **state)
{
	(void)state;
	enum { ROWS = 4 };
	fixture f;
	served_plan *p;
	session *x[ROWS];
	served_row rows[ROWS];
	const int32_t token = 1;
	char id[8];
	fixture_folder(&f);
	fault_backend *fault = fault_backend_new(f.backend);
	f.backend = &fault->base;
	fault->refuses = true;
	fixture_serve(&f, &roomy);
	for (int i = 0; i < ROWS; i++) {
		snprintf(id, sizeof id, "%d", i);
		x[i] = open_session(&f, id, POSITION_CLAMP, false);
		assert_int_equal(session_reserve(x[i], 1, NULL), STATUS_OK);
		rows[i] = session_row(x[i], &token, 1);
	}
	assert_int_equal(served_model_plan(f.model, ROWS, 0, false, false, 0, &p, NULL), STATUS_OK);
	assert_int_equal(served_model_step(f.model, p, rows, ROWS, NULL), STATUS_OK);
	assert_true(served_plan_has_changed(p));
	fault_arm(fault, FAULT_TRANSFER, fault_parts, false);
	assert_int_equal(served_model_step(f.model, p, rows, ROWS, NULL), STATUS_DEVICE);
	assert_false(served_plan_has_changed(p));
	fixture_close(&f);
}

static void cancel_other(client *c)
{
	client *other = c + 1;
	if (other->generation)
		generation_cancel(other->generation);
}

/* The second of four generations is in the step in flight and not in the next one. The next one is refused after it has
 * overwritten the logits, and the first generation cancels the second when it ends. */
static void a_refused_step_leaves_no_logits_of_others_in_a_session(void **state)
{
	(void)state;
	enum { CALLS = 70 };
	fixture f;
	int lost = 0;
	if (!fault_fetches)
		skip();
	fixture_folder(&f);
	fault_backend *fault = fault_backend_new(f.backend);
	f.backend = &fault->base;
	fault->refuses = true;
	for (int call = 0; call < CALLS; call++) {
		client c[CLIENTS];
		session *x[CLIENTS];
		char id[8];
		fixture_serve(&f, &limits);
		for (int i = 0; i < CLIENTS; i++) {
			int32_t ids[9];
			random_tokens(ids, 9, (uint64_t)i);
			generation_request r = request(&c[i], ids, 3 + i, LONGEST);
			snprintf(id, sizeof id, "%d", i);
			x[i] = open_session(&f, id, POSITION_CLAMP, false);
			start(&f, x[i], &c[i], &r);
		}
		c[0].on_finished = cancel_other;
		while (c[0].n_tokens < 3 || c[3].n_tokens < 3)
			assert_int_equal(scheduler_tick(f.scheduler), STATUS_OK);
		c[1].generation->credit = 1;
		fault_arm(fault, FAULT_KERNEL, call, false);
		drain(&f);
		fault->left = -1;
		for (int i = 0; i < CLIENTS; i++) {
			assert_int_equal(c[i].finished, 1);
			lost += x[i]->lost;
			if (!x[i]->lost && session_ready(x[i], NULL) == STATUS_OK)
				assert_equals_new_session(&f, x[i]);
		}
		scheduler_free(f.scheduler);
	}
	assert_true(lost > 0);
	f.scheduler = NULL;
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(any_kernel_may_fail_once),
	    cmocka_unit_test(any_transfer_may_fail_once),
	    cmocka_unit_test(any_kernel_may_be_refused),
	    cmocka_unit_test(any_transfer_may_be_refused),
	    cmocka_unit_test(all_kernels_may_be_refused_from_any_one_on),
	    cmocka_unit_test(a_refused_call_ends_only_its_step),
	    cmocka_unit_test(a_step_that_does_not_begin_has_changed_nothing),
	    cmocka_unit_test(a_refused_step_leaves_no_logits_of_others_in_a_session),
	    cmocka_unit_test(any_allocation_may_fail_once),
	    cmocka_unit_test(the_device_may_be_lost_permanently_at_any_kernel),
	    cmocka_unit_test(memory_may_run_out_permanently_at_any_allocation),
	    cmocka_unit_test(the_host_may_run_out_of_memory_at_any_allocation),
	    cmocka_unit_test(without_memory_for_a_batch_its_rows_run_one_at_a_time),
	    cmocka_unit_test(delivered_tokens_are_read_once_memory_is_available),
	    cmocka_unit_test(delivered_tokens_are_read_after_the_device_failed_others),
	    cmocka_unit_test(only_tokens_are_copied_to_the_host_until_a_session_stops),
	    cmocka_unit_test(loading_may_fail_at_any_call),
	    cmocka_unit_test(a_model_without_memory_takes_that_of_an_idle_one),
	};
	return RUN_ALL_WAYS(tests);
}
