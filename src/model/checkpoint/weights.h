/*
 * Reads weights of a model as float32. The file may store another dtype, or one tensor may hold the
 * rows of several matrices. kvd_checkpoint_quantise may reduce the precision.
 */
#ifndef KVD_MODEL_CHECKPOINT_WEIGHTS_H
#define KVD_MODEL_CHECKPOINT_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/family.h"

typedef struct {
    kvd_tensor tensor;
    /* Number of elements; 0 if the model does not have the weight. */
    size_t n;
    size_t cols; /* 1 for a vector */
    /*
     * Position in the tensor: row i of the weight is row first + (i / block) * stride + i % block
     * of the tensor.
     */
    size_t first, block, stride;
    int bits;     /* bits per weight after simulated quantisation; 0: read as stored */
    size_t group; /* number of weights of a row that share a quantisation scale */
    float plus;   /* added to each element when it is read; 1 for gains g stored as g - 1 */
    float times;  /* factor on each element when it is read; 0 means no factor */
} kvd_weight;

/*
 * Fills *w with a weight, or with its bias if `bias`, and checks the shape of its tensor. `layer`
 * is ignored for weights outside the layers. If the model does not have the weight, returns 0 and
 * sets w->n to 0. Returns -1 with *err on failure. *w is valid until the checkpoint is closed.
 */
int kvd_weight_find(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, kvd_weight *w,
                    kvd_err *err);
int kvd_weight_find_expert(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, int expert,
                           kvd_weight *w, kvd_err *err);

/* Returns the index of an element of the weight in the stored tensor. */
size_t kvd_weight_at(const kvd_weight *w, size_t row, size_t col);

/*
 * Returns the weight's elements in the mapped file, maybe unaligned. Returns NULL if the elements
 * need a conversion to `type`, are not consecutive, or if kvd_checkpoint_quantise is in effect.
 */
const void *kvd_weight_stored(const kvd_weight *w, kvd_dtype type);

/*
 * Returns the address of the weight's float32 elements in the mapped file, or NULL if they are not
 * aligned or need a conversion.
 */
const float *kvd_weight_in_place(const kvd_weight *w);

/* Writes elements first .. first+n-1 to out, row by row. Uses threads if n is large. */
void kvd_weight_read(const kvd_weight *w, size_t first, size_t n, float *out);

/*
 * Stores in *bytes the size of all weights. Quantised weights count with codes, scales and zero
 * points, random weights with 2 bytes each, other weights with their size in the file. A tied
 * output head is counted once. Fails if kvd_weight_find fails.
 */
int kvd_weights_bytes(const kvd_checkpoint *c, double *bytes, kvd_err *err);

#endif
