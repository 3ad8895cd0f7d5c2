/* fibre.h - stacks that alternate on one thread. */
#ifndef EMULATOR_FIBRE_H
#define EMULATOR_FIBRE_H

#include <stddef.h>

namespace emulator {

struct context {
	void *stack_pointer = nullptr;
};

/* Prepare a context that will call run(argument) on a stack of its own; run must never return. */
void context_make(context *c, void *stack, size_t bytes, void (*run)(void *), void *argument);

/* Continue in `to`; returns when a fibre switches back to `from`.
 *
 * It is inlined and ends in a jump. A processor predicts returns from the preceding calls, which were those of another
 * stack, so each return between here and the kernel would be mispredicted. Registers that the compiler cannot be told
 * to save elsewhere are pushed, below the area that a leaf function may use. */
static inline __attribute__((always_inline)) void context_switch(context *from, const context *to)
{
	void **at = &from->stack_pointer, *stack = to->stack_pointer;
	asm volatile("leaq -128(%%rsp), %%rsp\n\t"
	             "pushq %%rbp\n\t"
	             "pushq %%rbx\n\t"
	             "leaq 1f(%%rip), %%rax\n\t"
	             "pushq %%rax\n\t"
	             "movq %%rsp, (%%rdi)\n\t"
	             "movq %%rsi, %%rsp\n\t"
	             "popq %%rax\n\t"
	             "jmpq *%%rax\n"
	             "1:\n\t"
	             "popq %%rbx\n\t"
	             "popq %%rbp\n\t"
	             "leaq 128(%%rsp), %%rsp"
	             : "+D"(at), "+S"(stack)
	             :
	             : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1",
	               "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
	               "xmm13", "xmm14", "xmm15", "memory", "cc");
}

} // namespace emulator

#endif
