/* threads.h - waiting between compute threads. */
#ifndef ENGINE_CPU_THREADS_H
#define ENGINE_CPU_THREADS_H

/* Number of checks for work before a waiting thread sleeps: about 30 µs. */
#define THREADS_SPIN_COUNT "3000"

/* Let threads that wait at the end of a parallel region spin for a moment and then sleep. The OpenMP runtime reads its
 * environment when it is loaded. This function therefore sets OMP_WAIT_POLICY and GOMP_SPINCOUNT and executes the
 * program again with the same arguments; call it first in main. It returns if OMP_WAIT_POLICY is set already (by this
 * function or by the user) or nothing can be done.
 *
 * Sleeping at once is slower, because a plan runs one parallel loop after the other: waking a sleeper takes 44 µs here,
 * a spinning thread 1.3 µs. Measured with d 128, 6 layers, V 8192: training 22,300 -> 25,300 tokens/s, decoding 256
 * sessions 30,500 -> 46,000. Spinning for ever, the runtime's default, is worse on shared cores, because a spinning
 * thread holds the core that its peer needs. With one busy process beside a training run on 2 cores: 923 tokens/s
 * against 12,093 with sleeping. */
void threads_sleep_when_idle(char **argv);

#endif
