/*
 * float16 and bfloat16 against float32. Rounding is to nearest, ties to even;
 * NaN stays NaN (quiet), overflow becomes infinity as in IEEE 754, subnormals
 * are kept. Vectorised where the machine has F16C / AVX2 / AVX-512.
 */
#ifndef KVD_COMMON_HALF_H
#define KVD_COMMON_HALF_H

#include <stddef.h>
#include <stdint.h>

typedef enum { KVD_F32, KVD_F16, KVD_BF16 } kvd_dtype;

/* "f32", "f16", "bf16"; and their bytes per element. */
const char *kvd_dtype_name(kvd_dtype t);
size_t kvd_dtype_bytes(kvd_dtype t);

/* src [n] of type t -> dst [n] float32; exact. */
void kvd_to_f32(kvd_dtype t, const void *src, float *dst, size_t n);

/* src [n] float32 -> dst [n] of type t, rounded. */
void kvd_from_f32(kvd_dtype t, const float *src, void *dst, size_t n);

#endif
