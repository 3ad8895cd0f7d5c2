/* Texts of users are in the page once, as JSON in which every "<" is an escape, so no text can end its element. */
#include "server/saved_page.h"

#include <stdio.h>

#include "server/markup.h"
#include "server/template.h"

typedef struct saved_page {
	const json_t *answer;
	char nonce[40];
} saved_page;

static void saved_page_write_style(buffer *out, const void *context)
{
	(void)context;
	buffer_append(out, embedded_style_css.data, embedded_style_css.bytes);
}

static void saved_page_write_data(buffer *out, const void *context)
{
	markup_data(out, ((const saved_page *)context)->answer);
}

static void saved_page_write_nonce(buffer *out, const void *context)
{
	buffer_string(out, ((const saved_page *)context)->nonce);
}

static void saved_page_write_script(buffer *out, const void *context)
{
	(void)context;
	buffer_append(out, embedded_saved_js.data, embedded_saved_js.bytes);
}

void saved_page_reply(request *r, json_t *answer)
{
	static const template_part parts[] = {{"style", saved_page_write_style},
	                                      {"data", saved_page_write_data},
	                                      {"nonce", saved_page_write_nonce},
	                                      {"script", saved_page_write_script},
	                                      {NULL, NULL}};
	saved_page page = {.answer = answer};
	char policy[200];
	buffer out = {0};
	request_make_id(page.nonce, sizeof page.nonce, "");
	snprintf(policy, sizeof policy, "default-src 'none'; style-src 'nonce-%s'; script-src 'nonce-%s'", page.nonce,
	         page.nonce);
	template_write(&out, &embedded_saved_html, parts, &page);
	json_decref(answer);
	if (out.failed)
		buffer_fini(&out);
	reply_header(r, "Content-Security-Policy", policy);
	reply_bytes(r, 200, "text/html; charset=utf-8", out.data, out.used);
}
