#include "engine/text/huggingface/decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/huggingface/pieces.h"
#include "engine/text/huggingface/reading.h"

/* --- the steps ------------------------------------------------------------------------------------- */

/* A token with a character that spells no byte is its own bytes. */
static bool apply_byte_level(const decoder_step *step, bool first, char *text, size_t *bytes)
{
	(void)step;
	(void)first;
	char out[TOKEN_MAX_BYTES] = "";
	size_t n = 0;
	for (size_t at = 0, length; at < *bytes; at += length) {
		const uint32_t c = pieces_first(text + at, &length);
		int byte = c < 0x100 ? (int)c : -1;
		for (int i = 0; c >= 0x100 && c < 0x144 && i < 256; i++)
			byte = pieces_spelling(i) == c ? i : byte;
		if (byte < 0 || pieces_spelling(byte) != c)
			return true;
		out[n++] = (char)byte;
	}
	memcpy(text, out, n);
	*bytes = n;
	return true;
}

static bool apply_byte_fallback(const decoder_step *step, bool first, char *text, size_t *bytes)
{
	(void)step;
	(void)first;
	unsigned byte;
	char name[7];
	if (*bytes != 6)
		return true;
	snprintf(name, sizeof name, "%.6s", text);
	if (memcmp(name, "<0x", 3) == 0 && name[5] == '>' && strspn(name + 3, "0123456789abcdefABCDEF") == 2 &&
	    sscanf(name, "<0x%2x>", &byte) == 1) {
		text[0] = (char)byte;
		*bytes = 1;
	}
	return true;
}

static bool apply_replace(const decoder_step *step, bool first, char *text, size_t *bytes)
{
	(void)first;
	char out[TOKEN_MAX_BYTES];
	size_t n = 0;
	for (size_t at = 0; at < *bytes;) {
		const bool found =
		    *bytes - at >= step->from_bytes && memcmp(text + at, step->from, step->from_bytes) == 0;
		const char *part = found ? step->to : text + at;
		const size_t length = found ? step->to_bytes : 1;
		if (n + length > sizeof out)
			return false;
		memcpy(out + n, part, length);
		n += length;
		at += found ? step->from_bytes : 1;
	}
	memcpy(text, out, n);
	*bytes = n;
	return true;
}

static bool apply_metaspace(const decoder_step *step, bool first, char *text, size_t *bytes)
{
	decoder_step way = *step;
	way.to_bytes = first && !step->keeps_first ? 0 : 1;
	way.to[0] = ' ';
	return apply_replace(&way, first, text, bytes);
}

static bool apply_strip(const decoder_step *step, bool first, char *text, size_t *bytes)
{
	(void)first;
	size_t begin = 0, end = *bytes;
	for (int i = 0; i < step->start && end - begin >= step->from_bytes; i++)
		if (memcmp(text + begin, step->from, step->from_bytes) == 0)
			begin += step->from_bytes;
		else
			break;
	for (int i = 0; i < step->stop && end - begin >= step->from_bytes; i++)
		if (memcmp(text + end - step->from_bytes, step->from, step->from_bytes) == 0)
			end -= step->from_bytes;
		else
			break;
	memmove(text, text + begin, end - begin);
	*bytes = end - begin;
	return true;
}

/* After Fuse, where all tokens are one text. */
static bool apply_strip_text(const decoder_step *step, bool first, char *text, size_t *bytes)
{
	return !first || apply_strip(step, first, text, bytes);
}

static bool apply_joint(const decoder_step *step, bool first, char *text, size_t *bytes)
{
	(void)step;
	if (first)
		return true;
	if (*bytes + 1 > TOKEN_MAX_BYTES)
		return false;
	memmove(text + 1, text, *bytes);
	text[0] = ' ';
	++*bytes;
	return true;
}

/* WordPiece: a token that begins with the prefix joins the one before it, any other follows a space; with `stop`
 * (cleanup) the space before some punctuation is dropped. */
static bool apply_wordpiece(const decoder_step *step, bool first, char *text, size_t *bytes)
{
	static const char *const joined[] = {" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're"};
	if (!first && *bytes >= step->from_bytes && memcmp(text, step->from, step->from_bytes) == 0) {
		*bytes -= step->from_bytes;
		memmove(text, text + step->from_bytes, *bytes);
	} else if (!first) {
		if (!apply_joint(step, first, text, bytes))
			return false;
	}
	for (size_t i = 0; step->stop && i < sizeof joined / sizeof *joined; i++) {
		const size_t n = strlen(joined[i]);
		for (char *at = text; (at = memmem(at, (size_t)(text + *bytes - at), joined[i], n)); at += n - 1) {
			memmove(at, at + 1, *bytes - (size_t)(at + 1 - text));
			--*bytes;
		}
	}
	return true;
}

bool decoder_token(const decoder *d, const char *name, size_t bytes, bool first, char *out, size_t *count)
{
	char text[TOKEN_MAX_BYTES * 2]; /* a spelling has up to two bytes for one */
	if (bytes > sizeof text)
		return false;
	memcpy(text, name, bytes);
	for (int i = 0; i < d->count; i++)
		if (!d->steps[i].apply(&d->steps[i], first, text, &bytes))
			return false;
	if (bytes > TOKEN_MAX_BYTES)
		return false;
	memcpy(out, text, bytes);
	*count = bytes;
	return true;
}

bool decoder_is_mark(const decoder *d, const char *text, size_t bytes)
{
	size_t length;
	return d->mark && bytes > 0 && utf8_valid_prefix(text, bytes) == bytes &&
	       pieces_first(text, &length) == d->mark && length == bytes;
}

uint32_t decoder_raise(const decoder *d, uint32_t c)
{
	for (int i = 0; i < d->n_raised; i++)
		if (d->raised[i].from == c)
			return d->raised[i].to;
	return c;
}

/* --- reading ------------------------------------------------------------------------------------------ */

static status keep_text(char room[64], size_t *bytes, const json_t *text, const char *path, error *err)
{
	*bytes = json_string_length(text);
	if (!json_is_string(text) || *bytes > 64)
		return reading_refuse(err, path, "needs a string of at most 64 bytes for each pattern and content");
	memcpy(room, json_string_value(text), *bytes);
	return STATUS_OK;
}

/* After Fuse: a mark and a character, which become one character. */
static status read_raised(decoder *d, const json_t *pattern, const json_t *content, const char *path, error *err)
{
	const char *from = json_string_value(pattern), *to = json_string_value(content);
	size_t first = 0, second = 0, third = 0;
	const uint32_t mark = from && from[0] ? pieces_first(from, &first) : 0;
	const uint32_t c = mark && from[first] ? pieces_first(from + first, &second) : 0;
	const uint32_t by = to && to[0] ? pieces_first(to, &third) : 0;
	if (!c || first + second != json_string_length(pattern) || !by || third != json_string_length(content) ||
	    (d->mark && mark != d->mark))
		return reading_refuse(
		    err, path,
		    "is a Replace behind Fuse that is not of one character behind a mark, the same for "
		    "all, by another, which is not supported");
	if (d->n_raised == DECODER_MAX_RAISED)
		return reading_refuse(err, path, "is one of more than %d behind Fuse", DECODER_MAX_RAISED);
	d->mark = mark;
	d->raised[d->n_raised].from = c;
	d->raised[d->n_raised++].to = by;
	return STATUS_OK;
}

static status read_replace(decoder *d, decoder_step *step, const json_t *part, const char *path, error *err)
{
	const json_t *pattern = json_object_get(json_object_get(part, "pattern"), "String");
	TRY(reading_keys(part, path, (const char *const[]){"type", "pattern", "content", NULL}, err));
	if (pattern && d->fused) {
		d->count--;
		return read_raised(d, pattern, json_object_get(part, "content"), path, err);
	}
	if (!pattern || json_string_length(pattern) == 0 || d->bytes)
		return reading_refuse(err, path,
		                      "is a Replace of a pattern, or behind ByteFallback, which is not supported");
	step->apply = apply_replace;
	TRY(keep_text(step->from, &step->from_bytes, pattern, path, err));
	return keep_text(step->to, &step->to_bytes, json_object_get(part, "content"), path, err);
}

static status read_strip(decoder *d, decoder_step *step, const json_t *part, const char *path, error *err)
{
	const json_t *start = json_object_get(part, "start"), *stop = json_object_get(part, "stop");
	TRY(reading_keys(part, path, (const char *const[]){"type", "content", "start", "stop", NULL}, err));
	if (!json_is_integer(start) || !json_is_integer(stop) || json_integer_value(start) < 0 ||
	    json_integer_value(stop) < 0 || json_integer_value(start) > TOKEN_MAX_BYTES ||
	    json_integer_value(stop) > TOKEN_MAX_BYTES)
		return reading_blame(err, path, "needs numbers \"start\" and \"stop\"");
	step->start = (int)json_integer_value(start);
	step->stop = (int)json_integer_value(stop);
	if (d->fused && (step->start > 1 || step->stop > 0))
		return reading_refuse(err, path,
		                      "strips more than the first character of a text, which is not supported");
	step->apply = d->fused ? apply_strip_text : apply_strip;
	d->first_differs |= d->fused;
	TRY(keep_text(step->from, &step->from_bytes, json_object_get(part, "content"), path, err));
	return step->from_bytes > 0 ? STATUS_OK : reading_blame(err, path, "needs a character as \"content\"");
}

static status read_metaspace(decoder *d, decoder_step *step, const json_t *part, const char *path, error *err)
{
	const char *scheme, *replacement;
	bool prefix, split;
	TRY(reading_keys(part, path,
	                 (const char *const[]){"type", "replacement", "prepend_scheme", "split", "add_prefix_space",
	                                       "str_rep", NULL},
	                 err));
	TRY(reading_string(part, path, "prepend_scheme", "always", &scheme, err));
	TRY(reading_bool(part, path, "add_prefix_space", true, &prefix, err));
	TRY(reading_bool(part, path, "split", true, &split, err));
	TRY(reading_string(part, path, "replacement", "\xE2\x96\x81", &replacement, err));
	if (strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0 && strcmp(scheme, "never") != 0)
		return reading_refuse(err, path, "has the prepend_scheme \"%.40s\", which is not supported", scheme);
	step->apply = apply_metaspace;
	step->keeps_first = strcmp(scheme, "never") == 0;
	d->first_differs |= !step->keeps_first;
	step->from_bytes = strlen(replacement);
	if (step->from_bytes == 0 || step->from_bytes > 4)
		return reading_blame(err, path, "needs one character as \"replacement\"");
	memcpy(step->from, replacement, step->from_bytes);
	return STATUS_OK;
}

/* The suffix of a word's last token becomes a space. The library drops the last of these, which a stream cannot. */
static status read_bpe(decoder_step *step, const json_t *part, const char *path, error *err)
{
	const char *suffix;
	TRY(reading_keys(part, path, (const char *const[]){"type", "suffix", NULL}, err));
	TRY(reading_string(part, path, "suffix", "</w>", &suffix, err));
	if (!suffix[0] || strlen(suffix) > sizeof step->from)
		return reading_refuse(err, path, "needs a suffix of 1 to %zu bytes", sizeof step->from);
	step->apply = apply_replace;
	step->from_bytes = strlen(suffix);
	memcpy(step->from, suffix, step->from_bytes);
	step->to[0] = ' ';
	step->to_bytes = 1;
	return STATUS_OK;
}

static status read_wordpiece(decoder *d, decoder_step *step, const json_t *part, const char *path, error *err)
{
	bool cleanup;
	TRY(reading_keys(part, path, (const char *const[]){"type", "prefix", "cleanup", NULL}, err));
	TRY(reading_bool(part, path, "cleanup", true, &cleanup, err));
	step->apply = apply_wordpiece;
	step->stop = cleanup;
	d->first_differs = true;
	const json_t *prefix = json_object_get(part, "prefix");
	if (prefix)
		return keep_text(step->from, &step->from_bytes, prefix, path, err);
	memcpy(step->from, "##", step->from_bytes = 2);
	return STATUS_OK;
}

static status decoder_read_step(void *context, const json_t *part, const char *type, const char *path, error *err)
{
	decoder *d = context;
	static const char *const plain[] = {"type", NULL};
	if (d->count == DECODER_MAX_STEPS)
		return reading_refuse(err, path, "is one of more than %d", DECODER_MAX_STEPS);
	if (d->mark && strcmp(type, "Replace") != 0)
		return reading_refuse(err, path, "stands behind such a Replace, which is not supported");
	decoder_step *step = &d->steps[d->count++];
	if (strcmp(type, "Replace") == 0)
		return read_replace(d, step, part, path, err);
	if (strcmp(type, "Strip") == 0)
		return read_strip(d, step, part, path, err);
	if (strcmp(type, "Metaspace") == 0)
		return read_metaspace(d, step, part, path, err);
	if (strcmp(type, "WordPiece") == 0)
		return read_wordpiece(d, step, part, path, err);
	if (strcmp(type, "BPEDecoder") == 0)
		return read_bpe(step, part, path, err);
	if (strcmp(type, "ByteLevel") == 0) {
		step->apply = apply_byte_level;
		return reading_keys(
		    part, path, (const char *const[]){"type", "add_prefix_space", "trim_offsets", "use_regex", NULL},
		    err);
	}
	TRY(reading_keys(part, path, plain, err));
	if (strcmp(type, "ByteFallback") == 0) {
		step->apply = apply_byte_fallback;
		d->bytes = true;
		return STATUS_OK;
	}
	d->count--;
	if (strcmp(type, "Fuse") != 0)
		return reading_refuse(err, path, "has the type \"%.40s\", which is not supported", type);
	d->fused = true;
	return STATUS_OK;
}

status decoder_read(decoder *d, const json_t *part, error *err)
{
	*d = (decoder){0};
	if (part && !json_is_null(part))
		return reading_sequence(part, "decoder", "decoders", decoder_read_step, d, err);
	d->steps[d->count++].apply = apply_joint;
	d->first_differs = true;
	return STATUS_OK;
}
