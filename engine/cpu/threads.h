/* threads.h - how compute threads wait for each other. */
#ifndef ENGINE_CPU_THREADS_H
#define ENGINE_CPU_THREADS_H

/* Let threads sleep, not spin, at the end of a parallel region. The OpenMP runtime reads
 * OMP_WAIT_POLICY when it is loaded, so this sets it and runs the program anew with the same
 * arguments; call it first thing in main. It returns when the policy is set already (by
 * this function or by the user), or when nothing can be done about it.
 *
 * Why: spinning is only good on cores nobody else wants. With one busy process beside a
 * training run on 2 cores, a thread that spins holds the core its peer needs; measured
 * (d 128, 6 layers, 8 x 512 tokens): 923 tokens/s spinning, 12,093 sleeping. */
void threads_sleep_when_idle(char **argv);

#endif
