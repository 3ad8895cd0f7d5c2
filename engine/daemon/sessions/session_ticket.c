#include "engine/daemon/sessions/session_ticket.h"

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

void session_ticket_fetch(session_ticket *t)
{
	void *blob = NULL;
	error err = ERROR_INIT;
	status s = STATUS_OK;
	t->fetch = false;
	if (!t->import.blob) {
		t->read = true;
		s = store_session_read(t->state, t->id, &blob, &t->import.bytes, &err);
		t->import.blob = blob;
	}
	if (s == STATUS_OK)
		s = scheduler_transfer_check(&t->import, &err);
	if (s != STATUS_OK)
		session_ticket_blame(t, s, &err);
}

/* Import the next step. */
static void import(session_ticket *t, scheduler *s, served_model *m)
{
	session *x;
	error err = ERROR_INIT;
	status result = scheduler_session_import_step(s, m, t->id, &t->import, &x, &err);
	if (result != STATUS_OK)
		session_ticket_blame(t, result, &err);
	if (result != STATUS_OK || t->import.done)
		scheduler_transfer_fini(&t->import);
}

bool session_ticket_prepare(session_ticket *t, model_entry *c, device *d)
{
	served_model *m;
	error ignored = ERROR_INIT; /* session_ticket_redeem returns it again */
	if (t->error.status != STATUS_OK)
		return true;
	if (!catalog_prepare(c, d))
		return false;
	if (catalog_model(c, d, &m, &ignored) != STATUS_OK)
		return true;
	scheduler *s = device_scheduler(d);
	if (!t->import.blob && (!t->state[0] || scheduler_session_find(s, t->id)))
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
}
