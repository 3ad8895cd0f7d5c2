/* parameter_depth.h - depth of a parameter, the layers above it, for rates that decrease with the depth. */
#ifndef ENGINE_TRAIN_PARAMETER_DEPTH_H
#define ENGINE_TRAIN_PARAMETER_DEPTH_H

#include "engine/model/model.h"

/* Parameters of a layer have its number in their names: the first part that is a number ("layers.3.Wv"). A layer may
 * be several numbered parts, as attention and feed-forward of a transformer are. */
typedef struct parameter_depths {
	int first, parts; /* the first parameter with a number; the largest number and 1, 0: none has a number */
} parameter_depths;

parameter_depths parameter_depths_of(const model *m);
/* Return the number of layers above parameter i and 1: 1 for the last layer, 0 for what follows it. What precedes the
 * first layer, such as the table of tokens, has one more than that. */
int64_t parameter_layers_above(const parameter_depths *d, const model *m, int i);

#endif
