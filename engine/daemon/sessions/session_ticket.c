#include "engine/daemon/sessions/session_ticket.h"

#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"

bool session_ticket_has_work(const session_ticket *t)
{
	return t->fetch || t->import.blob;
}

/* Any fault of the stored state is reported as damage. */
static void session_ticket_blame(session_ticket *t, status s, const error *err)
{
	bool stored = t->state[0];
	t->damaged =
	    stored && (s == STATUS_STORAGE || s == STATUS_CORRUPT || s == STATUS_INVALID || s == STATUS_UNSUPPORTED);
	if (!t->damaged) {
		t->error = *err;
		error_settle(&t->error, s);
		return;
	}
	log_line(LOG_ERROR, "the stored state of %s cannot be used: %s", t->id, error_message(err));
	error_set(&t->error, STATUS_STORAGE, NULL, "the stored state of %.64s cannot be used: %s", t->id,
	          error_message(err));
}

/* Read the file of a session that is not durable. It is removed once its state is in memory. */
static void fetch_away(session_ticket *t)
{
	error err = ERROR_INIT;
	session_transfer x = {0};
	status s = store_session_take_back(t->state, (void **)&x.blob, &x.bytes, &err);
	if (s == STATUS_OK)
		s = scheduler_transfer_check(&x, &err);
	if (s != STATUS_OK) {
		scheduler_transfer_fini(&x);
		session_ticket_blame(t, s, &err);
		return;
	}
	t->away->blob = x.blob;
	t->away->on_disk = false;
	store_session_discard(t->state);
}

void session_ticket_fetch(session_ticket *t)
{
	void *blob = NULL;
	error err = ERROR_INIT;
	status s = STATUS_OK;
	t->fetch = false;
	t->read |= !t->import.blob;
	if (t->away && t->away->on_disk) {
		fetch_away(t);
		return;
	}
	if (!t->import.blob) {
		s = store_session_read(t->state, t->id, &blob, &t->import.bytes, &err);
		t->import.blob = blob;
	}
	if (s == STATUS_OK)
		s = scheduler_transfer_check(&t->import, &err);
	if (s != STATUS_OK)
		session_ticket_blame(t, s, &err);
}

/* Record that the session, which had no slot, is x now. */
static void come_back(session_away *away, session *x, uint64_t taken_ns)
{
	scheduler_session_attach(x, away->snapshots);
	*away = (session_away){.returned_ns = clock_ns() - taken_ns};
}

/* Let go of the state of `away`, which still has it. */
static void leave_away(session_ticket *t)
{
	if (t->away && t->import.blob == t->away->blob)
		t->import = (session_transfer){0};
}

/* Import the next step. After a failure `away` still has its state. */
static void import(session_ticket *t, scheduler *s, served_model *m)
{
	session *x;
	error err = ERROR_INIT;
	if (t->opened)
		t->import.adapter = t->opened;
	status result = scheduler_session_import_step(s, m, t->id, &t->import, &x, &err);
	if (result == STATUS_OK && !t->import.done)
		return;
	if (result != STATUS_OK) {
		session_ticket_blame(t, result, &err);
		leave_away(t);
	}
	scheduler_transfer_fini(&t->import);
	if (result != STATUS_OK || !t->away)
		return;
	come_back(t->away, x, t->taken_ns);
	if (!t->options.durable)
		t->state[0] =
		    0; /* the file has been removed; a session that is lost from here on has no stored state */
}

/* Open the session's adapter, which an empty session starts from and a stored state belongs to. */
static status open_adapter(session_ticket *t, const served_model *m, device *d)
{
	if (!t->adapter.id[0] || t->opened)
		return STATUS_OK;
	const status s = error_settle(&t->error, adapters_open(&t->adapter, m, d, &t->opened, &t->error));
	t->options.adapter = t->opened;
	return s;
}

bool session_ticket_prepare(session_ticket *t, model_entry *c, device *d)
{
	served_model *m;
	error ignored = ERROR_INIT; /* session_ticket_redeem returns it again */
	if (t->error.status != STATUS_OK)
		return true;
	if (!catalog_prepare(c, d))
		return false;
	if (catalog_model(c, d, &m, &ignored) != STATUS_OK) {
		leave_away(t); /* the device may have failed after the first steps */
		return true;
	}
	scheduler *s = device_scheduler(d);
	const bool live = scheduler_session_find(s, t->id);
	if ((!live || t->import.blob) && open_adapter(t, m, d) != STATUS_OK) {
		leave_away(t);
		return true;
	}
	if (!live && scheduler_slot_is_coming(s))
		return false;
	if (t->away && t->away->blob && !t->import.blob)
		t->import = (session_transfer){.blob = t->away->blob, .bytes = t->away->bytes, .held = t->away->held};
	if (!t->import.blob && (!t->state[0] || live))
		return true;
	if (!t->import.blob) /* the device has lost the session that the loop believed live */
		session_ticket_fetch(t);
	if (t->error.status == STATUS_OK)
		import(t, s, m);
	return t->error.status != STATUS_OK || !t->import.blob;
}

status session_ticket_redeem(session_ticket *t, model_entry *c, device *d, session **out, error *err)
{
	served_model *m;
	*out = NULL;
	if (t->error.status != STATUS_OK) {
		*err = t->error;
		return err->status;
	}
	TRY(catalog_model(c, d, &m, err));
	scheduler *s = device_scheduler(d);
	*out = scheduler_session_find(s, t->id);
	if (*out)
		return STATUS_OK;
	if (t->create)
		return scheduler_session_new(s, m, t->id, &t->options, out, err);
	if (t->options.durable) {
		t->read = t->damaged = true;
		log_line(LOG_ERROR, "the stored state of %s is missing", t->id);
		return error_set(err, STATUS_STORAGE, NULL, "the stored state of %.64s is missing", t->id);
	}
	return error_set(err, STATUS_NOT_FOUND, "id", "the session was lost when the compute device failed");
}

void session_ticket_look(session_change *out, device *d, const char *id)
{
	scheduler *s = device_scheduler(d);
	session *x = s ? scheduler_session_find(s, id) : NULL;
	*out = (session_change){.live = x != NULL};
	if (x)
		scheduler_session_info(x, &out->info);
}

void session_ticket_fini(session_ticket *t)
{
	scheduler_transfer_fini(&t->import);
	served_adapter_free(t->opened);
	t->opened = NULL;
}
