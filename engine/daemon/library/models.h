/* models.h - the methods model.*. Loop thread. */
#ifndef ENGINE_DAEMON_LIBRARY_MODELS_H
#define ENGINE_DAEMON_LIBRARY_MODELS_H

#include "engine/daemon/net/stream.h"

void models_list(stream *s);
void models_get(stream *s);
void models_delete(stream *s);
void models_load(stream *s);
void models_unload(stream *s);
void models_import(stream *s);
void models_file(stream *s);
void models_files(stream *s);
void models_card(stream *s); /* model_card_method.c */

/* Return the entry of the request's id, also of a damaged model; NULL: answered. */
struct model_entry *models_inspect(stream *s);

#endif
