/* maintenance.c - backup, restore and fsck work on a data folder of this machine, so the engine implements them. This
 * program executes the `additived` beside it, which takes the same options, the terminal and the exit status. */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/cli/child.h"
#include "clients/cli/cli.h"

static const option_row backup_options[] = {{"data", OPTION_TEXT, "DIR", "the data folder (required)", NULL},
                                            {"copy", OPTION_FLAG, NULL, "copy every file instead of linking it", NULL},
                                            {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const option_row restore_options[] = {
    {"data", OPTION_TEXT, "DIR", "the data folder to create; it must be missing or empty (required)", NULL},
    {"partial", OPTION_FLAG, NULL, "restore the intact parts of a damaged backup", NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static const option_row fsck_options[] = {
    {"data", OPTION_TEXT, "DIR", "the data folder (required)", NULL},
    {"adopt", OPTION_TEXTS, "KIND/NAME", "restore a blob from lost/ (the engine must be stopped)", NULL},
    {"remove", OPTION_TEXTS, "KIND/NAME", "delete a blob from lost/", NULL},
    {"remove-all", OPTION_FLAG, NULL, "delete everything in lost/", NULL},
    {"rebuild", OPTION_FLAG, NULL, "rebuild missing rows of the ledger from the blobs (the engine must be stopped)",
     NULL},
    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

static int become(cli *c, const char *word)
{
	const options *o = &c->options;
	char path[PATH_MAX];
	size_t n = 0;

	if (!options_text(o, "data"))
		return cli_usage("say which data folder: --data DIR");
	if (!child_find("additived", path))
		return cli_fail("cannot find additived beside this program");
	char **argv = calloc((size_t)o->n_given + (size_t)o->n_arguments + 4, sizeof(*argv));
	if (!argv)
		return cli_fail("out of memory");
	argv[n++] = path;
	argv[n++] = (char *)(uintptr_t)word;
	for (int i = 0; i < o->n_given; i++)
		if (strcmp(o->given[i].row->name, "url") != 0 && strcmp(o->given[i].row->name, "api-key") != 0 &&
		    strcmp(o->given[i].row->name, "ca") != 0 && !(argv[n++] = options_write(&o->given[i])))
			return cli_fail("out of memory");
	argv[n++] = (char *)(uintptr_t) "--";
	for (int i = 0; i < o->n_arguments; i++)
		argv[n++] = (char *)(uintptr_t)o->arguments[i];
	execv(path, argv);
	return cli_fail("cannot start %s: %s", path, strerror(errno));
}

static int backup_run(cli *c)
{
	return become(c, "backup");
}

static int restore_run(cli *c)
{
	return become(c, "restore");
}

static int fsck_run(cli *c)
{
	return become(c, "fsck");
}

const command maintenance_commands[] = {
    {"backup", "TO --data DIR", 1, 1, "back up a data folder, while the service runs or not",
     "TO is made. On the same disk its files are hard links and take no space until the service deletes them. Status "
     "1: "
     "something in the\ndata folder is damaged; it is named, and the backup holds everything else.",
     backup_options, backup_run},
    {"restore", "FROM --data DIR", 1, 1, "create a data folder from a backup",
     "The backup is verified first and not changed.", restore_options, restore_run},
    {"fsck", "--data DIR", 0, 0, "check a data folder; bring back or delete what was lost",
     "Every byte is verified. Without further options nothing is changed, and the service may run. Status 1: damage is "
     "found.",
     fsck_options, fsck_run},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
