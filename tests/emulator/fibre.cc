/* Start of a context. */
#include "fibre.h"

#include <stdint.h>

#ifndef __x86_64__
#error "the emulator's fibres are written for x86-64"
#endif

extern "C" void emulator_enter(void);

/* A new context starts here, with its argument and its function on its stack. */
asm(".text\n"
    ".globl emulator_enter\n"
    ".type emulator_enter, @function\n"
    "emulator_enter:\n"
    "	popq %rdi\n"
    "	popq %rax\n"
    "	callq *%rax\n"
    "	ud2\n"
    ".size emulator_enter, . - emulator_enter\n");

namespace emulator {

void context_make(context *c, void *stack, size_t bytes, void (*run)(void *), void *argument)
{
	uintptr_t top = ((uintptr_t)stack + bytes) & ~(uintptr_t)15;
	void **sp = (void **)top;
	*--sp = nullptr;
	*--sp = nullptr; /* alignment: the stack is a multiple of 16 before the call in emulator_enter */
	*--sp = (void *)run;
	*--sp = argument;
	*--sp = (void *)emulator_enter;
	c->stack_pointer = sp;
}

} // namespace emulator
