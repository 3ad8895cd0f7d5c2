/* files.h - the methods file.*: uploaded texts. Loop thread. */
#ifndef ENGINE_DAEMON_FILES_H
#define ENGINE_DAEMON_FILES_H

#include "engine/daemon/stream.h"

void files_create(stream *s);
void files_list(stream *s);
void files_get(stream *s);
void files_delete(stream *s);
void files_content(stream *s);

#endif
