/* completion.c - shell scripts that complete this program's command lines (`completion`), and the command that they
 * call for each word (`complete`). The tables are read in the program itself, so a script never becomes outdated. */
#include <stdlib.h>
#include <string.h>

#include "clients/cli/complete.h"

enum { ASK_MS = 800, MOST_WORDS = 1 << 16 };

/* Bash divides words at = and : too: pieces without white space between them belong together, and only the last piece
 * is replaced. */
static const char bash[] =
    "# completion of additive for bash: source this, or install it as bash-completion/completions/additive\n"
    "_additive() {\n"
    "\tlocal line=${COMP_LINE:0:COMP_POINT} words=() piece= kept word kind i\n"
    "\tfor ((i = 0; i <= COMP_CWORD; i++)); do\n"
    "\t\tif [[ $i -eq 0 || $line == [[:space:]]* ]]; then\n"
    "\t\t\tline=${line#\"${line%%[![:space:]]*}\"}\n"
    "\t\t\twords+=(\"\")\n"
    "\t\tfi\n"
    "\t\tpiece=${COMP_WORDS[i]}\n"
    "\t\t((i == COMP_CWORD)) && piece=$line\n"
    "\t\twords[${#words[@]}-1]+=$piece\n"
    "\t\tline=${line#\"$piece\"}\n"
    "\tdone\n"
    "\tword=${words[${#words[@]}-1]}\n"
    "\tkept=${word%\"$piece\"}\n"
    "\t[[ $piece == *[!:=]* ]] || kept=$word\n"
    "\tCOMPREPLY=()\n"
    "\t{\n"
    "\t\tIFS= read -r kind\n"
    "\t\twhile IFS=$'\\t' read -r word _; do COMPREPLY+=(\"${word#\"$kept\"}\"); done\n"
    "\t} < <(\"${words[0]}\" complete -- \"${words[@]:1}\" 2>/dev/null)\n"
    "\t[[ $kind == words ]] && return\n"
    "\t[[ $kind == folders ]] && i=-d || i=-f\n"
    "\tword=${words[${#words[@]}-1]#\"$kept\"}\n"
    "\twhile IFS= read -r word; do COMPREPLY+=(\"$word\"); done < <(compgen $i -- \"$word\")\n"
    "\tcompopt -o filenames 2>/dev/null\n"
    "}\n"
    "complete -F _additive additive\n";

static const char zsh[] =
    "#compdef additive\n"
    "# completion of additive for zsh: source this after compinit, or install it as _additive on $fpath\n"
    "_additive() {\n"
    "\tlocal -a lines offers\n"
    "\tlocal kind one name\n"
    "\tlines=(\"${(@f)$(\"${words[1]}\" complete -- \"${(@)words[2,CURRENT-1]}\" \"$PREFIX\" 2>/dev/null)}\")\n"
    "\tkind=$lines[1]\n"
    "\tfor one in \"${(@)lines[2,-1]}\"; do\n"
    "\t\tname=${one%%$'\\t'*}\n"
    "\t\toffers+=(\"${name//:/\\\\:}:${one#*$'\\t'}\")\n"
    "\tdone\n"
    "\t(($#offers)) && _describe additive offers\n"
    "\t[[ $kind != words && $PREFIX == --*=* ]] && compset -P '*='\n"
    "\t[[ $kind == files ]] && _files\n"
    "\t[[ $kind == folders ]] && _files -/\n"
    "\treturn 0\n"
    "}\n"
    "if [[ $funcstack[1] == _additive ]]; then\n"
    "\t_additive \"$@\"\n"
    "else\n"
    "\tcompdef _additive additive\n"
    "fi\n";

static const char fish[] =
    "# completion of additive for fish: source this, or install it as vendor_completions.d/additive.fish\n"
    "function __additive_complete\n"
    "\tset -l words (commandline -opc)\n"
    "\tset -l last (commandline -ct)\n"
    "\tset -l lines (command $words[1] complete -- $words[2..-1] \"$last\" 2>/dev/null)\n"
    "\tor return\n"
    "\tswitch $lines[1]\n"
    "\t\tcase files\n"
    "\t\t\t__fish_complete_path \"$last\"\n"
    "\t\tcase folders\n"
    "\t\t\t__fish_complete_directories \"$last\" ''\n"
    "\tend\n"
    "\tfor line in $lines[2..-1]\n"
    "\t\techo $line\n"
    "\tend\n"
    "end\n"
    "complete -c additive -f -a '(__additive_complete)'\n";

static int completion_run(cli *c)
{
	static const struct {
		const char *shell, *script;
	} scripts[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};

	for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++)
		if (strcmp(cli_argument(c, 0), scripts[i].shell) == 0) {
			fputs(scripts[i].script, stdout);
			return CLI_OK;
		}
	return cli_usage("completion knows bash, zsh and fish, not %s", cli_argument(c, 0));
}

/* Names that the service has, of those that fit. Nothing when it does not answer soon. */
static void ask(const cli *c, completion *out, const char *last)
{
	const char *key = out->key ? out->key : getenv("ADDITIVE_API_KEY");
	http *h = http_new(out->url ? out->url : http_url(c->http), key);
	json_t *answer, *entry;
	size_t i;

	if (!h)
		return;
	http_trust_issuers(h, out->issuers);
	http_limit(h, ASK_MS);
	answer = http_json(h, "GET", out->list, NULL);
	json_array_foreach(json_object_get(answer, "data"), i, entry)
	{
		const char *id = json_string_value(json_object_get(entry, "id"));
		const char *status = json_string_value(json_object_get(entry, "status"));
		const char *file = json_string_value(json_object_get(entry, "filename"));
		text name = {0}, help = {0};

		terminal_escape(&name, id ? id : "", id ? strlen(id) : 0, false);
		terminal_escape(&help,
		                file     ? file
		                : status ? status
		                         : "",
		                strlen(file     ? file
		                       : status ? status
		                                : ""),
		                false);
		if (id && strcmp(text_get(&name), id) == 0)
			complete_offer(out, last, id, text_get(&help));
		text_free(&name);
		text_free(&help);
	}
	json_decref(answer);
	http_free(h);
}

static int complete_run(cli *c)
{
	static const char *const kinds[] = {"words", "files", "folders"};
	char *empty[] = {(char[]){""}}, **words = empty;
	int n = c->options.n_arguments;
	completion out;

	if (n > 0 && !(words = calloc((size_t)n, sizeof(*words))))
		return cli_fail("out of memory");
	for (int i = 0; i < n; i++)
		words[i] = (char *)(uintptr_t)cli_argument(c, i);
	n = n > 0 ? n : 1;
	complete_line(&out, n, words);
	if (out.list)
		ask(c, &out, words[n - 1]);
	printf("%s\n%s", kinds[out.kind], text_get(&out.words));
	complete_free(&out);
	if (words != empty)
		free(words);
	return CLI_OK;
}

const command completion_commands[] = {
    {"completion", "bash|zsh|fish", 1, 1, "print a script by which a shell completes command lines",
     "For this shell alone: source <(additive completion bash), or with zsh; additive completion fish | source. "
     "`make install` installs them.",
     NULL, completion_run},
    {"complete", "[WORD...]", 0, MOST_WORDS, "show completions of a command line, for the shell scripts",
     "The words behind additive, the last of them begun, behind --. First a line \"words\", \"files\" or \"folders\": "
     "what else the last\nword can be. Then the words that it can become, each with a tab and what it means. Names of "
     "models, jobs and so on are\nasked of the service, and left out when it does not answer soon.",
     NULL, complete_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
