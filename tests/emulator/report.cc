/* Reports of faults: the fault, its kernel, thread and line; then the process aborts. */
#include "emulator.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

namespace emulator
{

/* First line of addr2line's output, if any. */
static std::string ask_addr2line(const char *options, const char *file, size_t offset)
{
	char command[1024], line[512] = "";
	snprintf(command, sizeof command, "addr2line %s -e '%s' 0x%zx 2>/dev/null", options, file, offset);
	if (FILE *p = popen(command, "r")) {
		if (!fgets(line, sizeof line, p))
			line[0] = '\0';
		(void)pclose(p);
	}
	line[strcspn(line, "\n")] = '\0';
	return line[0] && line[0] != '?' ? line : "";
}

std::string code_place(const void *code)
{
	Dl_info info;
	if (!code || !dladdr(code, &info))
		return "an unknown place";
	size_t offset = (size_t)((const char *)code - (const char *)info.dli_fbase);
	std::string line = ask_addr2line("", info.dli_fname, offset - 1); /* a return address: the call is before it */
	if (!line.empty())
		return line;
	char text[600];
	snprintf(text, sizeof text, "%s + 0x%zx", info.dli_fname, offset);
	return text;
}

std::string kernel_name(const void *kernel)
{
	Dl_info info;
	if (dladdr(kernel, &info) && info.dli_sname && info.dli_saddr == kernel) {
		int status;
		char *plain = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
		std::string name = status == 0 ? plain : info.dli_sname;
		free(plain);
		return name;
	}
	if (!dladdr(kernel, &info))
		return "a kernel";
	return ask_addr2line("-C -f", info.dli_fname, (size_t)((const char *)kernel - (const char *)info.dli_fbase));
}

void fail(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fprintf(stderr, "emulator: ");
	vfprintf(stderr, format, args);
	va_end(args);
	if (now.l) {
		fprintf(stderr, "\n  in kernel %s, grid (%u, %u, %u), %u threads, %zu bytes of shared memory",
		        kernel_name(now.l->kernel).c_str(), now.l->grid.x, now.l->grid.y, now.l->grid.z, now.l->block.x,
		        now.l->shared_bytes);
		if (now.self)
			fprintf(stderr, "\n  block %u (%u, %u, %u), thread %u", now.b->number, now.b->index.x,
			        now.b->index.y, now.b->index.z, now.self->thread);
	}
	fprintf(stderr, "\n");
	memory_open(true); /* for a debugger */
	abort();
}

/* --- faults of the machine ------------------------------------------------------------------ */

static struct sigaction before;

static void on_fault(int, siginfo_t *info, void *)
{
	uintptr_t at = (uintptr_t)info->si_addr;
	if (now.self && at - (now.stack_low - 4096) < 4096)
		fail("stack overflow: more than %zu bytes of local variables", (size_t)STACK_BYTES);
	const allocation *m = memory_find(info->si_addr);
	size_t offset = m ? at - (uintptr_t)m->base : 0;
	if (m && m->live && offset < m->bytes && !now.l)
		fail("host code touches device memory: an allocation of %zu bytes (%p) + %zu", m->bytes,
		     (void *)m->base, offset);
	if (m && offset < m->bytes + 4096)
		fail("an access to an allocation of %zu bytes (%p) + %zu%s", m->bytes, (void *)m->base, offset,
		     m->live ? "" : ", which was freed");
	sigaction(SIGSEGV, &before, nullptr); /* not ours: return, so that it recurs for the previous handler */
}

void watch_faults()
{
	static thread_local bool has_stack;
	if (!has_stack) {
		stack_t s = {};
		has_stack = true;
		if (sigaltstack(nullptr, &s) == 0 && s.ss_flags & SS_DISABLE) {
			s.ss_size = 64 << 10;
			s.ss_sp = malloc(s.ss_size);
			s.ss_flags = 0;
			if (s.ss_sp)
				(void)sigaltstack(&s, nullptr);
		}
	}
	struct sigaction ours = {}, installed;
	ours.sa_sigaction = on_fault;
	ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
	if (sigaction(SIGSEGV, nullptr, &installed) == 0 && installed.sa_sigaction != on_fault) {
		before = installed;
		(void)sigaction(SIGSEGV, &ours, nullptr);
	}
}

} // namespace emulator
