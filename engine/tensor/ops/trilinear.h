/* trilinear.h - the number of products per channel of trilinear, and of channels per block. */
#ifndef ENGINE_TENSOR_OPS_TRILINEAR_H
#define ENGINE_TENSOR_OPS_TRILINEAR_H

enum { TRILINEAR_TAPS = 16 };

#endif
