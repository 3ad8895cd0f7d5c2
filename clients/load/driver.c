#include "clients/load/driver.h"

#include <curl/curl.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

enum { READY = 256, NS_OF_MS = 1000000, REASON_BYTES = 1 << 16, SILENCE_SECONDS = 120 };

typedef struct call {
	struct call *next, *previous; /* in the list of those in flight, or `next` of the spare ones */
	driver *driver;
	CURL *curl;
	struct curl_slist *headers;
	void *context;
	driver_request request;
	driver_times times;
	uint64_t latest, resume; /* last read with text; when a paused reader reads again, 0: it is not paused */
	bool may_read, leaves;
	text refusal; /* body of an answer with an error status */
	answer answer;
} call;

struct driver {
	const http *http;
	driver_listener listener;
	CURLM *multi;
	int epoll;
	uint64_t timeout; /* when libcurl wants to be called; 0: never */
	call in_flight;   /* head of the ring */
	call *spare;
	int n, ended;
};

uint64_t driver_clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* --- libcurl's sockets and timer --------------------------------------------------- */

static int watch(CURL *curl, curl_socket_t fd, int what, void *context, void *known)
{
	driver *d = context;
	struct epoll_event e = {.data.fd = fd};
	(void)curl;
	if (what == CURL_POLL_REMOVE) {
		epoll_ctl(d->epoll, EPOLL_CTL_DEL, fd, &e);
		return 0;
	}
	e.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
	if (epoll_ctl(d->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e) != 0 && errno == EEXIST)
		epoll_ctl(d->epoll, EPOLL_CTL_MOD, fd, &e);
	curl_multi_assign(d->multi, fd, d);
	return 0;
}

static int set_timeout(CURLM *multi, long ms, void *context)
{
	driver *d = context;
	(void)multi;
	d->timeout = ms < 0 ? 0 : driver_clock_ns() + (uint64_t)ms * NS_OF_MS;
	return 0;
}

/* --- an answer --------------------------------------------------------------------- */

static size_t receive(char *bytes, size_t one, size_t n, void *context)
{
	call *c = context;
	driver *d = c->driver;
	long status = 0;
	int texts;
	(void)one;
	curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
	if (status != 200)
		return c->refusal.used > REASON_BYTES || text_append(&c->refusal, bytes, n) ? n : 0;
	if (!c->request.streams)
		return text_append(&c->answer.text, bytes, n) ? n : 0;
	if (c->request.slow && !c->may_read) {
		c->resume = driver_clock_ns() + (uint64_t)DRIVER_SLOW_MS * NS_OF_MS;
		return CURL_WRITEFUNC_PAUSE;
	}
	c->may_read = false;
	if (!answer_feed(&c->answer, bytes, n, &texts))
		return 0;
	if (texts > 0) {
		const uint64_t now = driver_clock_ns();
		if (c->latest && !c->request.slow)
			d->listener.gap(d->listener.context, now - c->latest);
		c->times.first = c->latest ? c->times.first : now;
		c->latest = now;
	}
	c->leaves = c->request.leave_after > 0 && c->answer.n_events >= c->request.leave_after && !c->answer.done;
	return c->leaves ? 0 : n;
}

static outcome judge(const call *c, CURLcode code, int status)
{
	if (c->leaves)
		return OUTCOME_LEFT;
	if (status == 409 || status == 429 || status == 503)
		return OUTCOME_REFUSED;
	if (c->answer.failed || (status != 0 && status != 200))
		return OUTCOME_FAILED;
	return code == CURLE_OK && (c->answer.done || !c->request.streams) ? OUTCOME_COMPLETE : OUTCOME_LOST;
}

static void read_refusal(call *c)
{
	json_t *body = json_loadb(text_get(&c->refusal), c->refusal.used, JSON_ALLOW_NUL, NULL);
	const char *message = json_string_value(json_object_get(json_object_get(body, "error"), "message"));
	snprintf(c->answer.reason, sizeof c->answer.reason, "%s", message ? message : text_get(&c->refusal));
	json_decref(body);
}

/* Take the call out of the list and report it; its memory is used again. */
static void end(call *c, outcome how, int status)
{
	driver *d = c->driver;
	curl_multi_remove_handle(d->multi, c->curl);
	c->previous->next = c->next;
	c->next->previous = c->previous;
	d->n--;
	d->ended++;
	c->times.ended = driver_clock_ns();
	d->listener.ended(d->listener.context, c->context, how, status, &c->times, &c->answer);
	c->next = d->spare;
	d->spare = c;
}

static void complete(call *c, CURLcode code)
{
	long status = 0;
	curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
	if (c->refusal.used > 0)
		read_refusal(c);
	else if (code != CURLE_OK && !c->leaves)
		snprintf(c->answer.reason, sizeof c->answer.reason, "%s", curl_easy_strerror(code));
	else if (c->request.streams && !c->answer.done && !c->answer.failed)
		snprintf(c->answer.reason, sizeof c->answer.reason, "the stream ended without [DONE]");
	end(c, judge(c, code, (int)status), (int)status);
}

static void take_messages(driver *d)
{
	int left;
	for (CURLMsg *m; (m = curl_multi_info_read(d->multi, &left));) {
		call *c;
		if (m->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
		complete(c, m->data.result);
	}
}

/* Let paused readers read that have waited long enough; returns when the next one has. */
static uint64_t resume(driver *d, uint64_t until)
{
	const uint64_t now = driver_clock_ns();
	for (call *c = d->in_flight.next, *next; c != &d->in_flight; c = next) {
		next = c->next;
		if (c->resume && c->resume <= now) {
			c->resume = 0;
			c->may_read = true;
			curl_easy_pause(c->curl, CURLPAUSE_CONT);
		}
		if (c->resume && c->resume < until)
			until = c->resume;
	}
	return until;
}

/* --- running ----------------------------------------------------------------------- */

static int wait_ms(const driver *d, uint64_t until)
{
	const uint64_t now = driver_clock_ns();
	until = d->timeout && d->timeout < until ? d->timeout : until;
	if (until <= now)
		return 0;
	const uint64_t ms = (until - now + NS_OF_MS - 1) / NS_OF_MS;
	return ms < INT_MAX ? (int)ms : INT_MAX;
}

void driver_run(driver *d, uint64_t until)
{
	struct epoll_event ready[READY];
	int running;
	d->ended = 0;
	do {
		const int n = epoll_wait(d->epoll, ready, READY, wait_ms(d, resume(d, until)));
		if (n < 0)
			return; /* a signal */
		for (int i = 0; i < n; i++)
			curl_multi_socket_action(d->multi, ready[i].data.fd,
			                         (ready[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
			                             (ready[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
			                             (ready[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0),
			                         &running);
		if (d->timeout && d->timeout <= driver_clock_ns()) {
			d->timeout = 0;
			curl_multi_socket_action(d->multi, CURL_SOCKET_TIMEOUT, 0, &running);
		}
		take_messages(d);
	} while (d->ended == 0 && driver_clock_ns() < until);
}

static call *new_call(driver *d)
{
	call *c = d->spare;
	if (c) {
		d->spare = c->next;
		return c;
	}
	c = calloc(1, sizeof *c);
	if (c && !(c->curl = curl_easy_init())) {
		free(c);
		return NULL;
	}
	return c;
}

static void free_call(call *c)
{
	curl_easy_cleanup(c->curl);
	curl_slist_free_all(c->headers);
	text_free(&c->refusal);
	answer_free(&c->answer);
	free(c);
}

bool driver_begin(driver *d, const driver_request *request, void *context)
{
	call *c = new_call(d);
	if (!c)
		return false;
	c->driver = d;
	c->context = context;
	c->request = *request;
	c->times = (driver_times){.sent = driver_clock_ns()};
	c->latest = c->resume = 0;
	c->may_read = c->leaves = false;
	text_clear(&c->refusal);
	answer_begin(&c->answer);
	http_prepare(d->http, c->curl, request->method, request->path);
	curl_easy_setopt(c->curl, CURLOPT_PRIVATE, c);
	curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, receive);
	curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
	if (request->body)
		curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, request->body);
	if (request->slow) {
		curl_easy_setopt(c->curl, CURLOPT_BUFFERSIZE, (long)DRIVER_SLOW_BYTES);
	} else {
		curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
		curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_TIME, (long)SILENCE_SECONDS);
	}
	if (request->key) {
		curl_easy_setopt(c->curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
		curl_easy_setopt(c->curl, CURLOPT_XOAUTH2_BEARER, request->key);
	}
	if (!c->headers)
		c->headers = curl_slist_append(curl_slist_append(NULL, "Content-Type: application/json"), "Expect:");
	curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->headers);
	if (!c->headers || curl_multi_add_handle(d->multi, c->curl) != CURLM_OK) {
		c->next = d->spare;
		d->spare = c;
		return false;
	}
	c->next = &d->in_flight;
	c->previous = d->in_flight.previous;
	c->previous->next = d->in_flight.previous = c;
	d->n++;
	return true;
}

int driver_in_flight(const driver *d)
{
	return d->n;
}

void driver_stop(driver *d)
{
	while (d->in_flight.next != &d->in_flight)
		end(d->in_flight.next, OUTCOME_LEFT, 0);
}

driver *driver_new(const http *h, const driver_listener *listener)
{
	driver *d = calloc(1, sizeof *d);
	if (!d)
		return NULL;
	d->http = h;
	d->listener = *listener;
	d->in_flight.next = d->in_flight.previous = &d->in_flight;
	d->multi = curl_multi_init();
	d->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!d->multi || d->epoll < 0) {
		driver_free(d);
		return NULL;
	}
	curl_multi_setopt(d->multi, CURLMOPT_SOCKETFUNCTION, watch);
	curl_multi_setopt(d->multi, CURLMOPT_SOCKETDATA, d);
	curl_multi_setopt(d->multi, CURLMOPT_TIMERFUNCTION, set_timeout);
	curl_multi_setopt(d->multi, CURLMOPT_TIMERDATA, d);
	return d;
}

void driver_free(driver *d)
{
	if (!d)
		return;
	driver_stop(d);
	for (call *c = d->spare, *next; c; c = next) {
		next = c->next;
		free_call(c);
	}
	curl_multi_cleanup(d->multi);
	if (d->epoll >= 0)
		close(d->epoll);
	free(d);
}
