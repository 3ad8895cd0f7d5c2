/* model_folder.h - a model's files between a folder and the service. */
#ifndef CLI_MODEL_FOLDER_H
#define CLI_MODEL_FOLDER_H

#include "clients/cli/cli.h"

/* Make a model of the files of a folder that a model may have (proto/model_files.def), with their checksums, which the
 * service compares; or of a tar archive. Weights in several files are those that their index names. Returns the exit
 * status. */
int model_folder_push(cli *c, const char *folder, const char *id);
/* Fetch all files of a model into a folder, which is made. Each appears only when it is whole and has its checksum. */
int model_folder_pull(cli *c, const char *id, const char *folder);

#endif
