/* chat_program.h - identify a chat template's Jinja program by its effect instead of its spelling (internal).
 *
 * Programs that differ only in the following have the same digest: white space within tags; white space that is dropped
 * beside them (by "-", and by Jinja's options for trimming blocks, with which chat templates are run); comments; quotes
 * and escapes of a literal; literals that are added to each other; x.y in place of x['y']. */
#ifndef ENGINE_TEXT_CHAT_PROGRAM_H
#define ENGINE_TEXT_CHAT_PROGRAM_H

#include <stdint.h>

#include "engine/base/status.h"

/* STATUS_NOMEM. A program that Jinja would refuse has a digest too. */
status chat_program_digest(const char *program, uint64_t *out);

#endif
