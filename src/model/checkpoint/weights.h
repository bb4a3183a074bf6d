/* Reads weights of any data type as float32, and rounds them if kvd_checkpoint_quantise says so. */
#ifndef KVD_MODEL_CHECKPOINT_WEIGHTS_H
#define KVD_MODEL_CHECKPOINT_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/family.h"

typedef struct {
    kvd_tensor tensor;
    /* number of elements; 0 if the model lacks the weight */
    size_t n;
    size_t cols; /* 1 for a vector */
    /* The weight consists of blocks of `block` adjacent rows of the stored tensor. The first block
     * begins at row `first`, each other block `stride` rows after the block before it. */
    size_t first, block, stride;
    int bits;     /* bits of simulated quantisation, or 0 for weights as stored */
    size_t group; /* weights of a row per quantisation scale */
    float plus;   /* added when read; 1 for gains g stored as g - 1 */
    float times;  /* factor when read, or 0 for none */
} kvd_weight;

/* Finds a weight or bias of a layer. If the model has no such weight, w->n is 0. */
int kvd_weight_find(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, kvd_weight *w,
                    kvd_err *err);
int kvd_weight_find_expert(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, int expert,
                           kvd_weight *w, kvd_err *err);

/* Returns the index, in the stored tensor, of element (row, col) of the weight. */
size_t kvd_weight_at(const kvd_weight *w, size_t row, size_t col);

/* Returns the weight's elements in the mapped file, maybe unaligned. Returns NULL if the file
 * stores another number type or order, so that the elements must be converted. */
const void *kvd_weight_stored(const kvd_weight *w, kvd_dtype type);

/* Returns the weight's elements in the mapped file if they are float32 there. Returns NULL if they
 * must be converted by kvd_weight_read. */
const float *kvd_weight_in_place(const kvd_weight *w);

/* Writes n elements of a weight, beginning with element `first`, to `out` as float32. Uses several
 * threads if n is large. */
void kvd_weight_read(const kvd_weight *w, size_t first, size_t n, float *out);

/* Computes how many bytes all weights take, including the scales of quantised weights. */
int kvd_weights_bytes(const kvd_checkpoint *c, double *bytes, kvd_err *err);

#endif
