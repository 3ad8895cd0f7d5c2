/* training_speed.h - estimates how fast a backend trains, to predict the duration of a job. */
#ifndef ENGINE_DAEMON_COMPUTE_TRAINING_SPEED_H
#define ENGINE_DAEMON_COMPUTE_TRAINING_SPEED_H

/* Return floating-point operations per second of a training step; 0: unknown (devices). The first call measures a
 * matrix product for about 50 ms. threads 0: all cores. Pool threads. */
double training_speed(const char *backend_name, int threads);

#endif
