/* bytes.h - the ids of the byte tokenizer, on which stored models depend. */
#ifndef TESTS_UNIT_SUPPORT_BYTES_H
#define TESTS_UNIT_SUPPORT_BYTES_H

enum { BYTES_PAD = 0, BYTES_END = 1, BYTES_UNKNOWN = 2, BYTES_FIRST = 3 };

#endif
