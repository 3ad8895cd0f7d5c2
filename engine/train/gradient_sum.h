/* gradient_sum.h - adds up the gradients of a step over the ranks of a run (ranks.h).
 *
 * The arena of gradients is cut between parameters into buckets of about GRADIENT_SUM_FLOATS numbers. The sum of a
 * bucket begins when the backward has passed the last node that writes into it, so it is under way while the layers
 * before are still computed. The loss goes with them, and
 * whether a rank wants to stop (ranks.h). One step:
 *
 *   gradient_sum_begin; gradient_sum_passed after some nodes of the backward, or never;
 *   gradient_sum_rest; gradient_sum_poll until it is complete
 *
 * Where the ranks' devices are a group, sums are theirs, and nodes have passed when they are issued; the loss takes the
 * way through the host. Else the gradients of a device are copied to the host, and back. */
#ifndef ENGINE_TRAIN_GRADIENT_SUM_H
#define ENGINE_TRAIN_GRADIENT_SUM_H

#include "engine/model/model.h"
#include "engine/train/ranks.h"

enum { GRADIENT_SUM_FLOATS = 1 << 18 };

typedef struct gradient_sum gradient_sum;

/* gradients: on the model's device, laid out like the trained part of its arena. backward: the plan whose nodes write
 * them; NULL: they are written otherwise, and complete in gradient_sum_rest. Borrows all. STATUS_NOMEM. */
status gradient_sum_new(gradient_sum **out, ranks *r, const model *m, const plan *backward, float *gradients,
                        error *err);
void gradient_sum_free(gradient_sum *s);

/* The node, behind `node` and at most `end`, before which a device that sums is next to be told that nodes have passed:
 * the end of the part of the backward that it can be given as one. */
int gradient_sum_next(const gradient_sum *s, int node, int end);

/* share: what this rank's gradients are multiplied by before they are added to the others'. */
void gradient_sum_begin(gradient_sum *s, float share);
/* The backward has run all nodes before `node`; a device that sums has been given them. Begins the sums of what these
 * have written, and moves on those that have begun. */
status gradient_sum_passed(gradient_sum *s, int node);
/* All gradients are written: begin what has not begun, and the sum of `loss`. */
status gradient_sum_rest(gradient_sum *s, float loss);
/* *complete: the gradients are the sums, in the device's memory, and *loss is that of the losses. */
status gradient_sum_poll(gradient_sum *s, bool *complete, float *loss);

#endif
