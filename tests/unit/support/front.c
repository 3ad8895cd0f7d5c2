#include "tests/unit/support/folder.h"
#include "tests/unit/support/front.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/frame.h"
#include "proto/json_memory.h"
#include "server/http.h"
#include "server/server.h"

struct front {
	server server;
	uv_loop_t loop;
	uv_timer_t wait;
	http *http;
	struct sockaddr_in address;
	char folder[64], path[96];
	pid_t engine;
	bool drained;
};

/* --- the engine: a process that reads frames and answers ------------------------------------ */

enum { ENGINE_CREDIT = 64, ENGINE_STREAMS = 1024 };

/* Streams with an unfinished upload, or that wait for more credit; indexed by the low bits of the stream id. */
typedef struct engine {
	int fd;
	bool uploading[ENGINE_STREAMS];
} engine;

static bool engine_io(int fd, void *data, size_t bytes, bool write_it)
{
	for (char *at = data; bytes > 0;) {
		ssize_t n = write_it ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
		if (n <= 0)
			return false;
		at += n;
		bytes -= (size_t)n;
	}
	return true;
}

static void engine_frame(engine *e, frame_type type, uint64_t stream, const char *json, const char *payload)
{
	unsigned char head[FRAME_HEADER_BYTES];
	frame f = {.type = type,
	           .stream = stream,
	           .json = json,
	           .json_bytes = strlen(json),
	           .payload = payload,
	           .payload_bytes = strlen(payload),
	           .credit = type == FRAME_CREDIT ? ENGINE_CREDIT : 0};
	frame_encode_header(&f, head);
	engine_io(e->fd, head, sizeof head, true);
	engine_io(e->fd, (char *)json, f.json_bytes, true);
	engine_io(e->fd, (char *)payload, f.payload_bytes, true);
}

static void engine_generate(engine *e, uint64_t stream)
{
	engine_frame(e, FRAME_EVENT, stream, "{\"index\":0,\"text\":\"one\",\"tokens\":[1],\"time_ms\":0.5}", "");
	engine_frame(
	    e, FRAME_EVENT, stream,
	    "{\"index\":0,\"text\":\" two\",\"tokens\":[2,3],\"logprobs\":{\"tokens\":[\"two\"],\"token_logprobs\":"
	    "[-0.25]},\"alpha\":[{\"token\":{\"id\":1,\"text\":\"one\",\"offset\":0},\"weight\":1.0}]}",
	    "");
	engine_frame(e, FRAME_RESULT, stream,
	             "{\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,"
	             "\"completion_tokens\":3,\"total_tokens\":4},\"timings\":{\"queue_ms\":1.5},\"model\":\"m\","
	             "\"session\":{\"id\":\"s\",\"tokens\":4}}",
	             "");
}

static const char engine_explanation[] =
    "{\"object\":\"explanation\",\"model\":\"m\",\"position\":1,\"tokens\":[{\"id\":1,\"text\":\"a<b\"},{\"id\":2,"
    "\"text\":\"\xc3\xa4\"}],\"weights\":[{\"layer\":0,\"head\":0,\"round\":\"query\",\"alpha\":[0.25,0.75]}]}";
static const char engine_evaluation[] =
    "{\"object\":\"explain.evaluation\",\"model\":\"m\",\"texts\":1,\"positions\":2,\"settings\":{\"seed\":0},"
    "\"metrics\":[{"
    "\"metric\":\"far_drop\",\"better\":\"higher\"}],\"methods\":[{\"method\":\"alpha\",\"numbers\":[{\"mean\":0.5,"
    "\"interval\":[0.25,0.75]}],\"curve\":{\"fractions\":[0,1],\"deletion\":[-1,-2],\"insertion\":[-2,-1]}}]}";
static const char engine_metrics[] =
    "{\"metrics\":[{\"name\":\"additive_engine_tokens_total\",\"type\":\"counter\",\"help\":\"Tokens.\",\"samples\":"
    "[{\"labels\":{\"model\":\"m\"},\"value\":12345678901234567}]},{\"name\":\"additive_engine_step_seconds\",\"type\":"
    "\"histogram\",\"help\":\"Steps.\",\"buckets\":[[0.1,1],[1,2]],\"sum\":1.5,\"count\":2}]}";

static void engine_answer(engine *e, uint64_t stream, const char *text)
{
	if (strstr(text, "\"hang\""))
		return;
	if (strstr(text, "key.watch")) {
		engine_frame(e, FRAME_EVENT, stream, "{\"required\":false,\"keys\":[]}", "");
	} else if (strstr(text, "\"missing\"")) {
		engine_frame(
		    e, FRAME_ERROR, stream,
		    "{\"status\":404,\"code\":\"not_found\",\"message\":\"there is no such thing, and this is a "
		    "message of some length\",\"param\":\"id\"}",
		    "");
	} else if (strstr(text, "completion.create") || strstr(text, "session.generate")) {
		engine_generate(e, stream);
	} else if (strstr(text, "file.content") || strstr(text, "model.file") || strstr(text, "session.export")) {
		engine_frame(e, FRAME_EVENT, stream, "{\"bytes\":8,\"content_type\":\"text/plain\"}", "");
		engine_frame(e, FRAME_DATA, stream, "", "contents");
		engine_frame(e, FRAME_RESULT, stream, "{\"bytes\":8}", "");
	} else if (strstr(text, "job.watch")) {
		engine_frame(e, FRAME_EVENT, stream, "{\"id\":\"ftevent-1\",\"object\":\"fine_tuning.job.event\"}", "");
		engine_frame(e, FRAME_RESULT, stream, "{\"id\":\"ftjob-1\"}", "");
	} else if (strstr(text, "engine.metrics")) {
		engine_frame(e, FRAME_RESULT, stream, engine_metrics, "");
	} else if (strstr(text, "faithfulness.create")) {
		engine_frame(e, FRAME_RESULT, stream, engine_evaluation, "");
	} else if (strstr(text, "\"explain\"") || strstr(text, "session.alpha")) {
		engine_frame(e, FRAME_RESULT, stream, engine_explanation, "");
	} else {
		engine_frame(e, FRAME_RESULT, stream, "{\"id\":\"x\",\"object\":\"thing\"}", "");
	}
}

static void engine_take(engine *e, const frame *f, const char *text)
{
	bool *uploading = &e->uploading[f->stream % ENGINE_STREAMS];
	if (f->type == FRAME_PING) {
		engine_frame(e, FRAME_PONG, 0, "", "");
	} else if (f->type == FRAME_REQUEST && !(f->flags & FRAME_FLAG_END)) {
		*uploading = true;
		engine_frame(e, FRAME_CREDIT, f->stream, "", "");
	} else if (f->type == FRAME_REQUEST) {
		engine_answer(e, f->stream, text);
	} else if (f->type == FRAME_DATA && (f->flags & FRAME_FLAG_END) && *uploading) {
		*uploading = false;
		engine_answer(e, f->stream, "");
	} else if (f->type == FRAME_DATA && *uploading) {
		engine_frame(e, FRAME_CREDIT, f->stream, "", "");
	} else if (f->type == FRAME_CANCEL) {
		*uploading = false;
		engine_frame(e, FRAME_ERROR, f->stream,
		             "{\"status\":499,\"code\":\"cancelled\",\"message\":\"cancelled\"}", "");
	}
}

static void engine_serve(int fd)
{
	static char bytes[64 << 10];
	static engine e;
	e = (engine){.fd = fd};
	frame_decoder d = {0};
	engine_frame(&e, FRAME_HELLO, 0, "{\"protocol\":1,\"software\":\"scripted\",\"backend\":\"none\"}", "");
	ssize_t n;
	while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) {
		frame f;
		const char *err;
		if (!frame_decoder_push(&d, bytes, (size_t)n))
			break;
		while (frame_decoder_next(&d, &f, &err) == FRAME_OK) {
			char *text = strndup(f.json_bytes ? f.json : "", f.json_bytes);
			if (text)
				engine_take(&e, &f, text);
			free(text);
		}
	}
	frame_decoder_fini(&d);
	close(fd);
}

static pid_t engine_start(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
	    listen(listener, 8) != 0)
		return -1;
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;)
			engine_serve(fd);
		_exit(0);
	}
	close(listener);
	return child;
}

/* --- the front end ------------------------------------------------------------------------- */

static void front_on_wait(uv_timer_t *timer)
{
	(void)timer;
}

void front_turn(front *f, int ms)
{
	if (ms > 0)
		uv_timer_start(&f->wait, front_on_wait, (uint64_t)ms, 0);
	uv_run(&f->loop, ms > 0 ? UV_RUN_ONCE : UV_RUN_NOWAIT);
	uv_timer_stop(&f->wait);
}

bool front_connected(const front *f)
{
	return engine_link_up(f->server.engine);
}

uint64_t front_requests(const front *f)
{
	return metrics_requests(f->server.metrics);
}

uint64_t front_connections(const front *f)
{
	return metrics_connections(f->server.metrics);
}

static void front_on_up(void *context)
{
	server *s = context;
	engine_keys_open(&s->keys, s->engine);
}

front *front_new(uint64_t request_ms)
{
	front *f = calloc(1, sizeof *f);
	if (!f)
		return NULL;
	signal(SIGPIPE, SIG_IGN);
	json_memory_install(malloc, free);
	folder_new(f->folder);
	if (uv_loop_init(&f->loop) != 0)
		abort();
	snprintf(f->path, sizeof f->path, "%s/engine", f->folder);
	f->engine = engine_start(f->path);
	f->server = (server){.loop = &f->loop,
	                     .limits = {.connections = 256,
	                                .request_ms = request_ms,
	                                .stall_ms = 10000,
	                                .ping_ms = 10000,
	                                .json_bytes = 1 << 20,
	                                .buffered_bytes = 8 << 20,
	                                .upload_bytes = 8 << 20},
	                     .metrics = metrics_new(),
	                     .web = true};
	char address[112];
	snprintf(address, sizeof address, "unix:%s", f->path);
	engine_link_options link = {
	    .address = address, .silence_ms = 30000, .up = front_on_up, .context = &f->server};
	f->http = http_new(&f->server, "127.0.0.1:0");
	f->server.engine = engine_link_new(&f->loop, &link);
	if (f->engine < 0 || !f->http || !f->server.engine || !f->server.metrics) {
		fprintf(stderr, "the front end does not start\n");
		abort();
	}
	f->address = (struct sockaddr_in){.sin_family = AF_INET,
	                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	                                  .sin_port = htons((uint16_t)atoi(strrchr(http_address(f->http), ':') + 1))};
	uv_timer_init(&f->loop, &f->wait);
	while (!front_connected(f) || !f->server.keys.current)
		front_turn(f, 10);
	return f;
}

static void front_on_drained(void *context)
{
	front *f = context;
	engine_link_close(f->server.engine);
	http_stop(f->http);
	uv_close((uv_handle_t *)&f->wait, NULL);
}

void front_free(front *f)
{
	http_drain(f->http, 0, front_on_drained, f);
	uv_run(&f->loop, UV_RUN_DEFAULT);
	uv_loop_close(&f->loop);
	engine_keys_free(&f->server.keys);
	engine_link_free(f->server.engine);
	http_free(f->http);
	metrics_free(f->server.metrics);
	kill(f->engine, SIGKILL);
	waitpid(f->engine, NULL, 0);
	unlink(f->path);
	rmdir(f->folder);
	free(f);
}

/* --- a client ----------------------------------------------------------------------------------- */

int front_client(front *f)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&f->address, sizeof f->address) != 0 && errno != EINPROGRESS) {
		close(fd);
		return -1;
	}
	return fd;
}

bool front_send(front *f, int client, const void *data, size_t bytes)
{
	const char *at = data;
	for (int refused = 0; bytes > 0 && refused < 200;) {
		ssize_t n = send(client, at, bytes, MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN && errno != ENOTCONN)
			return false;
		refused = n > 0 ? 0 : refused + 1;
		at += n > 0 ? n : 0;
		bytes -= n > 0 ? (size_t)n : 0;
		front_turn(f, n > 0 ? 0 : 1);
	}
	return true;
}

size_t front_receive(front *f, int client, char *out, size_t room, int quiet_ms, bool *ended)
{
	size_t got = 0;
	*ended = false;
	for (int quiet = 0; got < room && quiet < quiet_ms;) {
		ssize_t n = recv(client, out + got, room - got, 0);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != ENOTCONN)) {
			*ended = true;
			break;
		}
		got += n > 0 ? (size_t)n : 0;
		quiet = n > 0 ? 0 : quiet + 1;
		front_turn(f, n > 0 ? 0 : 1);
	}
	return got;
}
