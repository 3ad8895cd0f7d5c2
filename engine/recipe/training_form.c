#include "engine/recipe/training_form.h"

#include <string.h>

#include <jansson.h>

#include "engine/base/memory.h"
#include "engine/text/byte_source.h"
#include "engine/text/corpus_form.h"
#include "engine/text/messages.h"

enum { BEGINNING = 1 << 20 };

static size_t skip_blank(const char *text, size_t bytes, size_t at)
{
	static const char mark[] = "\xef\xbb\xbf";
	if (at == 0 && bytes >= 3 && memcmp(text, mark, 3) == 0)
		at = 3;
	while (at < bytes && strchr(" \t\r\n", text[at]) && text[at])
		at++;
	return at;
}

static bool is_prose(const char *path, const char *text, size_t bytes)
{
	const corpus_hint hint = corpus_hint_of_file(path);
	corpus_form form;
	return hint != CORPUS_HINT_TEXT && corpus_form_find(&form, hint, text, bytes, true, NULL) == STATUS_OK &&
	       form == CORPUS_FORM_TEXT;
}

/* The first object of lines or of an array; NULL: there is none. */
static json_t *first_object(const char *text, size_t bytes)
{
	size_t at = skip_blank(text, bytes, 0);
	if (at < bytes && text[at] == '[')
		at = skip_blank(text, bytes, at + 1);
	return at < bytes && text[at] == '{' ? json_loadb(text + at, bytes - at, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
}

static bool has(const json_t *object, const char *key)
{
	const json_t *member = json_object_get(object, key);
	return member && !json_is_null(member);
}

static bool has_answer(const json_t *messages)
{
	size_t i;
	json_t *message;
	json_array_foreach(messages, i, message) if (i > 0 && messages_is_answer(message)) return true;
	return false;
}

static training_form form_of(const json_t *object)
{
	if (has(object, "messages"))
		return has_answer(json_object_get(object, "messages")) ? FORM_CHAT : FORM_TEXT;
	if (has(object, "chosen") || has(object, "preferred_output"))
		return FORM_PREFERENCES;
	if (has(object, "conversations") || has(object, "instruction"))
		return FORM_CHAT;
	if (has(object, "completion"))
		return FORM_TEXT;
	if (has(object, "source") && has(object, "target"))
		return FORM_PAIRS;
	return has(object, "text") && has(object, "label") ? FORM_LABELLED : FORM_TEXT;
}

training_form training_form_of(const char *path)
{
	byte_source *source;
	size_t used = 0, got = 1;
	char *text = memory_new(BEGINNING, 1);
	training_form form = FORM_TEXT;
	if (text && byte_source_open(&source, path, NULL) == STATUS_OK) {
		while (got > 0 && used < BEGINNING &&
		       byte_source_read(source, text + used, BEGINNING - used, &got, NULL) == STATUS_OK)
			used += got;
		byte_source_free(source);
		json_t *object = first_object(text, used);
		form = is_prose(path, text, used) ? FORM_PROSE : form_of(object);
		json_decref(object);
	}
	free(text);
	return form;
}

record_kind training_form_records(training_form f)
{
	return f == FORM_LABELLED      ? RECORD_LABELLED
	       : f == FORM_PAIRS       ? RECORD_PAIR
	       : f == FORM_PREFERENCES ? RECORD_PREFERENCE
	                               : RECORD_BLOCK;
}

const char *training_form_advice(training_form f)
{
	static const char *const advice[] = {
	    [FORM_TEXT] = NULL,
	    [FORM_PROSE] = NULL,
	    [FORM_CHAT] = NULL,
	    [FORM_LABELLED] =
	        "the lines have \"text\" and \"label\": they fit the objective classification, of the model "
	        "linear_encoder; or, for the texts alone, next_token",
	    [FORM_PAIRS] =
	        "the lines have \"source\" and \"target\": they fit the objective sequence_to_sequence, of the "
	        "model transformer with the stack encoder_decoder",
	    [FORM_PREFERENCES] = "the lines have a chosen and a rejected completion: they fit the method dpo, or the "
	                         "objective preference, of a model to continue from",
	};
	return advice[f];
}

const char *training_form_example(record_kind k)
{
	static const char *const examples[] = {
	    [RECORD_BLOCK] = NULL,
	    [RECORD_LABELLED] = "the objective classification reads lines such as "
	                        "{\"text\": \"a fine film\", \"label\": \"good\"}",
	    [RECORD_PAIR] = "the objective sequence_to_sequence reads lines such as "
	                    "{\"source\": \"guten Tag\", \"target\": \"good day\"}",
	    [RECORD_PREFERENCE] = "the objective preference reads lines such as "
	                          "{\"prompt\": \"Is it late?\", \"chosen\": \" It is ten.\", \"rejected\": \" Yes.\"}",
	};
	return examples[k];
}
