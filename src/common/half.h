/*
 * Converts between float32 and float16 or bfloat16. Rounding is to nearest, ties to even; NaN stays
 * a (quiet) NaN, overflow becomes infinity as in IEEE 754, subnormals are kept. Vectorised on
 * machines with F16C, AVX2 or AVX-512.
 */
#ifndef KVD_COMMON_HALF_H
#define KVD_COMMON_HALF_H

#include <stddef.h>
#include <stdint.h>

typedef enum { KVD_F32, KVD_F16, KVD_BF16 } kvd_dtype;

/* Return the name of a number type ("f32", "f16", "bf16") and its size in bytes per element. */
const char *kvd_dtype_name(kvd_dtype t);
size_t kvd_dtype_bytes(kvd_dtype t);

/* Converts src [n] of type t to float32 in dst [n], without rounding. */
void kvd_to_f32(kvd_dtype t, const void *src, float *dst, size_t n);

/* Converts src [n] from float32 to type t in dst [n], with rounding. */
void kvd_from_f32(kvd_dtype t, const float *src, void *dst, size_t n);

/*
 * Returns the index of the first element of src [n] of type t that is NaN or infinite, or n if all
 * are finite. An infinite value that was just converted to t means that the conversion overflowed.
 */
size_t kvd_first_nonfinite(kvd_dtype t, const void *src, size_t n);

#endif
