/* Random weights that are not stored: element i depends on the key and i only. */
#ifndef KVD_MODEL_CHECKPOINT_RANDOM_H
#define KVD_MODEL_CHECKPOINT_RANDOM_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t key;
    float scale;    /* standard deviation; if 0, every element is `constant` */
    float constant; /* value if scale is 0; exact in bf16 */
} kvd_random_tensor;

kvd_random_tensor kvd_random_tensor_of(uint64_t seed, const char *name, float scale,
                                       float constant);

void kvd_random_read(const kvd_random_tensor *t, size_t first, size_t n, float *out);

#endif
