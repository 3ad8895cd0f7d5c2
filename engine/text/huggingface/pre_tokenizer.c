#include "engine/text/huggingface/pre_tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "engine/text/huggingface/reading.h"

/* --- cutting ---------------------------------------------------------------------------------- */

/* The following step, or the end of the chain. */
static status hand_on(pre_tokenizer_run *run, int step, const text_piece *p)
{
	if (p->bytes == 0)
		return STATUS_OK;
	if (step + 1 == run->steps->count)
		return run->word(run->context, p);
	return run->steps->steps[step + 1].apply(run, step + 1, p);
}

static status hand_on_part(pre_tokenizer_run *run, int step, const text_piece *p, size_t first, size_t end)
{
	const text_piece part = pieces_part(p, first, end - first);
	return hand_on(run, step, &part);
}

/* Parts of a piece while they are joined to their neighbours. */
typedef struct joiner {
	pre_tokenizer_run *run;
	int step;
	const text_piece *p;
	size_t first, end; /* the part that waits */
	bool waits, delimiter;
} joiner;

static status flush(joiner *j)
{
	const bool waits = j->waits;
	j->waits = false;
	return waits ? hand_on_part(j->run, j->step, j->p, j->first, j->end) : STATUS_OK;
}

/* True if a part belongs to the waiting one. */
static bool joins(const joiner *j, split_behavior behavior, bool delimiter)
{
	switch (behavior) {
	case SPLIT_CONTIGUOUS:
		return delimiter == j->delimiter;
	case SPLIT_MERGED_WITH_PREVIOUS:
		return delimiter && !j->delimiter;
	case SPLIT_MERGED_WITH_NEXT:
		return !delimiter && j->delimiter;
	default:
		return false;
	}
}

static status pre_tokenizer_join(joiner *j, split_behavior behavior, size_t first, size_t end, bool delimiter)
{
	if (behavior == SPLIT_REMOVED && delimiter)
		return STATUS_OK;
	if (j->waits && joins(j, behavior, delimiter)) {
		j->end = end;
		j->delimiter = delimiter;
		return STATUS_OK;
	}
	TRY(flush(j));
	j->first = first;
	j->end = end;
	j->delimiter = delimiter;
	j->waits = true;
	return STATUS_OK;
}

static status apply_split(pre_tokenizer_run *run, int step, const text_piece *p)
{
	const pre_tokenizer_step *s = &run->steps->steps[step];
	pattern_walk walk = {.pattern = s->pattern, .text = p->text, .bytes = p->bytes};
	joiner j = {.run = run, .step = step, .p = p};
	size_t at = 0;
	for (;;) {
		bool found;
		byte_range match;
		TRY(pattern_next(&walk, run->search, &found, &match));
		const size_t until = found ? match.first : p->bytes;
		if (until > at)
			TRY(pre_tokenizer_join(&j, s->behavior, at, until, s->invert));
		if (!found)
			return flush(&j);
		at = match.first + match.bytes;
		TRY(pre_tokenizer_join(&j, s->behavior, match.first, at, !s->invert));
	}
}

/* The common case without the joiner: every match and all between two of them are pieces. */
static status apply_isolated(pre_tokenizer_run *run, int step, const text_piece *p)
{
	pattern_walk walk = {.pattern = run->steps->steps[step].pattern, .text = p->text, .bytes = p->bytes};
	size_t at = 0;
	for (;;) {
		bool found;
		byte_range match;
		TRY(pattern_next(&walk, run->search, &found, &match));
		TRY(hand_on_part(run, step, p, at, found ? match.first : p->bytes));
		if (!found)
			return STATUS_OK;
		at = match.first + match.bytes;
		TRY(hand_on_part(run, step, p, match.first, at));
	}
}

/* --- changing ------------------------------------------------------------------------------------ */

/* Add text before the first byte of a piece, without an origin. */
static status put_before(text_buffer *b, const text_piece *p, const char *text, size_t bytes)
{
	return pieces_put(b, text, bytes, (byte_range){pieces_origin(p, 0, 1).first, 0});
}

static status apply_prefix_space(pre_tokenizer_run *run, int step, const text_piece *p)
{
	if (p->text[0] == ' ' || p->continues)
		return hand_on(run, step, p);
	text_buffer *b = &run->changed[step];
	b->bytes = 0;
	TRY(put_before(b, p, " ", 1));
	TRY(pieces_copy(b, p, 0, p->bytes));
	const text_piece made = pieces_made(b, p);
	return hand_on(run, step, &made);
}

enum { METASPACE_ALWAYS, METASPACE_FIRST, METASPACE_NEVER };

static status apply_metaspace(pre_tokenizer_run *run, int step, const text_piece *p)
{
	const pre_tokenizer_step *s = &run->steps->steps[step];
	text_buffer *b = &run->changed[step];
	const bool begins = p->text[0] == ' ' || (p->bytes >= s->replacement_bytes &&
	                                          memcmp(p->text, s->replacement, s->replacement_bytes) == 0);
	b->bytes = 0;
	if (!begins && !p->continues && (s->scheme == METASPACE_ALWAYS || (s->scheme == METASPACE_FIRST && p->first)))
		TRY(put_before(b, p, s->replacement, s->replacement_bytes));
	for (size_t at = 0; at < p->bytes;) {
		const char *space = memchr(p->text + at, ' ', p->bytes - at);
		const size_t until = space ? (size_t)(space - p->text) : p->bytes;
		TRY(pieces_copy(b, p, at, until - at));
		if (space)
			TRY(pieces_put(b, s->replacement, s->replacement_bytes, pieces_origin(p, until, 1)));
		at = until + 1;
	}
	const text_piece made = pieces_made(b, p);
	return hand_on(run, step, &made);
}

status pre_tokenizer_apply(pre_tokenizer_run *run, const text_piece *p, bool mapped)
{
	for (int i = 0; i < run->steps->count; i++) {
		run->changed[i].mapped = mapped;
		run->changed[i].limit = run->limit;
	}
	return hand_on(run, -1, p);
}

void pre_tokenizer_run_fini(pre_tokenizer_run *run)
{
	for (int i = 0; i < PRE_TOKENIZER_MAX_STEPS; i++)
		pieces_fini(&run->changed[i]);
}

/* --- dividing before a space ------------------------------------------------------------------------ */

division pre_tokenizer_divides(const pre_tokenizer *t, space_form *space)
{
	for (int i = 0; i < t->count; i++) {
		const pre_tokenizer_step *s = &t->steps[i];
		if (s->apply == apply_prefix_space && *space == SPACE_KEPT) /* text that begins with a space gets no
		                                                             * other */
			continue;
		const bool marks = s->apply == apply_metaspace;
		if (marks && memcmp(s->replacement, SPACE_MARK, sizeof s->replacement) != 0)
			return DIVISION_UNKNOWN;
		if (marks)
			*space = SPACE_MARKED;
		const division d = marks ? DIVISION_NONE : *space == SPACE_MARKED ? s->marks : s->spaces;
		if (d != DIVISION_NONE)
			return d;
	}
	return DIVISION_NONE;
}

/* --- reading ------------------------------------------------------------------------------------------ */

/* NULL: there are too many. */
static pre_tokenizer_step *pre_tokenizer_add_step(pre_tokenizer *t, const char *path, error *err)
{
	if (t->count < PRE_TOKENIZER_MAX_STEPS)
		return &t->steps[t->count++];
	reading_refuse(err, path, "has more than %d steps", PRE_TOKENIZER_MAX_STEPS);
	return NULL;
}

/* A step that cuts by a pattern of our own. */
static status add_split(pre_tokenizer *t, const char *own, split_behavior behavior, division spaces, division marks,
                        const char *path, error *err)
{
	pre_tokenizer_step *step = pre_tokenizer_add_step(t, path, err);
	if (!step)
		return STATUS_UNSUPPORTED;
	step->behavior = behavior;
	step->spaces = spaces;
	step->marks = marks;
	step->apply = behavior == SPLIT_ISOLATED ? apply_isolated : apply_split;
	return pattern_own(&step->pattern, own, err);
}

static status read_byte_level(pre_tokenizer *t, const json_t *part, const char *path, error *err)
{
	static const char words[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+|"
	                            "\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+";
	bool space, regex, trim;
	TRY(reading_keys(part, path,
	                 (const char *const[]){"type", "add_prefix_space", "trim_offsets", "use_regex", NULL}, err));
	TRY(reading_bool(part, path, "add_prefix_space", true, &space, err));
	TRY(reading_bool(part, path, "use_regex", true, &regex, err));
	TRY(reading_bool(part, path, "trim_offsets", true, &trim, err)); /* concerns offsets alone */
	if (space) {
		pre_tokenizer_step *step = pre_tokenizer_add_step(t, path, err);
		if (!step)
			return STATUS_UNSUPPORTED;
		step->apply = apply_prefix_space;
	}
	if (regex)
		TRY(add_split(t, words, SPLIT_ISOLATED, DIVISION_BEFORE, DIVISION_UNKNOWN, path, err));
	t->byte_level = true;
	return STATUS_OK;
}

static status read_behavior(const json_t *part, const char *path, split_behavior *out, error *err)
{
	static const char *const names[] = {[SPLIT_REMOVED] = "Removed",
	                                    [SPLIT_ISOLATED] = "Isolated",
	                                    [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
	                                    [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
	                                    [SPLIT_CONTIGUOUS] = "Contiguous"};
	const char *name;
	TRY(reading_string(part, path, "behavior", "", &name, err));
	for (int i = 0; i < 5; i++)
		if (strcmp(name, names[i]) == 0) {
			*out = (split_behavior)i;
			return STATUS_OK;
		}
	return reading_refuse(err, path, "has the behavior \"%.40s\", which is not supported", name);
}

/* Set how a known pattern divides text; other patterns are left unknown. */
static void divide_by_pattern(pre_tokenizer_step *step, const json_t *of)
{
	const char *literal = json_string_value(json_object_get(of, "String"));
	const json_t *regex = json_object_get(of, "Regex");
	/* Every match stays a part of its own, and nothing is lost. */
	const bool keeps = step->behavior == SPLIT_ISOLATED || (step->behavior == SPLIT_REMOVED && step->invert);
	if (literal && strcmp(literal, " ") == 0) /* it never matches where all spaces are marks */
		step->marks = DIVISION_NONE;
	if (!json_is_string(regex) || !keeps)
		return;
	step->spaces = word_pattern_divides(json_string_value(regex), json_string_length(regex));
	if (step->spaces == DIVISION_NONE && step->behavior == SPLIT_REMOVED)
		step->spaces = DIVISION_UNKNOWN;
	if (step->spaces == DIVISION_NONE)
		step->marks = DIVISION_NONE;
}

static status read_split(pre_tokenizer *t, const json_t *part, const char *path, error *err)
{
	TRY(reading_keys(part, path, (const char *const[]){"type", "pattern", "behavior", "invert", NULL}, err));
	pre_tokenizer_step *step = pre_tokenizer_add_step(t, path, err);
	if (!step)
		return STATUS_UNSUPPORTED;
	TRY(read_behavior(part, path, &step->behavior, err));
	TRY(reading_bool(part, path, "invert", false, &step->invert, err));
	step->apply = step->behavior == SPLIT_ISOLATED ? apply_isolated : apply_split;
	divide_by_pattern(step, json_object_get(part, "pattern"));
	return pattern_read(&step->pattern, part, path, err);
}

#define PUNCTUATION "[\\p{P}$+<=>^`|~]"
#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}"
#define WORD "[" WORD_SET "]"

/* A character that is cut out. */
static status read_delimiter(pre_tokenizer *t, const json_t *part, const char *path, error *err)
{
	const char *text;
	size_t bytes = 0;
	TRY(reading_keys(part, path, (const char *const[]){"type", "delimiter", NULL}, err));
	TRY(reading_string(part, path, "delimiter", "", &text, err));
	if (!text[0] || (pieces_first(text, &bytes), strlen(text) != bytes))
		return reading_blame(err, path, "needs one character as \"delimiter\"");
	pre_tokenizer_step *step = pre_tokenizer_add_step(t, path, err);
	if (!step)
		return STATUS_UNSUPPORTED;
	step->behavior = SPLIT_REMOVED;
	step->apply = apply_split;
	return pattern_new(&step->pattern, text, bytes, true, path, err);
}

static status read_fixed_length(pre_tokenizer *t, const json_t *part, const char *path, error *err)
{
	char own[32];
	const json_t *length = json_object_get(part, "length");
	TRY(reading_keys(part, path, (const char *const[]){"type", "length", NULL}, err));
	if (!json_is_integer(length) || json_integer_value(length) < 1 || json_integer_value(length) > UINT16_MAX)
		return reading_refuse(err, path, "needs a number from 1 to %d as \"length\"", UINT16_MAX);
	snprintf(own, sizeof own, "(?s).{1,%d}", (int)json_integer_value(length));
	return add_split(t, own, SPLIT_ISOLATED, DIVISION_UNKNOWN, DIVISION_UNKNOWN, path, err);
}

static status read_scheme(const json_t *part, const char *path, int *out, error *err)
{
	const char *scheme;
	bool prefix;
	TRY(reading_string(part, path, "prepend_scheme", "always", &scheme, err));
	TRY(reading_bool(part, path, "add_prefix_space", true, &prefix, err));
	*out = strcmp(scheme, "always") == 0  ? METASPACE_ALWAYS
	       : strcmp(scheme, "first") == 0 ? METASPACE_FIRST
	       : strcmp(scheme, "never") == 0 ? METASPACE_NEVER
	                                      : -1;
	if (*out < 0)
		return reading_refuse(err, path, "has the prepend_scheme \"%.40s\", which is not supported", scheme);
	if (!prefix && *out != METASPACE_NEVER)
		return reading_blame(err, path, "has add_prefix_space false, and another prepend_scheme");
	return STATUS_OK;
}

static status read_metaspace(pre_tokenizer *t, const json_t *part, const char *path, error *err)
{
	const char *replacement;
	bool split;
	TRY(reading_keys(part, path,
	                 (const char *const[]){"type", "replacement", "prepend_scheme", "split", "add_prefix_space",
	                                       "str_rep", NULL},
	                 err));
	pre_tokenizer_step *step = pre_tokenizer_add_step(t, path, err);
	if (!step)
		return STATUS_UNSUPPORTED;
	step->apply = apply_metaspace;
	TRY(read_scheme(part, path, &step->scheme, err));
	TRY(reading_bool(part, path, "split", true, &split, err));
	TRY(reading_string(part, path, "replacement", "\xE2\x96\x81", &replacement, err));
	if (!replacement[0] ||
	    (pieces_first(replacement, &step->replacement_bytes), strlen(replacement) != step->replacement_bytes))
		return reading_blame(err, path, "needs one character as \"replacement\"");
	memcpy(step->replacement, replacement, step->replacement_bytes);
	if (!split)
		return STATUS_OK;
	const pre_tokenizer_step *before = step;
	step = pre_tokenizer_add_step(t, path, err);
	if (!step)
		return STATUS_UNSUPPORTED;
	step->behavior = SPLIT_MERGED_WITH_NEXT;
	step->apply = apply_split;
	step->marks = DIVISION_BEFORE;
	return pattern_new(&step->pattern, before->replacement, before->replacement_bytes, true, path, err);
}

static status pre_tokenizer_read_step(void *context, const json_t *part, const char *type, const char *path, error *err)
{
	pre_tokenizer *t = context;
	static const char *const plain[] = {"type", NULL};
	if (t->byte_level)
		return reading_refuse(err, path, "stands behind ByteLevel, which is not supported");
	if (strcmp(type, "ByteLevel") == 0)
		return read_byte_level(t, part, path, err);
	if (strcmp(type, "Split") == 0)
		return read_split(t, part, path, err);
	if (strcmp(type, "Digits") == 0) {
		bool individual;
		TRY(reading_keys(part, path, (const char *const[]){"type", "individual_digits", NULL}, err));
		TRY(reading_bool(part, path, "individual_digits", false, &individual, err));
		return add_split(t, "\\p{N}", individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, DIVISION_NONE,
		                 DIVISION_NONE, path, err);
	}
	if (strcmp(type, "Metaspace") == 0)
		return read_metaspace(t, part, path, err);
	if (strcmp(type, "Punctuation") == 0) {
		split_behavior behavior = SPLIT_ISOLATED;
		TRY(reading_keys(part, path, (const char *const[]){"type", "behavior", NULL}, err));
		if (json_object_get(part, "behavior"))
			TRY(read_behavior(part, path, &behavior, err));
		return add_split(t, PUNCTUATION, behavior, DIVISION_NONE, DIVISION_NONE, path, err);
	}
	if (strcmp(type, "CharDelimiterSplit") == 0)
		return read_delimiter(t, part, path, err);
	if (strcmp(type, "FixedLength") == 0)
		return read_fixed_length(t, part, path, err);
	if (strcmp(type, "WhitespaceSplit") == 0 || strcmp(type, "BertPreTokenizer") == 0) {
		TRY(reading_keys(part, path, plain, err));
		TRY(add_split(t, "\\p{White_Space}", SPLIT_REMOVED, DIVISION_BEFORE, DIVISION_NONE, path, err));
		return type[0] == 'W'
		           ? STATUS_OK
		           : add_split(t, PUNCTUATION, SPLIT_ISOLATED, DIVISION_NONE, DIVISION_NONE, path, err);
	}
	if (strcmp(type, "Whitespace") == 0) {
		TRY(reading_keys(part, path, plain, err));
		TRY(add_split(t, WORD "+|[^" WORD_SET "\\p{White_Space}]+", SPLIT_REMOVED, DIVISION_BEFORE,
		              DIVISION_UNKNOWN, path, err));
		t->steps[t->count - 1].invert = true;
		return STATUS_OK;
	}
	return reading_refuse(err, path, "has the type \"%.40s\", which is not supported", type);
}

status pre_tokenizer_read(pre_tokenizer *t, const json_t *part, error *err)
{
	return reading_sequence(part, "pre_tokenizer", "pretokenizers", pre_tokenizer_read_step, t, err);
}

void pre_tokenizer_fini(pre_tokenizer *t)
{
	for (int i = 0; i < t->count; i++)
		pattern_free(t->steps[i].pattern);
	t->count = 0;
}
