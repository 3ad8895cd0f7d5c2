/* adapter_methods.h - the methods adapter.*. Loop thread.
 *
 * Who may use an adapter: those who may use its model, of the adapter's project; adapters of the default project may be
 * used by all projects, as models are. */
#ifndef ENGINE_DAEMON_LIBRARY_ADAPTER_METHODS_H
#define ENGINE_DAEMON_LIBRARY_ADAPTER_METHODS_H

#include "engine/daemon/net/stream.h"

void adapter_methods_list(stream *s);
void adapter_methods_get(stream *s);
void adapter_methods_delete(stream *s);
void adapter_methods_content(stream *s);
void adapter_methods_import(stream *s);

#endif
