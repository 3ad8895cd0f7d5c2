#include "engine/text/huggingface/normalizer.h"

#include <stdlib.h>
#include <string.h>
#include <nettle/base64.h>
#include <utf8proc.h>

#include "engine/base/memory.h"
#include "engine/text/huggingface/pieces.h"
#include "engine/text/huggingface/reading.h"

/* --- the steps ------------------------------------------------------------------------------------ */

static status apply_form(const normalizer_step *step, pattern_search *search, const text_piece *p, text_buffer *out)
{
	(void)search;
	return forms_append((form)step->option, p, out);
}

static status apply_prepend(const normalizer_step *step, pattern_search *search, const text_piece *p, text_buffer *out)
{
	(void)search;
	if (p->bytes > 0 && !p->continues)
		TRY(pieces_put(out, step->text, step->bytes, (byte_range){pieces_origin(p, 0, 1).first, 0}));
	return pieces_copy(out, p, 0, p->bytes);
}

static status apply_replace(const normalizer_step *step, pattern_search *search, const text_piece *p, text_buffer *out)
{
	pattern_walk walk = {.pattern = step->pattern, .text = p->text, .bytes = p->bytes};
	size_t at = 0;
	for (;;) {
		bool found;
		byte_range match;
		TRY(pattern_next(&walk, search, &found, &match));
		if (!found)
			return pieces_copy(out, p, at, p->bytes - at);
		TRY(pieces_copy(out, p, at, match.first - at));
		TRY(pieces_put(out, step->text, step->bytes, pieces_origin(p, match.first, match.bytes)));
		at = match.first + match.bytes;
	}
}

static status apply_lowercase(const normalizer_step *step, pattern_search *search, const text_piece *p,
                              text_buffer *out)
{
	enum { DOTTED_I = 0x130, DOT_ABOVE = 0x307 };
	(void)step;
	(void)search;
	for (size_t at = 0, length; at < p->bytes; at += length) {
		char lower[8];
		uint32_t c = pieces_first(p->text + at, &length);
		size_t n = pieces_write(c == DOTTED_I ? 'i' : (uint32_t)utf8proc_tolower((int32_t)c), lower);
		if (c == DOTTED_I) /* the only lower case of two characters */
			n += pieces_write(DOT_ABOVE, lower + n);
		TRY(pieces_put(out, lower, n, pieces_origin(p, at, length)));
	}
	return STATUS_OK;
}

/* Drop marks: all of them, or (option) those without a width. */
static status apply_strip_marks(const normalizer_step *step, pattern_search *search, const text_piece *p,
                                text_buffer *out)
{
	(void)search;
	for (size_t at = 0, length; at < p->bytes; at += length) {
		const utf8proc_category_t c = utf8proc_category((int32_t)pieces_first(p->text + at, &length));
		if (c != UTF8PROC_CATEGORY_MN &&
		    (step->option || (c != UTF8PROC_CATEGORY_MC && c != UTF8PROC_CATEGORY_ME)))
			TRY(pieces_copy(out, p, at, length));
	}
	return STATUS_OK;
}

static bool is_control(uint32_t c)
{
	const utf8proc_category_t category = utf8proc_category((int32_t)c);
	return c != '\t' && c != '\n' && c != '\r' &&
	       (category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
	        category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CN);
}

/* Drop control characters, make white space a space. */
static status apply_clean(const normalizer_step *step, pattern_search *search, const text_piece *p, text_buffer *out)
{
	(void)step;
	(void)search;
	for (size_t at = 0, length; at < p->bytes; at += length) {
		const uint32_t c = pieces_first(p->text + at, &length);
		if (c == 0 || c == 0xFFFD || is_control(c))
			continue;
		TRY(pieces_is_space(c) ? pieces_put(out, " ", 1, pieces_origin(p, at, length))
		                       : pieces_copy(out, p, at, length));
	}
	return STATUS_OK;
}

static bool is_chinese(uint32_t c)
{
	return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
	       (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
	       (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/* Put a space before and after each Chinese character. */
static status apply_chinese(const normalizer_step *step, pattern_search *search, const text_piece *p, text_buffer *out)
{
	(void)step;
	(void)search;
	for (size_t at = 0, length; at < p->bytes; at += length) {
		const bool chinese = is_chinese(pieces_first(p->text + at, &length));
		const byte_range origin = pieces_origin(p, at, length);
		if (chinese)
			TRY(pieces_put(out, " ", 1, origin));
		TRY(pieces_copy(out, p, at, length));
		if (chinese)
			TRY(pieces_put(out, " ", 1, origin));
	}
	return STATUS_OK;
}

/* SentencePiece's "nmt": drop some control characters, make others and marks of no width a space. */
static status apply_nmt(const normalizer_step *step, pattern_search *search, const text_piece *p, text_buffer *out)
{
	(void)step;
	(void)search;
	for (size_t at = 0, length; at < p->bytes; at += length) {
		const uint32_t c = pieces_first(p->text + at, &length);
		if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
			continue;
		const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
		                   (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
		                   c == 0xFEFF || c == 0xFFFD;
		TRY(space ? pieces_put(out, " ", 1, pieces_origin(p, at, length)) : pieces_copy(out, p, at, length));
	}
	return STATUS_OK;
}

/* Each byte becomes the character with which byte-level vocabularies spell it. */
static status apply_byte_level(const normalizer_step *step, pattern_search *search, const text_piece *p,
                               text_buffer *out)
{
	char spelling[4];
	(void)step;
	(void)search;
	for (size_t at = 0; at < p->bytes; at++)
		TRY(pieces_put(out, spelling, pieces_write(pieces_spelling((unsigned char)p->text[at]), spelling),
		               pieces_origin(p, at, 1)));
	return STATUS_OK;
}

enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };

static status apply_strip(const normalizer_step *step, pattern_search *search, const text_piece *p, text_buffer *out)
{
	(void)search;
	size_t first = 0, end = p->bytes, length;
	while ((step->option & STRIP_LEFT) && first < end && pieces_is_space(pieces_first(p->text + first, &length)))
		first += length;
	while ((step->option & STRIP_RIGHT) && end > first && pieces_is_space(pieces_last(p->text, end, &length)))
		end -= length;
	return pieces_copy(out, p, first, end - first);
}

/* The end of the cluster of characters that begins at `at` and belongs together for a reader. */
static size_t cluster_end(const text_piece *p, size_t at)
{
	utf8proc_int32_t state = 0;
	size_t length;
	uint32_t before = pieces_first(p->text + at, &length);
	for (at += length; at < p->bytes; at += length) {
		const uint32_t c = pieces_first(p->text + at, &length);
		if (utf8proc_grapheme_break_stateful((int32_t)before, (int32_t)c, &state))
			break;
		before = c;
	}
	return at;
}

/* Replace the bytes by what the shortest rule says that they begin with; false in *done: there is none. */
static status replace_all(const normalizer_step *step, const text_piece *p, size_t at, size_t bytes, text_buffer *out,
                          bool *done)
{
	const charsmap_match rule = charsmap_shortest(&step->rules, p->text + at, bytes);
	*done = rule.length > 0;
	return *done ? pieces_put(out, rule.made, rule.bytes, pieces_origin(p, at, bytes)) : STATUS_OK;
}

/* As the library does it: a short cluster that a rule begins with is replaced whole, else each character. */
static status apply_precompiled(const normalizer_step *step, pattern_search *search, const text_piece *p,
                                text_buffer *out)
{
	enum { SHORT = 6 };
	(void)search;
	for (size_t at = 0, end; at < p->bytes; at = end) {
		bool done = false;
		end = cluster_end(p, at);
		if (end - at < SHORT)
			TRY(replace_all(step, p, at, end - at, out, &done));
		for (size_t length; !done && at < end; at += length) {
			bool replaced;
			pieces_first(p->text + at, &length);
			TRY(replace_all(step, p, at, length, out, &replaced));
			if (!replaced)
				TRY(pieces_copy(out, p, at, length));
		}
	}
	return STATUS_OK;
}

/* --- what is kept of a text ---------------------------------------------------------------------------- */

space_form normalizer_space(const normalizer *n)
{
	space_form space = SPACE_KEPT;
	for (int i = 0; i < n->count; i++) {
		const normalizer_step *s = &n->steps[i];
		if (s->apply == apply_replace && s->marks_spaces)
			space = SPACE_MARKED;
		else if (s->apply != apply_form && s->apply != apply_lowercase && s->apply != apply_prepend &&
		         s->apply != apply_strip_marks && s->apply != apply_clean && s->apply != apply_chinese)
			return SPACE_UNKNOWN;
	}
	return space;
}

bool normalizer_prepends(const normalizer *n)
{
	bool any = false;
	for (int i = 0; i < n->count; i++)
		any |= n->steps[i].apply == apply_prepend;
	return any;
}

bool normalizer_keeps(const normalizer *n, uint32_t c)
{
	for (int i = 0; i < n->count; i++)
		if ((n->steps[i].apply == apply_chinese && is_chinese(c)) ||
		    (n->steps[i].apply == apply_form && !forms_keeps((form)n->steps[i].option, c)) ||
		    (n->steps[i].apply == apply_lowercase && (uint32_t)utf8proc_tolower((int32_t)c) != c))
			return false;
	return true;
}

/* --- reading ----------------------------------------------------------------------------------------- */

static status copy_text(normalizer_step *step, const json_t *part, const char *path, const char *key, error *err)
{
	const char *text;
	TRY(reading_string(part, path, key, NULL, &text, err));
	if (!text)
		return reading_blame(err, path, "needs a string \"%s\"", key);
	step->bytes = json_string_length(json_object_get(part, key));
	step->text = memory_new(step->bytes + 1, 1);
	if (!step->text)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	memcpy(step->text, text, step->bytes);
	return STATUS_OK;
}

static status read_form(normalizer_step *step, const json_t *part, const char *type, const char *path, error *err)
{
	static const char *const names[] = {
	    [FORM_NFC] = "NFC", [FORM_NFD] = "NFD", [FORM_NFKC] = "NFKC", [FORM_NFKD] = "NFKD"};
	for (int f = 0; f < 4; f++)
		if (strcmp(type, names[f]) == 0) {
			step->apply = apply_form;
			step->option = f;
			return reading_keys(part, path, (const char *const[]){"type", NULL}, err);
		}
	return reading_refuse(err, path, "has the type \"%.40s\", which is not supported", type);
}

static status read_strip(normalizer_step *step, const json_t *part, const char *path, error *err)
{
	bool left, right;
	TRY(reading_keys(part, path, (const char *const[]){"type", "strip_left", "strip_right", NULL}, err));
	TRY(reading_bool(part, path, "strip_left", true, &left, err));
	TRY(reading_bool(part, path, "strip_right", true, &right, err));
	step->apply = apply_strip;
	step->option = (left ? STRIP_LEFT : 0) | (right ? STRIP_RIGHT : 0);
	return STATUS_OK;
}

static status read_precompiled(normalizer_step *step, const json_t *part, const char *path, error *err)
{
	struct base64_decode_ctx decoding;
	const char *text;
	TRY(reading_keys(part, path, (const char *const[]){"type", "precompiled_charsmap", NULL}, err));
	TRY(reading_string(part, path, "precompiled_charsmap", NULL, &text, err));
	const size_t bytes = text ? strlen(text) : 0;
	step->apply = apply_precompiled;
	step->text = memory_new(BASE64_DECODE_LENGTH(bytes) + 1, 1);
	if (!step->text)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	base64_decode_init(&decoding);
	if (!base64_decode_update(&decoding, &step->bytes, (uint8_t *)step->text, bytes, text ? text : "") ||
	    !base64_decode_final(&decoding))
		return reading_blame(err, path, "has a precompiled_charsmap that is not base64");
	if (step->bytes > 0 && !charsmap_read(&step->rules, (unsigned char *)step->text, step->bytes))
		return reading_blame(err, path, "has a precompiled_charsmap that is damaged");
	return STATUS_OK;
}

/* NULL: there are too many. */
static normalizer_step *normalizer_add_step(normalizer *n, const char *path, error *err)
{
	if (n->count < NORMALIZER_MAX_STEPS)
		return &n->steps[n->count++];
	reading_refuse(err, path, "is one of more than %d", NORMALIZER_MAX_STEPS);
	return NULL;
}

/* Up to five steps. */
static status read_bert(normalizer *n, const json_t *part, const char *path, error *err)
{
	static const char *const keys[] = {"type",          "clean_text", "handle_chinese_chars",
	                                   "strip_accents", "lowercase",  NULL};
	bool clean, chinese, accents, lower;
	TRY(reading_keys(part, path, keys, err));
	TRY(reading_bool(part, path, "clean_text", true, &clean, err));
	TRY(reading_bool(part, path, "handle_chinese_chars", true, &chinese, err));
	TRY(reading_bool(part, path, "lowercase", true, &lower, err));
	TRY(reading_bool(part, path, "strip_accents", lower, &accents, err));
	const struct {
		bool exists;
		normalizer_step step;
	} all[] = {{clean, {.apply = apply_clean}},
	           {chinese, {.apply = apply_chinese}},
	           {accents, {.apply = apply_form, .option = FORM_NFD}},
	           {accents, {.apply = apply_strip_marks, .option = 1}},
	           {lower, {.apply = apply_lowercase}}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		normalizer_step *step = all[i].exists ? normalizer_add_step(n, path, err) : NULL;
		if (all[i].exists && !step)
			return STATUS_UNSUPPORTED;
		if (step)
			*step = all[i].step;
	}
	return STATUS_OK;
}

static status normalizer_read_step(void *context, const json_t *part, const char *type, const char *path, error *err)
{
	normalizer *n = context;
	if (strcmp(type, "BertNormalizer") == 0)
		return read_bert(n, part, path, err);
	normalizer_step *step = normalizer_add_step(n, path, err);
	if (!step)
		return STATUS_UNSUPPORTED;
	if (strcmp(type, "Prepend") == 0) {
		step->apply = apply_prepend;
		TRY(reading_keys(part, path, (const char *const[]){"type", "prepend", NULL}, err));
		return copy_text(step, part, path, "prepend", err);
	}
	if (strcmp(type, "Replace") == 0) {
		step->apply = apply_replace;
		TRY(reading_keys(part, path, (const char *const[]){"type", "pattern", "content", NULL}, err));
		TRY(copy_text(step, part, path, "content", err));
		const char *literal = json_string_value(json_object_get(json_object_get(part, "pattern"), "String"));
		step->marks_spaces = literal && strcmp(literal, " ") == 0 && strcmp(step->text, SPACE_MARK) == 0;
		return pattern_read(&step->pattern, part, path, err);
	}
	step->apply = strcmp(type, "Lowercase") == 0      ? apply_lowercase
	              : strcmp(type, "StripAccents") == 0 ? apply_strip_marks
	              : strcmp(type, "Nmt") == 0          ? apply_nmt
	              : strcmp(type, "ByteLevel") == 0    ? apply_byte_level
	                                                  : NULL;
	if (step->apply)
		return reading_keys(part, path, (const char *const[]){"type", NULL}, err);
	if (strcmp(type, "Strip") == 0)
		return read_strip(step, part, path, err);
	if (strcmp(type, "Precompiled") == 0)
		return read_precompiled(step, part, path, err);
	return read_form(step, part, type, path, err);
}

status normalizer_read(normalizer *n, const json_t *part, error *err)
{
	return reading_sequence(part, "normalizer", "normalizers", normalizer_read_step, n, err);
}

void normalizer_fini(normalizer *n)
{
	for (int i = 0; i < n->count; i++) {
		pattern_free(n->steps[i].pattern);
		free(n->steps[i].text);
	}
	n->count = 0;
}

status normalizer_apply(const normalizer *n, pattern_search *search, const text_piece *p, text_buffer room[2],
                        text_piece *out)
{
	*out = *p;
	for (int i = 0; i < n->count; i++) {
		text_buffer *b = &room[i % 2];
		const text_piece before = *out;
		b->bytes = 0;
		TRY(n->steps[i].apply(&n->steps[i], search, &before, b));
		*out = pieces_made(b, &before);
	}
	return STATUS_OK;
}
