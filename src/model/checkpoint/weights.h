/*
 * Reads the parts of a model as float32. The file may store another dtype, or a tensor that holds
 * the rows of several parts; kvd_checkpoint_quantise may reduce the precision.
 */
#ifndef KVD_MODEL_CHECKPOINT_WEIGHTS_H
#define KVD_MODEL_CHECKPOINT_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/family.h"

typedef struct {
    kvd_tensor tensor;
    size_t n;                    /* number of elements of the part; 0: the model has none */
    size_t cols;                 /* columns; 1 for a vector */
    size_t first, block, stride; /* rows in the tensor, as in kvd_place */
    int bits;                    /* bits per weight after quantisation; 0: as stored */
    size_t group;                /* number of weights of a row that share a scale */
    float plus;                  /* constant that is added to each element as it is read */
} kvd_weight;

/*
 * Fills *w with the matrix or vector `part`, or its bias if `bias`, and checks the shape of its
 * tensor. `layer` is ignored for parts that a model has once. If the model has no such part,
 * returns 0 and sets w->n to 0. The tensor is valid until the checkpoint is closed. Returns -1 with
 * *err on failure.
 */
int kvd_weight_find(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, kvd_weight *w,
                    kvd_err *err);
/* Does the same as kvd_weight_find for a part of the routed expert `expert` of a layer. */
int kvd_weight_find_expert(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, int expert,
                           kvd_weight *w, kvd_err *err);

/*
 * Returns the index, in the stored tensor, of the element at this row and column of the part. The
 * part's rows may be spread over the tensor in blocks of consecutive rows (kvd_place).
 */
size_t kvd_weight_at(const kvd_weight *w, size_t row, size_t col);

/*
 * Returns the address of the part's elements in the mapped file, maybe unaligned, if the file
 * stores them unpacked as `type`, consecutively and in the part's order, and no quantisation is
 * set; else NULL.
 */
const void *kvd_weight_stored(const kvd_weight *w, kvd_dtype type);

/*
 * Returns the address of the part's float32 elements in the mapped file if they can be used without
 * conversion and are aligned; else NULL.
 */
const float *kvd_weight_in_place(const kvd_weight *w);

/*
 * Writes elements first .. first+n-1 of the part to out in float32, row by row. Uses threads if n
 * is large.
 */
void kvd_weight_read(const kvd_weight *w, size_t first, size_t n, float *out);

/*
 * Stores in *bytes the size of all weights: codes, scales and zero points of quantised parts, the
 * file's bytes of the others, 2 bytes per random weight. A tied head counts once. Fails if
 * kvd_weight_find fails.
 */
int kvd_weights_bytes(const kvd_checkpoint *c, double *bytes, kvd_err *err);

#endif
