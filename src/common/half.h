/* Converts between float32 and float16 or bfloat16. Ties round to even. */
#ifndef KVD_COMMON_HALF_H
#define KVD_COMMON_HALF_H

#include <stddef.h>
#include <stdint.h>

typedef enum { KVD_F32, KVD_F16, KVD_BF16 } kvd_dtype;

const char *kvd_dtype_name(kvd_dtype t);
size_t kvd_dtype_bytes(kvd_dtype t);

void kvd_to_f32(kvd_dtype t, const void *src, float *dst, size_t n);

void kvd_from_f32(kvd_dtype t, const float *src, void *dst, size_t n);

/* Returns the index of the first NaN or infinity in src [n], or n. */
size_t kvd_first_nonfinite(kvd_dtype t, const void *src, size_t n);

#endif
