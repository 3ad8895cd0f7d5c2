/* fibre.h - stacks that take turns on one thread. */
#ifndef EMULATOR_FIBRE_H
#define EMULATOR_FIBRE_H

#include <stddef.h>

namespace emulator {

struct context {
	void *stack_pointer = nullptr;
};

/* Prepare a context that will call run(argument) on a stack of its own; run must never return. */
void context_make(context *c, void *stack, size_t bytes, void (*run)(void *), void *argument);
/* Go on in `to`; returns when a fibre switches back to `from`. */
void context_switch(context *from, context *to);

} // namespace emulator

#endif
