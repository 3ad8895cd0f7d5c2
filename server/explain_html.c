/* The page shows one distribution over the tokens at a time. The server draws the first one (the aggregate, or else the
 * first row), so the page says something without scripts; a script of a few lines redraws it for any other row, their
 * mean, and, in the O(N) form, any position. The data travels inside the page as JSON in which every "<" is
 * written as an escape, so no token can end its element.
 *
 * In the O(N) form α_ij = exp(a_j - M_i), j counting down from i, until the weights reach 1: that is where
 * the window begins, which the answer does not say. */
#include "server/explain_html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json_memory.h"
#include "proto/schema.h"

enum { EXPLAIN_TABLE_ROWS = 20 };
static const double explain_whole = 0.9999; /* of a row's weight: the rest is rounding */

static const char explain_style[] =
    ":root{color-scheme:light dark;--heat:232 110 20}"
    "@media(prefers-color-scheme:dark){:root{--heat:176 72 0}}"
    "body{font:1rem/1.6 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "#text{font-family:ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;border:1px "
    "solid;padding:.75rem;border-radius:.25rem}"
    "#text span{background:rgb(var(--heat)/var(--w));border-radius:.15rem}"
    "#text .here{outline:2px solid}"
    "#legend{display:flex;gap:.5rem;align-items:center}"
    "#legend i{width:10rem;height:1rem;border:1px solid;background:linear-gradient(90deg,transparent,rgb(var(--heat)))}"
    "form{display:flex;flex-wrap:wrap;gap:1rem;margin:1rem 0}"
    "table{border-collapse:collapse}td,th{padding:.1rem 1rem .1rem 0;text-align:left}"
    "td:first-child,td:last-child{text-align:right;font-variant-numeric:tabular-nums}"
    "td:nth-child(2){font-family:ui-monospace,monospace;white-space:pre-wrap}";

static const char explain_script[] =
    "'use strict';\n"
    "const "
    "$=id=>document.getElementById(id),d=JSON.parse($('data').textContent),all=d.position==='all',n=d.tokens.length;\n"
    "const "
    "shown=t=>t.text===''?'\\u00b7':t.text.replaceAll('\\n','\\u21b5\\n').replaceAll('\\0','\\u2400'),percent=w=>(100*"
    "w).toFixed(2)+' %';\n"
    "const rows=d.weights||[],views=[];\n"
    "function weights(row,p){\n"
    " const out=new Array(n).fill(0);\n"
    " if(row.alpha)row.alpha.forEach((w,i)=>out[row.window[0]+i]=w);\n"
    " else for(let j=p,sum=0;j>=0&&sum<.9999;j--)sum+=out[j]=Math.exp(row.score[j]-row.log_normalizer[p]);\n"
    " return out;\n"
    "}\n"
    "function mean(p){\n"
    " const out=new Array(n).fill(0);\n"
    " for(const row of rows)weights(row,p).forEach((w,i)=>out[i]+=w/rows.length);\n"
    " return out;\n"
    "}\n"
    "function show(){\n"
    " const "
    "p=all?Math.min(n-1,Math.max(0,$('position').valueAsNumber||0)):d.position,w=views[$('view').value](p),max=w."
    "reduce((a,b)=>Math.max(a,b),1e-30);\n"
    " document.querySelectorAll('#text span').forEach((s,i)=>{s.style.setProperty('--w',(w[i]||0)/max);s.title='token "
    "'+i+': '+percent(w[i]||0);"
    "s.classList.toggle('here',i===p);});\n"
    " $('max').textContent=percent(max);\n"
    " const best=[...w.keys()].sort((a,b)=>w[b]-w[a]).slice(0,20).filter(i=>w[i]>0);\n"
    " $('rows').replaceChildren(...best.map(i=>{const tr=document.createElement('tr');"
    "for(const x of [i,shown(d.tokens[i]),percent(w[i])]){const "
    "td=document.createElement('td');td.textContent=x;tr.append(td);}return tr;}));\n"
    "}\n"
    "function add(parent,name,view){const o=new Option(name,views.push(view)-1);parent.append(o);}\n"
    "if(d.aggregate)add($('view'),d.aggregate.method,()=>d.aggregate.alpha.concat(new "
    "Array(n-d.aggregate.alpha.length).fill(0)));\n"
    "let group=null,layer=-1;\n"
    "for(const row of rows){\n"
    " if(row.layer!==layer){group=document.createElement('optgroup');group.label='layer "
    "'+(layer=row.layer);$('view').append(group);}\n"
    " add(group,'layer '+row.layer+', head '+row.head+', '+row.round,p=>weights(row,p));\n"
    "}\n"
    "if(rows.length>1)add($('view'),'mean of these '+rows.length+' rows',mean);\n"
    "if(views.length){$('choose').hidden=false;$('choose').addEventListener('input',show);show();}\n";

void explain_html_escape(buffer *out, const char *text)
{
	for (const char *c = text; *c; c++) {
		switch (*c) {
		case '&':
			buffer_string(out, "&amp;");
			break;
		case '<':
			buffer_string(out, "&lt;");
			break;
		case '>':
			buffer_string(out, "&gt;");
			break;
		case '"':
			buffer_string(out, "&quot;");
			break;
		case '\'':
			buffer_string(out, "&#39;");
			break;
		default:
			buffer_append(out, c, 1);
		}
	}
}

/* --- the distribution to begin with ---------------------------------------------------------- */

typedef struct distribution {
	double *weight; /* [n] */
	size_t n;
	size_t position;
	double max;
	char name[96];
} distribution;

static void explain_from_alpha(distribution *d, const json_t *alpha, json_int_t first)
{
	for (size_t i = 0; first >= 0 && i < json_array_size(alpha) && (size_t)first + i < d->n; i++)
		d->weight[(size_t)first + i] = json_number_value(json_array_get(alpha, i));
}

static void explain_from_scores(distribution *d, const json_t *row)
{
	const json_t *scores = json_object_get(row, "score");
	double m = json_number_value(json_array_get(json_object_get(row, "log_normalizer"), d->position));
	double sum = 0;
	for (size_t j = d->position + 1; j-- > 0 && sum < explain_whole;)
		sum += d->weight[j] = exp(json_number_value(json_array_get(scores, j)) - m);
}

static void explain_choose(distribution *d, const json_t *explanation)
{
	const json_t *aggregate = json_object_get(explanation, "aggregate");
	const json_t *row = json_array_get(json_object_get(explanation, "weights"), 0);
	const char *method = json_string_value(json_object_get(aggregate, "method"));
	const char *round = json_string_value(json_object_get(row, "round"));
	if (method) {
		snprintf(d->name, sizeof d->name, "%.32s", method);
		explain_from_alpha(d, json_object_get(aggregate, "alpha"), 0);
	} else if (row) {
		snprintf(d->name, sizeof d->name, "layer %lld, head %lld, %.32s",
		         (long long)json_integer_value(json_object_get(row, "layer")),
		         (long long)json_integer_value(json_object_get(row, "head")), round ? round : "");
		if (json_object_get(row, "alpha"))
			explain_from_alpha(d, json_object_get(row, "alpha"),
			                   json_integer_value(json_array_get(json_object_get(row, "window"), 0)));
		else
			explain_from_scores(d, row);
	}
	for (size_t i = 0; i < d->n; i++) {
		if (!(d->weight[i] >= 0 && d->weight[i] <= 1))
			d->weight[i] = 0;
		if (d->weight[i] > d->max)
			d->max = d->weight[i];
	}
}

/* --- the parts of the page --------------------------------------------------------------------- */

/* A token as it is shown: something visible for nothing, and for the end of a line. */
static void explain_write_token(buffer *out, const json_t *tokens, size_t i)
{
	const json_t *text = json_object_get(json_array_get(tokens, i), "text");
	const char *first = json_string_value(text), *end = first + json_string_length(text);
	if (first == end) {
		buffer_string(out, "·");
		return;
	}
	char one[2] = "";
	for (const char *c = first; c < end; c++) {
		if (*c == '\n')
			buffer_string(out, "↵");
		if (*c == '\0')
			buffer_string(out, "␀"); /* no page may hold U+0000 */
		one[0] = *c;
		explain_html_escape(out, one);
	}
}

static void explain_write_tokens(buffer *out, const json_t *tokens, const distribution *d)
{
	buffer_string(out, "<div id=\"text\">");
	for (size_t i = 0; i < d->n; i++) {
		buffer_format(out, "<span style=\"--w:%.4g\" title=\"token %zu: %.2f %%\"%s>",
		              d->max > 0 ? d->weight[i] / d->max : 0.0, i, 100 * d->weight[i],
		              i == d->position ? " class=\"here\"" : "");
		explain_write_token(out, tokens, i);
		buffer_string(out, "</span>");
	}
	buffer_string(out, "</div>\n");
}

static void explain_write_table(buffer *out, const json_t *tokens, const distribution *d)
{
	buffer_string(out,
	              "<table><caption>The heaviest tokens</caption><thead><tr><th scope=\"col\">Position</th>"
	              "<th scope=\"col\">Token</th><th scope=\"col\">Weight</th></tr></thead><tbody id=\"rows\">\n");
	double last = HUGE_VAL;
	size_t last_i = 0;
	for (int row = 0; row < EXPLAIN_TABLE_ROWS; row++) {
		size_t best = d->n;
		for (size_t i = 0; i < d->n; i++) { /* the next one in order of weight, then position */
			bool after = d->weight[i] < last || (d->weight[i] == last && i > last_i);
			if (after && d->weight[i] > 0 && (best == d->n || d->weight[i] > d->weight[best]))
				best = i;
		}
		if (best == d->n)
			break;
		last = d->weight[best];
		last_i = best;
		buffer_format(out, "<tr><td>%zu</td><td>", best);
		explain_write_token(out, tokens, best);
		buffer_format(out, "</td><td>%.2f %%</td></tr>\n", 100 * last);
	}
	buffer_string(out, "</tbody></table>\n");
}

static void explain_write_data(buffer *out, const json_t *explanation)
{
	char *text = json_memory_print(explanation, PROTO_JSON);
	if (!text) {
		out->failed = true;
		return;
	}
	for (const char *at = text; *at;) {
		size_t bytes = strcspn(at, "<");
		buffer_append(out, at, bytes);
		at += bytes;
		if (*at == '<') {
			buffer_string(out, "\\u003c");
			at++;
		}
	}
	free(text);
}

static void explain_write_controls(buffer *out, const distribution *d, bool all)
{
	buffer_string(out, "<form id=\"choose\" hidden><label>Show <select id=\"view\"></select></label>");
	if (all)
		buffer_format(out,
		              " <label>Position <input id=\"position\" type=\"number\" min=\"0\" max=\"%zu\" "
		              "value=\"%zu\"></label>",
		              d->position, d->position);
	buffer_string(out, "</form>\n<noscript><p>Shown: ");
	explain_html_escape(out, d->name);
	buffer_string(out, ". The other rows need scripts.</p></noscript>\n");
}

void explain_html_write(const json_t *explanation, const char *nonce, buffer *out)
{
	const json_t *tokens = json_object_get(explanation, "tokens"),
	             *position = json_object_get(explanation, "position");
	const char *model = json_string_value(json_object_get(explanation, "model"));
	distribution d = {.n = json_array_size(tokens)};
	d.weight = calloc(d.n + 1, sizeof *d.weight);
	if (!d.weight) {
		out->failed = true;
		return;
	}
	d.position = d.n > 0 ? d.n - 1 : 0;
	if (json_is_integer(position) && json_integer_value(position) >= 0 &&
	    (size_t)json_integer_value(position) < d.n)
		d.position = (size_t)json_integer_value(position);
	explain_choose(&d, explanation);

	buffer_format(out,
	              "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
	              "content=\"width=device-width\">"
	              "<title>Token weights</title>\n<style>%s</style></head>\n<body><main><h1>Token weights</h1>\n<p>",
	              explain_style);
	if (model) {
		buffer_string(out, "Model <code>");
		explain_html_escape(out, model);
		buffer_string(out, "</code>, ");
	}
	buffer_format(
	    out,
	    "%zu tokens. The stronger the colour, the larger the weight that the model's mixer gave that token "
	    "at the outlined one; the "
	    "weights of one row sum to 100 %%.</p>\n",
	    d.n);
	explain_write_controls(out, &d, json_is_string(position));
	explain_write_tokens(out, tokens, &d);
	buffer_format(out,
	              "<p id=\"legend\"><span>0 %%</span><i role=\"presentation\"></i><span id=\"max\" "
	              "aria-live=\"polite\">%.2f %%</span></p>\n",
	              100 * d.max);
	explain_write_table(out, tokens, &d);
	buffer_string(out, "</main>\n<script type=\"application/json\" id=\"data\">");
	explain_write_data(out, explanation);
	buffer_format(out, "</script>\n<script nonce=\"%s\">%s</script></body></html>\n", nonce, explain_script);
	free(d.weight);
}
