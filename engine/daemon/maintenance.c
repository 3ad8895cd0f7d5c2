/* maintenance.c - reports are made as JSON (engine/store/maintenance.h) and printed as JSON or as text. */
#include "engine/daemon/maintenance.h"

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/json_text.h"
#include "engine/base/log.h"
#include "engine/store/maintenance.h"

enum { DONE = 0, DAMAGED = 1, FAILED = 2, MAX_NAMES = 1000 };

typedef struct asked {
	const char *data, *argument; /* argument: the backup's path */
	bool json, copy, partial, rebuild, remove_all, help;
	const char *adopt[MAX_NAMES], *remove[MAX_NAMES]; /* "KIND/NAME" */
	int n_adopt, n_remove;
} asked;

typedef struct command {
	const char *name, *usage;
	bool takes_argument;
	const char *options; /* letters of the accepted options besides --data, --json, --help */
	int (*run)(const asked *a);
} command;

/* --- words --------------------------------------------------------------------------------------- */

static int maintenance_fail(const char *word, const error *err)
{
	fprintf(stderr, "additived %s: %s\n", word, error_message(err));
	return FAILED;
}

/* Print the report, which is stolen, and return the exit status. */
static int print_json(json_t *report, int ending)
{
	char *text = json_text(report, JSON_COMPACT);
	json_decref(report);
	if (!text || puts(text) < 0)
		ending = FAILED;
	free(text);
	return ending;
}

static int64_t number_of(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static const char *maintenance_text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

static void print_bytes(int64_t bytes)
{
	if (bytes < 10 * 1024)
		printf("%" PRId64 " bytes", bytes);
	else if (bytes < INT64_C(10) << 20)
		printf("%.1f KiB", (double)bytes / 1024);
	else
		printf("%.1f MiB", (double)bytes / (1 << 20));
}

/* "2 models, 1 job, …, 3.4 MiB" */
static void print_objects(const json_t *report)
{
	static const char *const kinds[] = {"file", "model", "job", "checkpoint", "session"};
	const json_t *objects = json_object_get(report, "objects");
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		int64_t n = number_of(objects, kinds[i]);
		printf("%" PRId64 " %s%s, ", n, kinds[i], n == 1 ? "" : "s");
	}
	print_bytes(number_of(report, "bytes"));
}

static size_t print_damaged(const json_t *report)
{
	const json_t *damaged = json_object_get(report, "damaged"), *one;
	size_t i;
	json_array_foreach(damaged, i, one) printf("damaged: %s \"%s\": %s\n", maintenance_text_of(one, "kind"),
	                                           maintenance_text_of(one, "id"), maintenance_text_of(one, "problem"));
	return json_array_size(damaged);
}

/* --- backup ----------------------------------------------------------------------------------------- */

static int run_backup(const asked *a)
{
	json_t *report;
	error err = ERROR_INIT;
	log_init("additived", LOG_NOTHING); /* the report names the damage */
	if (backup_make(a->data, a->argument, a->copy, &report, &err) != STATUS_OK)
		return maintenance_fail("backup", &err);
	size_t damaged = json_array_size(json_object_get(report, "damaged"));
	if (a->json)
		return print_json(report, damaged ? DAMAGED : DONE);
	print_damaged(report);
	printf("backed up: ");
	print_objects(report);
	printf(" (linked ");
	print_bytes(number_of(report, "linked_bytes"));
	printf(", copied ");
	print_bytes(number_of(report, "copied_bytes"));
	printf(")\n");
	if (damaged)
		printf(
		    "The backup is complete except for the %zu objects above, which are damaged in the data folder. To "
		    "restore it, add --partial.\n"
		    "Delete the damaged objects through the service, or restore them from an earlier backup, and "
		    "back up "
		    "again.\n",
		    damaged);
	json_decref(report);
	return damaged ? DAMAGED : DONE;
}

/* --- restore ------------------------------------------------------------------------------------------ */

static int run_restore(const asked *a)
{
	json_t *report;
	error err = ERROR_INIT;
	log_init("additived", LOG_NOTHING);
	status result = backup_restore(a->argument, a->data, a->partial, &report, &err);
	if (!report)
		return maintenance_fail("restore", &err);
	size_t damaged = json_array_size(json_object_get(report, "damaged"));
	int ending = result != STATUS_OK && !damaged ? FAILED : damaged ? DAMAGED : DONE;
	if (a->json) {
		ending = print_json(report, ending);
	} else {
		print_damaged(report);
		if (result == STATUS_OK) {
			printf("restored: ");
			print_objects(report);
			printf("\n");
		}
		json_decref(report);
	}
	if (result != STATUS_OK)
		maintenance_fail("restore", &err);
	return ending;
}

/* --- fsck ------------------------------------------------------------------------------------------------ */

static bool maintenance_split(const char *text, char kind[32], const char **name)
{
	const char *slash = strchr(text, '/');
	if (!slash || slash == text || slash - text >= 32 || !slash[1])
		return false;
	snprintf(kind, 32, "%.*s", (int)(slash - text), text);
	*name = slash + 1;
	return true;
}

static bool report_one(const char *done, const char *what, status result, const error *err)
{
	if (result == STATUS_OK)
		fprintf(stderr, "%s %s\n", done, what);
	else
		fprintf(stderr, "additived fsck: %s: %s\n", what, error_message(err));
	return result == STATUS_OK;
}

static bool remove_one(const asked *a, const char *what)
{
	char kind[32];
	const char *name;
	error err = ERROR_INIT;
	status result = maintenance_split(what, kind, &name) ? lost_remove(a->data, kind, name, &err)
	                                                     : error_set(&err, STATUS_INVALID, NULL, "say KIND/NAME");
	return report_one("removed", what, result, &err);
}

static bool remove_lost(const asked *a)
{
	bool ok = true;
	for (int i = 0; i < a->n_remove; i++)
		ok = remove_one(a, a->remove[i]) && ok;
	for (bool more = a->remove_all && ok; more;) { /* each listing is limited */
		json_t *usage = store_usage(a->data, 0), *lost = json_object_get(usage, "lost"), *one;
		size_t i;
		more = ok && json_array_size(lost) > 0;
		json_array_foreach(lost, i, one)
		{
			char what[512];
			snprintf(what, sizeof what, "%s/%s", maintenance_text_of(one, "kind"),
			         maintenance_text_of(one, "name"));
			ok = remove_one(a, what) && ok;
		}
		json_decref(usage);
	}
	return ok;
}

/* Commands that change rows take the lock, as an engine does. */
static int change(const asked *a)
{
	store *s;
	error err = ERROR_INIT;
	bool ok = true;
	log_init("additived", LOG_WARN);
	status result = a->rebuild ? store_rebuild(&s, a->data, &err) : store_open(&s, a->data, &err);
	if (result == STATUS_CONFLICT) {
		fprintf(stderr, "additived fsck: an engine uses this data folder: stop it first\n");
		return FAILED;
	}
	if (result != STATUS_OK)
		return maintenance_fail("fsck", &err);
	for (int i = 0; i < a->n_adopt; i++) {
		char kind[32];
		const char *name;
		err = (error)ERROR_INIT;
		result = maintenance_split(a->adopt[i], kind, &name)
		             ? lost_adopt(s, kind, name, &err)
		             : error_set(&err, STATUS_INVALID, NULL, "say KIND/NAME");
		ok = report_one("adopted", a->adopt[i], result, &err) && ok;
	}
	store_close(s);
	return ok ? DONE : FAILED;
}

static void print_paths(const json_t *report, const char *key, const char *what)
{
	size_t i;
	json_t *path;
	json_array_foreach(json_object_get(report, key), i, path) printf("%s: %s\n", what, json_string_value(path));
}

static void print_lost(const json_t *report)
{
	const json_t *lost = json_object_get(json_object_get(report, "storage"), "lost"), *one;
	size_t i;
	json_array_foreach(lost, i, one)
	{
		printf("lost: %s/%s, ", maintenance_text_of(one, "kind"), maintenance_text_of(one, "name"));
		print_bytes(number_of(one, "bytes"));
		putchar('\n');
	}
	if (json_array_size(lost))
		printf("Lost blobs have no row in the ledger. --adopt KIND/NAME makes it again; --remove KIND/NAME "
		       "deletes the "
		       "blob.\n");
}

static void print_check(const json_t *report)
{
	const char *problem = json_string_value(json_object_get(report, "problem"));
	bool running = json_is_true(json_object_get(report, "running"));
	if (problem)
		printf("%s: %s with the engine stopped, or restore a backup\n", problem,
		       "let --rebuild make a new ledger from what is stored");
	size_t damaged = print_damaged(report);
	print_paths(report, "unclaimed", "without a row");
	print_paths(report, "temporary", "temporary, removed by the next start");
	print_lost(report);
	printf("checked%s: ", running ? ", beside a running engine" : "");
	print_objects(report);
	printf("\n");
	if (json_array_size(json_object_get(report, "unclaimed")))
		printf("The next start moves blobs without a row to lost/; --adopt restores them. After an older "
		       "ledger was restored, --rebuild makes the missing rows.\n");
	if (damaged)
		printf("Delete damaged objects through the service, or restore them from a backup; all others are "
		       "served.\n");
	if (json_is_true(json_object_get(report, "clean")))
		printf("clean\n");
}

static int run_fsck(const asked *a)
{
	json_t *report;
	error err = ERROR_INIT;
	if (a->rebuild || a->n_adopt) {
		int changed = change(a);
		if (changed != DONE)
			return changed;
	}
	if ((a->n_remove || a->remove_all) && !remove_lost(a))
		return FAILED;
	log_init("additived", LOG_NOTHING);
	if (fsck_check(a->data, &report, &err) != STATUS_OK)
		return maintenance_fail("fsck", &err);
	int ending = json_is_true(json_object_get(report, "clean")) ? DONE : DAMAGED;
	if (a->json)
		return print_json(report, ending);
	print_check(report);
	json_decref(report);
	return ending;
}

/* --- options ---------------------------------------------------------------------------------------------- */

static const command commands[] = {
    {"backup",
     "additived backup --data DIR [--copy] [--json] TO\n"
     "\n"
     "Back up the data folder DIR to the new folder TO, while the engine runs or not. Everything is verified.\n"
     "Files are hard links where TO is on the same disk; --copy copies them. An interrupted backup leaves TO.tmp-…,\n"
     "which can be deleted.\n",
     true, "c", run_backup},
    {"restore",
     "additived restore --data DIR [--partial] [--json] FROM\n"
     "\n"
     "Verify the backup FROM and copy it to DIR, which must be missing or empty. A damaged backup is restored with\n"
     "--partial only: what is left of it.\n",
     true, "p", run_restore},
    {"fsck",
     "additived fsck --data DIR [--adopt KIND/NAME] [--remove KIND/NAME] [--remove-all] [--rebuild] [--json]\n"
     "\n"
     "Verify every row and every byte of the data folder DIR, and list what is lost. This changes nothing.\n"
     "  --adopt KIND/NAME     bring a blob back from lost/ and make its row (the engine must be stopped)\n"
     "  --remove KIND/NAME    delete a blob from lost/; --remove-all: all of them\n"
     "  --rebuild             make the missing rows of a lost or older ledger from the blobs (engine stopped)\n",
     false, "arRb", run_fsck}};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const command *maintenance_find(const char *name)
{
	for (int i = 0; i < COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static bool maintenance_keep(asked *a, int letter, const char *value)
{
	switch (letter) {
	case 'd':
		a->data = value;
		return true;
	case 'j':
		return a->json = true;
	case 'h':
		return a->help = true;
	case 'c':
		return a->copy = true;
	case 'p':
		return a->partial = true;
	case 'b':
		return a->rebuild = true;
	case 'R':
		return a->remove_all = true;
	case 'a':
		return a->n_adopt < MAX_NAMES && (a->adopt[a->n_adopt++] = value);
	case 'r':
		return a->n_remove < MAX_NAMES && (a->remove[a->n_remove++] = value);
	default:
		return false;
	}
}

static bool maintenance_read_options(asked *a, const command *c, int argc, char **argv)
{
	static const struct option table[] = {
	    {"data", required_argument, NULL, 'd'},   {"json", no_argument, NULL, 'j'},
	    {"help", no_argument, NULL, 'h'},         {"copy", no_argument, NULL, 'c'},
	    {"partial", no_argument, NULL, 'p'},      {"rebuild", no_argument, NULL, 'b'},
	    {"remove-all", no_argument, NULL, 'R'},   {"adopt", required_argument, NULL, 'a'},
	    {"remove", required_argument, NULL, 'r'}, {NULL, 0, NULL, 0}};
	for (int letter; (letter = getopt_long(argc, argv, "", table, NULL)) != -1;)
		if ((!strchr("djh", letter) && !strchr(c->options, letter)) || !maintenance_keep(a, letter, optarg))
			return false;
	if (c->takes_argument && optind < argc)
		a->argument = argv[optind++];
	return a->help ||
	       (optind == argc && a->data && a->data[0] && (!c->takes_argument || (a->argument && a->argument[0])));
}

bool maintenance_is_asked(int argc, char **argv)
{
	return argc > 1 && maintenance_find(argv[1]);
}

int maintenance_run(int argc, char **argv)
{
	static asked a; /* too large for the stack */
	const command *c = maintenance_find(argv[0]);
	umask(0077);
	signal(SIGPIPE, SIG_IGN);
	json_object_seed(0);
	if (!maintenance_read_options(&a, c, argc, argv)) {
		fprintf(stderr, "usage: %s", c->usage);
		return FAILED;
	}
	if (a.help) {
		printf("usage: %s", c->usage);
		return DONE;
	}
	int ending = c->run(&a);
	return fflush(stdout) == 0 ? ending : FAILED;
}
