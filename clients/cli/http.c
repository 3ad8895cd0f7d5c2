/* http.c - every request goes through `perform`: the multi interface with one handle, because its poll
 * can also wait for a signal's descriptor, which the blocking interface cannot.
 *
 * An answer is taken by one of three receivers: memory, a file, or the event parser. An error status always
 * goes to memory, where its JSON is read. */
#include "clients/cli/http.h"

#include <curl/curl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECT_SECONDS = 10, SILENCE_SECONDS = 120, POLL_MS = 1000 };

struct http {
	CURL *curl;
	CURLM *multi;
	char *url, *key;
	const char *issuers; /* file; NULL: the system's */
	bool trusts_any;
	text path;
	int limit_ms;   /* 0: none */
	int descriptor; /* from http_wake_on */
	http_wake wake;
	void *wake_context;
	http_transfer transfer;
	void *transfer_context;
	const char *transfer_name;
	http_problem problem;
	char curl_error[CURL_ERROR_SIZE];

	/* the running request */
	text answer;
	FILE *file;
	sse events;
	http_event each;
	void *context;
	bool streaming, done, stopped, interrupted, failed;
};

/* --- life ---------------------------------------------------------------------------- */

http *http_new(const char *url, const char *key)
{
	http *h = calloc(1, sizeof(*h));
	size_t n = strlen(url);

	while (n > 0 && url[n - 1] == '/')
		n--;
	if (!h || curl_global_init(CURL_GLOBAL_DEFAULT) != 0) {
		free(h);
		return NULL;
	}
	h->descriptor = -1;
	h->url = strndup(url, n);
	h->key = key && *key ? strdup(key) : NULL;
	h->curl = curl_easy_init();
	h->multi = curl_multi_init();
	if (h->url && h->curl && h->multi && (h->key || !key || !*key))
		return h;
	http_free(h);
	return NULL;
}

void http_free(http *h)
{
	if (!h)
		return;
	curl_easy_cleanup(h->curl);
	curl_multi_cleanup(h->multi);
	curl_global_cleanup();
	text_free(&h->path);
	text_free(&h->answer);
	sse_free(&h->events);
	free(h->url);
	free(h->key);
	free(h);
}

const char *http_url(const http *h)
{
	return h->url;
}

void http_trust_issuers(http *h, const char *file)
{
	const char *named = file ? file : getenv("SSL_CERT_FILE");

	h->issuers = named && *named ? named : NULL;
}

void http_trust_any(http *h)
{
	h->trusts_any = true;
}

void http_limit(http *h, int ms)
{
	h->limit_ms = ms;
}

void http_wake_on(http *h, int descriptor, http_wake wake, void *context)
{
	h->descriptor = descriptor;
	h->wake = wake;
	h->wake_context = context;
}

void http_on_transfer(http *h, http_transfer take, void *context)
{
	h->transfer = take;
	h->transfer_context = context;
}

const http_problem *http_get_problem(const http *h)
{
	return &h->problem;
}

const char *http_path(http *h, const char *format, ...)
{
	va_list arguments;
	const char *hole;

	text_clear(&h->path);
	va_start(arguments, format);
	for (; (hole = strstr(format, "%s")); format = hole + 2) {
		const char *value = va_arg(arguments, const char *);
		char *escaped = curl_easy_escape(h->curl, value, 0);

		text_append(&h->path, format, (size_t)(hole - format));
		text_string(&h->path, escaped ? escaped : "");
		curl_free(escaped);
	}
	va_end(arguments);
	text_string(&h->path, format);
	return text_get(&h->path);
}

/* --- problems -------------------------------------------------------------------------- */

static void copy(char *out, size_t size, const json_t *string)
{
	snprintf(out, size, "%s", json_is_string(string) ? json_string_value(string) : "");
}

/* {"error": {…}}; false when it is not that. */
static bool read_problem(http *h, const json_t *json, int status)
{
	const json_t *e = json_object_get(json, "error");

	if (!json_is_object(e))
		return false;
	h->problem.status = status;
	copy(h->problem.code, sizeof(h->problem.code), json_object_get(e, "code"));
	copy(h->problem.param, sizeof(h->problem.param), json_object_get(e, "param"));
	copy(h->problem.message, sizeof(h->problem.message), json_object_get(e, "message"));
	return true;
}

static void read_refusal(http *h, int status)
{
	json_t *json = json_loadb(text_get(&h->answer), h->answer.used, JSON_ALLOW_NUL, NULL);
	curl_off_t wait = 0;

	curl_easy_getinfo(h->curl, CURLINFO_RETRY_AFTER, &wait);
	h->problem = (http_problem){.status = status, .retry_after = wait < INT_MAX ? (int)wait : INT_MAX};
	if (!read_problem(h, json, status))
		snprintf(h->problem.message, sizeof(h->problem.message),
		         "%s answered with status %d, and not in the words of this service", h->url, status);
	json_decref(json);
}

static void read_failure(http *h, CURLcode code)
{
	http_problem *p = &h->problem;
	const char *reason = h->curl_error[0] ? h->curl_error : curl_easy_strerror(code);

	*p = (http_problem){0};
	if (code == CURLE_COULDNT_CONNECT)
		snprintf(p->message, sizeof(p->message),
		         "nothing answers at %s. Start the service with: additive serve --data DIR\n"
		         "(or say where it is with --url or ADDITIVE_URL)",
		         h->url);
	else if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
		snprintf(p->message, sizeof(p->message),
		         "%s: %s\n(--ca FILE or SSL_CERT_FILE names certificates that may sign the service's)", h->url,
		         reason);
	else
		snprintf(p->message, sizeof(p->message), "%s: %s", h->url, reason);
}

/* --- one request ------------------------------------------------------------------------- */

static bool take_event(void *context, const char *id, const char *data, size_t bytes)
{
	http *h = context;

	if (strcmp(data, "[DONE]") == 0) {
		h->done = true;
		return false;
	}
	json_t *json = json_loadb(data, bytes, JSON_ALLOW_NUL, NULL);
	if (!json) {
		snprintf(h->problem.message, sizeof(h->problem.message), "%s sent an event that is not JSON", h->url);
		h->failed = true;
	} else if (read_problem(h, json, 0)) {
		h->failed = true;
	} else {
		h->stopped = !h->each(h->context, id, json, data);
	}
	json_decref(json);
	return !h->failed && !h->stopped;
}

/* poll() skips a descriptor of -1. */
static void wake(http *h)
{
	struct pollfd readable = {.fd = h->descriptor, .events = POLLIN};

	if (!h->interrupted && poll(&readable, 1, 0) > 0)
		h->interrupted = h->wake(h->wake_context);
}

static size_t receive(char *bytes, size_t one, size_t n, void *context)
{
	http *h = context;
	long status = 0;

	(void)one;
	curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
	bool good = status >= 200 && status < 300;
	wake(h); /* also needed here: curl_multi_perform continues for as long as there is more to read */
	if (h->interrupted)
		return 0;
	if (good && h->streaming) {
		sse_result r = sse_feed(&h->events, bytes, n, take_event, h);

		if (r == SSE_TOO_LARGE) {
			snprintf(h->problem.message, sizeof(h->problem.message), "%s sent an event of more than 64 MiB",
			         h->url);
			h->failed = true;
		}
		return r == SSE_OK ? n : 0;
	}
	if (good && h->file)
		return fwrite(bytes, 1, n, h->file) == n ? n : 0;
	return text_append(&h->answer, bytes, n) ? n : 0;
}

/* This machine is never asked through a proxy, whatever the environment says. */
static bool is_loopback(const char *url)
{
	const char *host = strstr(url, "://");

	host = host ? host + 3 : url;
	return strncmp(host, "127.", 4) == 0 || strncmp(host, "localhost", 9) == 0 || strncmp(host, "[::1]", 5) == 0 ||
	       strncmp(host, "0.0.0.0", 7) == 0 || strncmp(host, "[::]", 4) == 0;
}

static int take_transfer(void *context, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
	http *h = context;
	const bool sends = up_total > down_total;

	h->transfer(h->transfer_context, h->transfer_name, sends ? up : down, sends ? up_total : down_total);
	return 0;
}

static void set_transfer(http *h, const char *path)
{
	if (!h->transfer || h->streaming)
		return;
	h->transfer_name = strrchr(path, '/') + 1;
	curl_easy_setopt(h->curl, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(h->curl, CURLOPT_XFERINFOFUNCTION, take_transfer);
	curl_easy_setopt(h->curl, CURLOPT_XFERINFODATA, h);
}

void http_prepare(const http *h, void *curl, const char *method, const char *path)
{
	CURL *c = curl;
	text url = {0};

	curl_easy_reset(c);
	if (text_format(&url, "%s%s", h->url, path)) /* without an address the request fails */
		curl_easy_setopt(c, CURLOPT_URL, text_get(&url));
	text_free(&url);
	curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, method);
	curl_easy_setopt(c, CURLOPT_USERAGENT, "additive/" ADDITIVE_VERSION);
	curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
	curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
#if LIBCURL_VERSION_NUM >= 0x075500
	curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
#else
	curl_easy_setopt(c, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
	if (h->issuers)
		curl_easy_setopt(c, CURLOPT_CAINFO, h->issuers);
	curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, h->trusts_any ? 0L : 1L);
	curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, h->trusts_any ? 0L : 2L);
	curl_easy_setopt(c, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	if (is_loopback(h->url))
		curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
	if (h->key) {
		curl_easy_setopt(c, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
		curl_easy_setopt(c, CURLOPT_XOAUTH2_BEARER, h->key);
	}
}

static void set_receiver(http *h)
{
	CURL *c = h->curl;

	curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->curl_error);
	curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)h->limit_ms);
	curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, receive);
	curl_easy_setopt(c, CURLOPT_WRITEDATA, h);
	if (h->streaming) {
		curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
		curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)SILENCE_SECONDS);
	}
}

static CURLcode drive(http *h)
{
	CURLcode result = CURLE_OK;
	int running = 1, messages;

	if (curl_multi_add_handle(h->multi, h->curl) != CURLM_OK)
		return CURLE_OUT_OF_MEMORY;
	while (running && !h->interrupted) {
		struct curl_waitfd extra = {.fd = h->descriptor, .events = CURL_WAIT_POLLIN};

		if (curl_multi_perform(h->multi, &running) != CURLM_OK)
			break;
		if (running)
			curl_multi_poll(h->multi, &extra, h->descriptor >= 0 ? 1 : 0, POLL_MS, NULL);
		if (running)
			wake(h);
	}
	for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &messages));)
		if (m->msg == CURLMSG_DONE)
			result = m->data.result;
	curl_multi_remove_handle(h->multi, h->curl);
	return result;
}

static bool add_header(struct curl_slist **list, const char *name, const char *value)
{
	text line = {0};
	struct curl_slist *longer = NULL;

	if (text_format(&line, "%s: %s", name, value))
		longer = curl_slist_append(*list, text_get(&line));
	text_free(&line);
	if (longer)
		*list = longer;
	return longer != NULL;
}

typedef struct ask {
	const char *method, *path, *accept, *last_event_id;
	const char *body; /* or NULL */
	size_t body_bytes;
	curl_mime *form; /* or NULL */
	FILE *octets;    /* or NULL */
	curl_off_t octets_bytes;
} ask;

static void set_body(http *h, const ask *s)
{
	if (s->form) {
		curl_easy_setopt(h->curl, CURLOPT_MIMEPOST, s->form);
	} else if (s->octets) {
		curl_easy_setopt(h->curl, CURLOPT_POST, 1L);
		curl_easy_setopt(h->curl, CURLOPT_READDATA, s->octets);
		curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE, s->octets_bytes);
	} else if (s->body || strcmp(s->method, "POST") == 0) {
		curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, s->body ? s->body : "");
		curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)s->body_bytes);
	}
}

static bool set_headers(http *h, const ask *s, struct curl_slist **headers)
{
	bool ok = add_header(headers, "Expect", "");

	if (s->body)
		ok = ok && add_header(headers, "Content-Type", "application/json");
	if (s->octets)
		ok = ok && add_header(headers, "Content-Type", "application/octet-stream");
	if (s->accept)
		ok = ok && add_header(headers, "Accept", s->accept);
	if (s->last_event_id && *s->last_event_id)
		ok = ok && add_header(headers, "Last-Event-ID", s->last_event_id);
	curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, *headers);
	return ok;
}

/* False: h->problem, or one of the flags, says why. The form is freed. */
static bool perform(http *h, const ask *s)
{
	struct curl_slist *headers = NULL;
	CURLcode code = CURLE_OUT_OF_MEMORY;
	long status = 0;

	text_clear(&h->answer);
	h->curl_error[0] = '\0';
	h->problem = (http_problem){0};
	h->done = h->stopped = h->interrupted = h->failed = false;
	http_prepare(h, h->curl, s->method, s->path);
	set_receiver(h);
	set_transfer(h, s->path);
	set_body(h, s);
	if (set_headers(h, s, &headers))
		code = drive(h);
	curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
	if (h->transfer && !h->streaming)
		h->transfer(h->transfer_context, "", -1, 0);
	curl_slist_free_all(headers);
	curl_mime_free(s->form);
	if (h->done || h->stopped || h->interrupted || h->failed)
		return false;
	if (code != CURLE_OK)
		read_failure(h, code);
	else if (status < 200 || status >= 300)
		read_refusal(h, (int)status);
	return code == CURLE_OK && status >= 200 && status < 300;
}

/* --- the kinds of requests -------------------------------------------------------------------- */

/* As perform, with a JSON body, which is stolen. */
static bool perform_json(http *h, ask *s, json_t *body)
{
	char *dump = body ? json_dumps(body, JSON_COMPACT) : NULL;

	json_decref(body);
	s->body = dump;
	s->body_bytes = dump ? strlen(dump) : 0;
	bool ok = perform(h, s);
	free(dump);
	return ok;
}

static json_t *parse_answer(http *h)
{
	json_t *json = json_loadb(text_get(&h->answer), h->answer.used, JSON_ALLOW_NUL, NULL);

	if (!json)
		snprintf(h->problem.message, sizeof(h->problem.message), "%s answered with something that is not JSON",
		         h->url);
	return json;
}

json_t *http_json(http *h, const char *method, const char *path, json_t *body)
{
	ask s = {.method = method, .path = path};

	return perform_json(h, &s, body) ? parse_answer(h) : NULL;
}

bool http_text(http *h, const char *method, const char *path, json_t *body, const char *accept, text *answer)
{
	ask s = {.method = method, .path = path, .accept = accept};

	return perform_json(h, &s, body) && text_append(answer, text_get(&h->answer), h->answer.used);
}

bool http_download(http *h, const char *method, const char *path, json_t *body, const char *accept, FILE *file)
{
	ask s = {.method = method, .path = path, .accept = accept};

	h->file = file;
	bool ok = perform_json(h, &s, body);
	h->file = NULL;
	return ok;
}

json_t *http_form(http *h, const char *path, const http_part *parts)
{
	ask s = {.method = "POST", .path = path, .form = curl_mime_init(h->curl)};

	for (; s.form && parts->name; parts++) {
		curl_mimepart *p = curl_mime_addpart(s.form);

		if (!p || curl_mime_name(p, parts->name) != CURLE_OK ||
		    (parts->value && curl_mime_data(p, parts->value, CURL_ZERO_TERMINATED) != CURLE_OK) ||
		    (parts->file && curl_mime_filedata(p, parts->file) != CURLE_OK) ||
		    (parts->filename && curl_mime_filename(p, parts->filename) != CURLE_OK)) {
			snprintf(h->problem.message, sizeof(h->problem.message), "cannot read %s",
			         parts->file ? parts->file : parts->name);
			curl_mime_free(s.form);
			return NULL;
		}
	}
	return perform(h, &s) ? parse_answer(h) : NULL;
}

json_t *http_octets(http *h, const char *path, const char *file)
{
	ask s = {.method = "POST", .path = path, .octets = fopen(file, "rb")};

	if (!s.octets || fseeko(s.octets, 0, SEEK_END) != 0 || (s.octets_bytes = ftello(s.octets)) < 0) {
		snprintf(h->problem.message, sizeof(h->problem.message), "cannot read %s", file);
		if (s.octets)
			fclose(s.octets);
		return NULL;
	}
	rewind(s.octets);
	bool ok = perform(h, &s);
	fclose(s.octets);
	return ok ? parse_answer(h) : NULL;
}

/* The engine is unavailable, or the front end is stopping: a later try may succeed. */
static bool passes(const http_problem *p)
{
	return p->status == 503 || strcmp(p->code, "engine_unavailable") == 0 || strcmp(p->code, "shutting_down") == 0;
}

http_end http_stream(http *h, const char *method, const char *path, json_t *body, const char *last_event_id,
                     http_event each, void *context)
{
	ask s = {.method = method, .path = path, .accept = "text/event-stream", .last_event_id = last_event_id};

	h->streaming = true;
	h->each = each;
	h->context = context;
	bool whole = perform_json(h, &s, body);
	h->streaming = false;
	sse_free(&h->events);
	h->events = (sse){0};
	if (h->done)
		return HTTP_DONE;
	if (h->stopped)
		return HTTP_STOPPED;
	if (h->interrupted)
		return HTTP_INTERRUPTED;
	if (h->failed)
		return passes(&h->problem) ? HTTP_LOST : HTTP_FAILED;
	if (whole)
		snprintf(h->problem.message, sizeof(h->problem.message), "%s: the stream ended before its end", h->url);
	return whole || h->problem.status == 0 || passes(&h->problem) ? HTTP_LOST : HTTP_FAILED;
}
