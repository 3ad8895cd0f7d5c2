/* faults.so - lets memory and disk calls of a program fail, one by one or all together. For LD_PRELOAD.
 *
 *   FAULTS_CONTROL  the control page (faults.h), an existing file; without it every call passes through
 *   FAULTS_PROGRAM  only a process of this name is touched (a service has several)
 *   FAULTS_TRACE    where stacks of failed calls are appended, one line each: "CLASS NUMBER object+0xoffset …"
 *
 * Only calls made by the program itself or by the libraries in `watched` count and fail. A failure inside the dynamic
 * loader, the OpenMP runtime or oneDNN shows nothing about the program. The caller is known by its return address. A
 * call made by the C library on behalf of the program (nftw, opendir) passes.
 *
 * A wrapper neither allocates nor locks. With a sanitizer its interceptor does the work, so the sanitizer's runtime
 * has to follow this library in the order of symbols: ASAN_OPTIONS=verify_asan_link_order=0, not LD_PRELOAD. */
#include "tests/faults/faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define CALLER __builtin_return_address(0)
#define EXPORT __attribute__((visibility("default")))

enum { MAX_RANGES = 16, MAX_FRAMES = 48 };

static const char *const class_names[FAULTS_CLASSES] = {"allocation", "open",   "write", "sync", "truncate", "rename",
                                                        "folder",     "unlink", "link",  "read", "map",      "thread"};
static const char *const watched[] = {"libjansson.", "libuv.", "libsqlite3.", "libmicrohttpd."};

typedef struct range {
	uintptr_t first, after;
} range;

/* Written by the constructor, before the program has threads. */
static faults_control *control;
static range ranges[MAX_RANGES];
static int n_ranges;
static int trace_fd = -1;
static _Thread_local bool tracing;

/* --- setting up ------------------------------------------------------------------ */

static int add_ranges(struct dl_phdr_info *info, size_t size, void *context)
{
	(void)size, (void)context;
	const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
	bool counts = !*name; /* the program */
	for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
		counts |= strncmp(name, watched[i], strlen(watched[i])) == 0;
	for (int i = 0; counts && i < info->dlpi_phnum && n_ranges < MAX_RANGES; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		if (p->p_type != PT_LOAD || !(p->p_flags & PF_X))
			continue;
		ranges[n_ranges].first = info->dlpi_addr + p->p_vaddr;
		ranges[n_ranges++].after = info->dlpi_addr + p->p_vaddr + p->p_memsz;
	}
	return 0;
}

static void *map_control(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	void *page = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return page == MAP_FAILED ? NULL : page;
}

__attribute__((constructor)) static void faults_begin(void)
{
	const char *path = getenv("FAULTS_CONTROL"), *program = getenv("FAULTS_PROGRAM"),
	           *trace = getenv("FAULTS_TRACE");
	if (!path || (program && strcmp(program, program_invocation_short_name) != 0))
		return;
	dl_iterate_phdr(add_ranges, NULL);
	void *frames[4];
	backtrace(frames, 4); /* its first call loads a library */
	if (trace)
		trace_fd = fcntl(open(trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), F_DUPFD_CLOEXEC, 1000);
	faults_control *page = map_control(path);
	if (page && page->magic == FAULTS_MAGIC)
		control = page;
}

/* --- deciding -------------------------------------------------------------------- */

static bool is_watched(const void *caller)
{
	uintptr_t at = (uintptr_t)caller;
	for (int i = 0; i < n_ranges; i++)
		if (at >= ranges[i].first && at < ranges[i].after)
			return true;
	return false;
}

static void trace_stack(const char *what, int64_t number)
{
	char line[8192];
	void *frames[MAX_FRAMES];
	if (trace_fd < 0 || !atomic_load(&control->trace) || tracing)
		return;
	tracing = true; /* calls of the unwinder are not the program's */
	int n = backtrace(frames, MAX_FRAMES);
	size_t used = (size_t)snprintf(line, sizeof line, "%s %lld", what, (long long)number);
	for (int i = 0; i < n && used + 300 < sizeof line; i++) {
		Dl_info info;
		if (!dladdr(frames[i], &info) || !info.dli_fname)
			continue;
		used += (size_t)snprintf(line + used, 300, " %.250s+0x%llx", info.dli_fname,
		                         (unsigned long long)((uintptr_t)frames[i] - (uintptr_t)info.dli_fbase));
	}
	line[used++] = '\n';
	syscall(SYS_write, trace_fd, line, used);
	tracing = false;
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* Count a call; true when it shall fail, with errno set (0: a write that takes half). */
static bool fails(int class)
{
	faults_rule *r = &control->rules[class];
	int64_t number = atomic_fetch_add(&r->calls, 1) + 1, first = atomic_load(&r->first);
	int32_t one_in = atomic_load(&r->one_in);
	bool failing = first > 0 && number >= first && number - first < atomic_load(&r->count);
	failing |= one_in > 0 && mix((uint64_t)number) % (uint64_t)one_in == 0;
	if (!failing)
		return false;
	atomic_fetch_add(&r->failed, 1);
	trace_stack(class_names[class], number);
	errno = atomic_load(&r->error);
	return true;
}

static bool is_below(const char *path)
{
	size_t n = strlen(control->folder);
	return n == 0 || (strncmp(path, control->folder, n) == 0 && (path[n] == '/' || !path[n]));
}

/* A regular file below the folder, other than the standard streams. */
static bool is_ours(int fd, struct stat *st)
{
	if (fd <= 2 || fstat(fd, st) != 0 || (!S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode)))
		return false;
	if (!control->folder[0])
		return true;
	char link[64], path[PATH_MAX];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	if (n <= 0)
		return false;
	path[n] = 0;
	return is_below(path);
}

static bool is_full(void)
{
	return atomic_load(&control->full) != 0;
}

static int refuse_space(void)
{
	atomic_fetch_add(&control->refused, 1);
	trace_stack("full", atomic_load(&control->refused));
	errno = ENOSPC;
	return -1;
}

/* A call on a path that creates something there when `creates`. */
static bool path_fails(const void *caller, int class, const char *path, bool creates)
{
	if (!control || !is_watched(caller) || !is_below(path))
		return false;
	if (fails(class))
		return true;
	struct stat st;
	if (!creates || !is_full() || lstat(path, &st) == 0)
		return false;
	refuse_space();
	return true;
}

#define REAL(name)                                                                                                     \
	static __typeof__(name) *real;                                                                                 \
	if (!real)                                                                                                     \
	real = (__typeof__(real))dlsym(RTLD_NEXT, #name)

/* --- memory ------------------------------------------------------------------------ */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *data, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void *__interceptor_malloc(size_t bytes) __attribute__((weak));
void *__interceptor_calloc(size_t count, size_t size) __attribute__((weak));
void *__interceptor_realloc(void *data, size_t bytes) __attribute__((weak));
void *__interceptor_memalign(size_t alignment, size_t bytes) __attribute__((weak));

static bool memory_fails(const void *caller)
{
	if (!control || tracing || !is_watched(caller))
		return false;
	return fails(FAULTS_ALLOCATION);
}

static void *real_malloc(size_t bytes)
{
	return __interceptor_malloc ? __interceptor_malloc(bytes) : __libc_malloc(bytes);
}

static void *real_memalign(size_t alignment, size_t bytes)
{
	return __interceptor_memalign ? __interceptor_memalign(alignment, bytes) : __libc_memalign(alignment, bytes);
}

EXPORT void *malloc(size_t bytes)
{
	return memory_fails(CALLER) ? NULL : real_malloc(bytes);
}

EXPORT void *calloc(size_t count, size_t size)
{
	if (memory_fails(CALLER))
		return NULL;
	return __interceptor_calloc ? __interceptor_calloc(count, size) : __libc_calloc(count, size);
}

EXPORT void *realloc(void *data, size_t bytes)
{
	if (memory_fails(CALLER))
		return NULL;
	return __interceptor_realloc ? __interceptor_realloc(data, bytes) : __libc_realloc(data, bytes);
}

EXPORT void *aligned_alloc(size_t alignment, size_t bytes)
{
	return memory_fails(CALLER) ? NULL : real_memalign(alignment, bytes);
}

EXPORT void *memalign(size_t alignment, size_t bytes)
{
	return memory_fails(CALLER) ? NULL : real_memalign(alignment, bytes);
}

EXPORT int posix_memalign(void **out, size_t alignment, size_t bytes)
{
	void *data = memory_fails(CALLER) ? NULL : real_memalign(alignment, bytes);
	if (!data)
		return ENOMEM;
	*out = data;
	return 0;
}

static char *copy_text(const char *text, size_t bytes)
{
	char *copy = real_malloc(bytes + 1);
	if (!copy)
		return NULL;
	memcpy(copy, text, bytes);
	copy[bytes] = 0;
	return copy;
}

EXPORT char *strdup(const char *text)
{
	return memory_fails(CALLER) ? NULL : copy_text(text, strlen(text));
}

EXPORT char *strndup(const char *text, size_t bytes)
{
	return memory_fails(CALLER) ? NULL : copy_text(text, strnlen(text, bytes));
}

EXPORT void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	if (control && !tracing && is_watched(CALLER) && fails(FAULTS_MAP))
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

EXPORT void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	if (control && !tracing && is_watched(CALLER) && fails(FAULTS_MAP))
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

/* Threads that the OpenMP runtime or libuv creates count too: both end the process when one cannot be created. */
EXPORT int pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
	static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	if (!next)
		next = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))(uintptr_t)dlsym(
		        RTLD_NEXT, "pthread_create");
	if (control && !tracing && fails(FAULTS_THREAD))
		return EAGAIN;
	return next(out, attributes, run, context);
}

/* --- opening ------------------------------------------------------------------------ */

static bool open_fails(const void *caller, const char *path, int flags)
{
	bool writes = (flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT;
	return path_fails(caller, writes ? FAULTS_OPEN : FAULTS_READ, path, flags & O_CREAT);
}

static int open_at(int folder, const char *path, int flags, mode_t mode)
{
	return (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define OPEN(name)                                                                                                     \
	EXPORT int name(const char *path, int flags, ...)                                                              \
	{                                                                                                              \
		va_list args;                                                                                          \
		va_start(args, flags);                                                                                 \
		mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;                              \
		va_end(args);                                                                                          \
		return open_fails(CALLER, path, flags) ? -1 : open_at(AT_FDCWD, path, flags, mode);                    \
	}
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
	EXPORT int name(int folder, const char *path, int flags, ...)                                                  \
	{                                                                                                              \
		va_list args;                                                                                          \
		va_start(args, flags);                                                                                 \
		mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;                              \
		va_end(args);                                                                                          \
		return open_fails(CALLER, path, flags) ? -1 : open_at(folder, path, flags, mode);                      \
	}
OPENAT(openat)
OPENAT(openat64)

int __open64_2(const char *path, int flags);
int __open_2(const char *path, int flags);

EXPORT int __open64_2(const char *path, int flags)
{
	return open_fails(CALLER, path, flags) ? -1 : open_at(AT_FDCWD, path, flags, 0);
}

EXPORT int __open_2(const char *path, int flags)
{
	return open_fails(CALLER, path, flags) ? -1 : open_at(AT_FDCWD, path, flags, 0);
}

EXPORT int creat(const char *path, mode_t mode)
{
	int flags = O_WRONLY | O_CREAT | O_TRUNC;
	return open_fails(CALLER, path, flags) ? -1 : open_at(AT_FDCWD, path, flags, mode);
}

EXPORT int mkostemp(char *path, int flags)
{
	REAL(mkostemp);
	return path_fails(CALLER, FAULTS_OPEN, path, true) ? -1 : real(path, flags);
}

EXPORT int mkstemp64(char *path)
{
	REAL(mkstemp64);
	return path_fails(CALLER, FAULTS_OPEN, path, true) ? -1 : real(path);
}

EXPORT int mkstemp(char *path)
{
	REAL(mkstemp);
	return path_fails(CALLER, FAULTS_OPEN, path, true) ? -1 : real(path);
}

/* --- writing ------------------------------------------------------------------------ */

/* Return the number of bytes of a write to `at` (-1: the file's position) that may happen: `bytes`, fewer, or -1 with
 * errno. */
static ssize_t allowed(const void *caller, int fd, size_t bytes, off_t at)
{
	struct stat st;
	if (!control || !is_watched(caller) || !is_ours(fd, &st))
		return (ssize_t)bytes;
	if (fails(FAULTS_WRITE)) {
		if (errno != 0)
			return -1;
		return bytes > 1 ? (ssize_t)(bytes / 2) : (ssize_t)bytes;
	}
	if (!is_full())
		return (ssize_t)bytes;
	if (at < 0)
		at = fcntl(fd, F_GETFL) & O_APPEND ? st.st_size : lseek(fd, 0, SEEK_CUR);
	if (at + (off_t)bytes <= st.st_size)
		return (ssize_t)bytes; /* overwrites existing bytes only */
	return at < st.st_size ? (ssize_t)(st.st_size - at) : refuse_space();
}

EXPORT ssize_t write(int fd, const void *data, size_t bytes)
{
	ssize_t n = allowed(CALLER, fd, bytes, -1);
	return n < 0 ? n : syscall(SYS_write, fd, data, (size_t)n);
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
	ssize_t n = allowed(CALLER, fd, bytes, at);
	return n < 0 ? n : syscall(SYS_pwrite64, fd, data, (size_t)n, at);
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t at)
{
	ssize_t n = allowed(CALLER, fd, bytes, at);
	return n < 0 ? n : syscall(SYS_pwrite64, fd, data, (size_t)n, at);
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
	struct stat st;
	size_t bytes = 0;
	for (int i = 0; i < count; i++)
		bytes += parts[i].iov_len;
	ssize_t n = !control || fd <= 2 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) ? (ssize_t)bytes
	                                                                               : allowed(CALLER, fd, bytes, -1);
	if (n < 0)
		return n;
	if ((size_t)n == bytes)
		return syscall(SYS_writev, fd, parts, count);
	size_t first = (size_t)n < parts[0].iov_len ? (size_t)n : parts[0].iov_len;
	return syscall(SYS_write, fd, parts[0].iov_base, first);
}

static bool sync_fails(const void *caller, int fd)
{
	struct stat st;
	return control && is_watched(caller) && is_ours(fd, &st) && fails(FAULTS_SYNC);
}

EXPORT int fsync(int fd)
{
	return sync_fails(CALLER, fd) ? -1 : (int)syscall(SYS_fsync, fd);
}

EXPORT int fdatasync(int fd)
{
	return sync_fails(CALLER, fd) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

static int truncate_fd(const void *caller, int fd, off_t bytes)
{
	struct stat st;
	if (control && is_watched(caller) && is_ours(fd, &st)) {
		if (fails(FAULTS_TRUNCATE))
			return -1;
		if (is_full() && bytes > st.st_size)
			return refuse_space();
	}
	return (int)syscall(SYS_ftruncate, fd, bytes);
}

EXPORT int ftruncate(int fd, off_t bytes)
{
	return truncate_fd(CALLER, fd, bytes);
}

EXPORT int ftruncate64(int fd, off_t bytes)
{
	return truncate_fd(CALLER, fd, bytes);
}

static bool read_fails(const void *caller, int fd)
{
	struct stat st;
	/* Reads are many: a file is looked at only when one may fail. */
	if (!control || !is_watched(caller) || fd <= 2 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		return false;
	return is_ours(fd, &st) && fails(FAULTS_READ);
}

EXPORT ssize_t read(int fd, void *out, size_t bytes)
{
	return read_fails(CALLER, fd) ? -1 : syscall(SYS_read, fd, out, bytes);
}

EXPORT ssize_t pread(int fd, void *out, size_t bytes, off_t at)
{
	return read_fails(CALLER, fd) ? -1 : syscall(SYS_pread64, fd, out, bytes, at);
}

EXPORT ssize_t pread64(int fd, void *out, size_t bytes, off_t at)
{
	return read_fails(CALLER, fd) ? -1 : syscall(SYS_pread64, fd, out, bytes, at);
}

/* --- names -------------------------------------------------------------------------- */

EXPORT int rename(const char *from, const char *to)
{
	return path_fails(CALLER, FAULTS_RENAME, to, false)
	           ? -1
	           : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

EXPORT int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
	return path_fails(CALLER, FAULTS_RENAME, to, false)
	           ? -1
	           : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

EXPORT int mkdir(const char *path, mode_t mode)
{
	return path_fails(CALLER, FAULTS_FOLDER, path, true) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

EXPORT char *mkdtemp(char *path)
{
	REAL(mkdtemp);
	return path_fails(CALLER, FAULTS_FOLDER, path, true) ? NULL : real(path);
}

EXPORT int unlink(const char *path)
{
	return path_fails(CALLER, FAULTS_UNLINK, path, false) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

EXPORT int rmdir(const char *path)
{
	return path_fails(CALLER, FAULTS_UNLINK, path, false)
	           ? -1
	           : (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

EXPORT int remove(const char *path)
{
	REAL(remove);
	return path_fails(CALLER, FAULTS_UNLINK, path, false) ? -1 : real(path);
}

EXPORT int link(const char *from, const char *to)
{
	return path_fails(CALLER, FAULTS_LINK, to, true) ? -1
	                                                 : (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}
