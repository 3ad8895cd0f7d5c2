/* files.h - the methods file.*: uploaded texts. Loop thread. */
#ifndef ENGINE_DAEMON_LIBRARY_FILES_H
#define ENGINE_DAEMON_LIBRARY_FILES_H

#include "engine/daemon/library/library.h"

void files_create(stream *s);
void files_list(stream *s);
void files_get(stream *s);
void files_delete(stream *s);
void files_content(stream *s);

/* Delete the files that have expired at Unix time `now`, except those that a job which has not ended reads. */
status files_expire(const library *lib, int64_t now, error *err);

#endif
