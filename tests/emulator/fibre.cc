/* A switch keeps what the System V calling convention says a function keeps: six registers and the stack pointer. */
#include "fibre.h"

#include <stdint.h>

#ifndef __x86_64__
#error "the emulator's fibres are written for x86-64"
#endif

extern "C" void emulator_switch(void **from, void *to);
extern "C" void emulator_enter(void);

asm(".text\n"
    ".globl emulator_switch\n"
    ".type emulator_switch, @function\n"
    "emulator_switch:\n"
    "	pushq %rbp\n"
    "	pushq %rbx\n"
    "	pushq %r12\n"
    "	pushq %r13\n"
    "	pushq %r14\n"
    "	pushq %r15\n"
    "	movq %rsp, (%rdi)\n"
    "	movq %rsi, %rsp\n"
    "	popq %r15\n"
    "	popq %r14\n"
    "	popq %r13\n"
    "	popq %r12\n"
    "	popq %rbx\n"
    "	popq %rbp\n"
    "	ret\n"
    ".size emulator_switch, . - emulator_switch\n"
    /* A new context begins here: the function in r12, its argument in r13. */
    ".globl emulator_enter\n"
    ".type emulator_enter, @function\n"
    "emulator_enter:\n"
    "	movq %r13, %rdi\n"
    "	callq *%r12\n"
    "	ud2\n"
    ".size emulator_enter, . - emulator_enter\n");

namespace emulator {

void context_make(context *c, void *stack, size_t bytes, void (*run)(void *), void *argument)
{
	uintptr_t top = ((uintptr_t)stack + bytes) & ~(uintptr_t)15;
	void **sp = (void **)top;
	*--sp = nullptr;
	*--sp = nullptr; /* alignment: the stack is a multiple of 16 before the call in emulator_enter */
	*--sp = (void *)emulator_enter;
	*--sp = nullptr; /* rbp */
	*--sp = nullptr; /* rbx */
	*--sp = (void *)run;
	*--sp = argument;
	*--sp = nullptr; /* r14 */
	*--sp = nullptr; /* r15 */
	c->stack_pointer = sp;
}

void context_switch(context *from, context *to)
{
	emulator_switch(&from->stack_pointer, to->stack_pointer);
}

} // namespace emulator
