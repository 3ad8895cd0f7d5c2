/* training_speed.h - an estimate of how fast a backend trains, for the time that a job will take. */
#ifndef ENGINE_DAEMON_COMPUTE_TRAINING_SPEED_H
#define ENGINE_DAEMON_COMPUTE_TRAINING_SPEED_H

/* Floating-point operations per second of a training step; 0: unknown, of a device. The first call measures a matrix
 * product for some 10 ms. threads 0: all cores. Pool threads. */
double training_speed(const char *backend_name, int threads);

#endif
