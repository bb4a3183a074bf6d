/*
 * A tensor of random weights that is not stored anywhere. Element i is a function of the tensor's
 * key and i alone, has the same bits on the CPU and on a GPU (random_element.h), and is represented
 * exactly by bf16.
 */
#ifndef KVD_MODEL_CHECKPOINT_RANDOM_H
#define KVD_MODEL_CHECKPOINT_RANDOM_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t key;   /* key of the Philox generator: hash of seed and tensor name */
    float scale;    /* standard deviation; 0: every element is `constant` */
    float constant; /* value of every element if scale is 0; exact in bf16 */
} kvd_random_tensor;

/* Returns the random tensor that a checkpoint with random weights of this seed has under `name`. */
kvd_random_tensor kvd_random_tensor_of(uint64_t seed, const char *name, float scale,
                                       float constant);

/*
 * Writes random elements first .. first+n-1 of the tensor to out as float32, on the calling thread:
 * about 6e8 elements per second with AVX2.
 */
void kvd_random_read(const kvd_random_tensor *t, size_t first, size_t n, float *out);

#endif
