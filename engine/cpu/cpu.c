/* Opens the CPU backend: chooses the number of threads, the instruction set and the device's name. Everything else is
 * in host.c and in the kernel table of the instruction set. */
#include "engine/cpu/cpu.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/memory.h"
#include "engine/cpu/host.h"
#include "engine/cpu/kernels/kernels.h"

/* Kernels that replace those of AVX-512. */
static const cpu_kernels vnni = {
    .kernel =
        {
            [OP_linear] = cpu_linear_avx512vnni,
            [OP_linear_cross_entropy] = cpu_linear_cross_entropy_avx512vnni,
        },
    .scratch =
        {
            [OP_linear] = cpu_linear_scratch_avx512vnni,
            [OP_linear_cross_entropy] = cpu_linear_cross_entropy_scratch_avx512vnni,
        },
};

typedef struct isa {
	const char *name;
	const cpu_kernels *kernels; /* NULL: not linked */
	const cpu_kernels *instead; /* its non-empty cells replace those of `kernels`; NULL: none */
} isa;

/* From the plainest to the best; a processor that runs one runs those before it. */
static const isa isas[] = {
    {.name = "baseline", .kernels = &cpu_kernels_baseline},
    {.name = "avx2", .kernels = &cpu_kernels_avx2},
    {.name = "avx512", .kernels = &cpu_kernels_avx512},
    {"avx512vnni", &cpu_kernels_avx512, &vnni},
};
enum { ISA_COUNT = sizeof isas / sizeof *isas };

/* Return the index of the best instruction set that this machine can run. */
static int isa_machine(void)
{
#ifdef __x86_64__
	__builtin_cpu_init();
	/* Other features of the processors that x86-64-v3 and v4 describe. */
	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
		return 0;
	if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
	    !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
	    !__builtin_cpu_supports("avx512vl"))
		return 1;
	return __builtin_cpu_supports("avx512vnni") ? 3 : 2;
#else
	return 0;
#endif
}

/* Return the best linked one up to index i. */
static const isa *isa_linked(int i)
{
	while (!isas[i].kernels)
		i--;
	return &isas[i];
}

/* Return the one to use: the best, or the lower one that ADDITIVE_CPU_ISA names. */
static status isa_choose(const isa **out, error *err)
{
	int machine = isa_machine();
	*out = isa_linked(machine);
	const char *requested = getenv("ADDITIVE_CPU_ISA");
	if (!requested || !*requested)
		return STATUS_OK;
	for (int i = 0; i < ISA_COUNT; i++) {
		if (strcmp(requested, isas[i].name) != 0)
			continue;
		*out = isa_linked(i < machine ? i : machine);
		return STATUS_OK;
	}
	return error_set(err, STATUS_INVALID, "ADDITIVE_CPU_ISA", "'%.32s' is not baseline, avx2, avx512 or avx512vnni",
	                 requested);
}

/* Cores this process may run on. */
static int cpu_cores(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) == 0)
		return CPU_COUNT(&set);
	long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than cpu_set_t has bits */
	return online < 1 ? 1 : online > CPU_MAX_THREADS ? CPU_MAX_THREADS : (int)online;
}

/* All cores, or as many as OMP_NUM_THREADS allows. The variable is read here, because every matrix product changes
 * OpenMP's own setting (gemm.c). */
static int default_threads(void)
{
	const char *limit = getenv("OMP_NUM_THREADS");
	int cores = cpu_cores(), requested = limit ? atoi(limit) : 0;
	return requested > 0 && requested < cores ? requested : cores;
}

/* Write the processor's name, such as "AMD EPYC 9654", or "CPU" if the system does not give one. */
static void cpu_model(char *out, size_t size)
{
	snprintf(out, size, "CPU");
	FILE *f = fopen("/proc/cpuinfo", "r");
	if (!f)
		return;
	char line[256];
	while (fgets(line, sizeof line, f)) {
		char *colon = strchr(line, ':');
		if (strncmp(line, "model name", 10) != 0 || !colon)
			continue;
		colon += 1 + strspn(colon + 1, " ");
		colon[strcspn(colon, "\n")] = '\0';
		snprintf(out, size, "%s", colon);
		break;
	}
	fclose(f);
}

static void cpu_use_threads(backend *b, int threads)
{
	cpu *c = (cpu *)b;
	assert(threads >= 1 && threads <= c->threads);
	c->sharing = threads;
}

static void cpu_close(backend *b)
{
	free(b);
}

status cpu_open(backend **out, int threads, error *err)
{
	*out = NULL;
	if (threads < 0 || threads > CPU_MAX_THREADS)
		return error_set(err, STATUS_INVALID, "threads", "threads is %d, must be 0 to %d", threads,
		                 CPU_MAX_THREADS);
	const isa *set;
	TRY(isa_choose(&set, err));
	cpu *c = memory_new(1, sizeof *c);
	if (!c)
		return error_set(err, STATUS_NOMEM, NULL, "no memory for the CPU backend");
	c->threads = c->sharing = c->base.threads = threads ? threads : default_threads();
	c->base.use_threads = cpu_use_threads;
	c->base.side_by_side = parts_run;
	c->base.name = "cpu";
	char model[64];
	cpu_model(model, sizeof model);
	snprintf(c->base.device, sizeof c->base.device, "%s, %d thread%s, %s", model, c->threads,
	         c->threads == 1 ? "" : "s", set->name);
	memcpy(c->base.kernel, set->kernels->kernel, sizeof c->base.kernel);
	memcpy(c->base.scratch, set->kernels->scratch, sizeof c->base.scratch);
	for (int i = 0; set->instead && i < OP_COUNT; i++) {
		if (!set->instead->kernel[i])
			continue;
		c->base.kernel[i] = set->instead->kernel[i];
		c->base.scratch[i] = set->instead->scratch[i];
	}
	host_init(&c->base);
	c->base.maxima = true;
	c->base.close = cpu_close;
	*out = &c->base;
	return STATUS_OK;
}
