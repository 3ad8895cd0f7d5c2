#include "engine/recipe/model_card_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/recipe/model_card.h"

static const char *member_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

/* --- text from elsewhere ------------------------------------------------------------------ */

/* Return the length of a fence around `text`: at least `least`, and longer than each run of backticks. */
static int fence_length(const char *text, int least)
{
	int run = 0;
	for (; *text; text++) {
		run = *text == '`' ? run + 1 : 0;
		least = run >= least ? run + 1 : least;
	}
	return least;
}

static void put_fence(FILE *page, int length)
{
	while (length-- > 0)
		putc('`', page);
}

static char without_control(char c)
{
	return (unsigned char)c < ' ' || c == 0x7f ? ' ' : c;
}

/* A backtick at an end would join the fence, so a space is put before and after the text. A reader removes both, unless
 * all of the text is blank. */
static void put_span(FILE *page, const char *text)
{
	const int length = fence_length(text, 1);
	bool blank = true;
	for (const char *c = text; *c; c++)
		blank = blank && without_control(*c) == ' ';
	put_fence(page, length);
	fputs(blank && *text ? "" : " ", page); /* a span is not empty */
	for (const char *c = text; *c; c++)
		putc(without_control(*c), page);
	fputs(blank ? "" : " ", page);
	put_fence(page, length);
}

/* False: out of memory. */
static bool put_json(FILE *page, const char *title, const json_t *object)
{
	if (!json_is_object(object))
		return true;
	char *text = json_text(object, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
	if (!text)
		return false;
	const int length = fence_length(text, 3);
	fprintf(page, "\n## %s\n\n", title);
	put_fence(page, length);
	fprintf(page, "json\n%s\n", text);
	put_fence(page, length);
	putc('\n', page);
	free(text);
	return true;
}

/* --- parts of the page ---------------------------------------------------------------------- */

/* True if the name has the form of a Hub id without a namespace. Others, such as "ft:additive:…", the Hub refuses. */
static bool is_hub_id(const char *name)
{
	static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	const size_t n = strlen(name);
	return n > 0 && strspn(name, legal) == n && !strchr(".-", name[0]) && !strchr(".-", name[n - 1]) &&
	       !strstr(name, "--") && !strstr(name, "..");
}

/* The name is quoted: "1e3" or "null" would not be a string. */
static void put_front_matter(FILE *page, const json_t *card)
{
	const char *parent = member_text(json_array_get(json_object_get(card, "parents"), 0), "model");
	fputs("---\nlibrary_name: additive\n", page);
	if (is_hub_id(parent))
		fprintf(page, "base_model: \"%s\"\n", parent);
	if (json_is_string(json_object_get(card, "license")))
		fputs("license: other\nlicense_name: license-file\nlicense_link: " MODEL_CARD_LICENSE "\n", page);
	fputs("---\n\n", page);
}

static void put_parents(FILE *page, const json_t *parents)
{
	size_t i;
	const json_t *parent;
	if (json_array_size(parents) > 0)
		fputs("\n## Parents\n\nThe nearest is first.\n\n", page);
	json_array_foreach(parents, i, parent)
	{
		fprintf(page, "- %s ",
		        strcmp(member_text(parent, "relation"), MODEL_CARD_IMPORTED) == 0 ? "imported from"
		                                                                          : "trained from");
		put_span(page, member_text(parent, "model"));
		putc('\n', page);
	}
}

static void put_files(FILE *page, const json_t *files)
{
	size_t i;
	const json_t *file;
	if (json_array_size(files) > 0)
		fputs("\n## Files\n\n", page);
	json_array_foreach(files, i, file)
	{
		const char *sum = member_text(file, "sha256"), *name = member_text(file, "filename");
		fprintf(page, "- %s: ", member_text(file, "use"));
		put_span(page, *name ? name : member_text(file, "id"));
		if (*name)
			fprintf(page, ", %lld bytes", (long long)json_integer_value(json_object_get(file, "bytes")));
		if (*sum)
			fprintf(page, ", SHA-256 `%s`", sum);
		putc('\n', page);
	}
}

/* False: out of memory. */
static bool put_page(FILE *page, const json_t *card)
{
	put_front_matter(page, card);
	fputs("# ", page);
	put_span(page, member_text(card, "id"));
	fprintf(page, "\n\n%s by Additive. `" MODEL_CARD_FILE "` has the same for programs.\n",
	        strcmp(member_text(card, "source"), "import") == 0 ? "Imported" : "Trained");
	if (json_is_object(json_object_get(card, "origin")))
		fputs("It also has the card of the model that was exported, as the import brought it.\n", page);
	put_parents(page, json_object_get(card, "parents"));
	put_files(page, json_object_get(card, "files"));
	return put_json(page, "Results", json_object_get(card, "results")) &&
	       put_json(page, "Request", json_object_get(card, "recipe")) &&
	       put_json(page, "Settings", json_object_get(card, "resolved"));
}

char *model_card_page(const json_t *card)
{
	char *text = NULL;
	size_t bytes;
	FILE *page = open_memstream(&text, &bytes);
	if (!page)
		return NULL;
	bool whole = put_page(page, card);
	whole = !ferror(page) && whole;
	if (fclose(page) == 0 && whole)
		return text;
	free(text);
	return NULL;
}
