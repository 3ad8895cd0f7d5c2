/* trilinear.h - how many products each channel of trilinear takes part in, and channels a block has. */
#ifndef ENGINE_TENSOR_OPS_TRILINEAR_H
#define ENGINE_TENSOR_OPS_TRILINEAR_H

enum { TRILINEAR_TAPS = 16 };

#endif
