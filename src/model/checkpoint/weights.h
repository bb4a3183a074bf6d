/*
 * Reads weight matrices and vectors of a model as float32. The file may store another dtype, or a
 * tensor that holds the rows of several matrices. kvd_checkpoint_quantise may reduce the precision.
 */
#ifndef KVD_MODEL_CHECKPOINT_WEIGHTS_H
#define KVD_MODEL_CHECKPOINT_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/family.h"

typedef struct {
    kvd_tensor tensor;
    /* Number of elements of the weight; 0: the model does not have it. */
    size_t n;
    size_t cols; /* number of columns; 1 for a vector */
    /* Location of the rows in the tensor: row i is row first + (i / block) * stride + i % block. */
    size_t first, block, stride;
    int bits;     /* bits per weight after simulated quantisation; 0: as stored */
    size_t group; /* number of weights of a row that share a quantisation scale */
    float plus;   /* constant that is added to each element when it is read */
} kvd_weight;

/*
 * Fills *w with the weight matrix or vector `part` of a layer, or with its bias if `bias`, and
 * checks the shape of its tensor. `layer` is ignored for weights outside the layers. If the model
 * does not have the weight, returns 0 and sets w->n to 0. *w is valid until the checkpoint is
 * closed. Returns -1 with *err on failure.
 */
int kvd_weight_find(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, kvd_weight *w,
                    kvd_err *err);
/* Fills *w as kvd_weight_find does, for a weight of the routed expert `expert` of a layer. */
int kvd_weight_find_expert(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, int expert,
                           kvd_weight *w, kvd_err *err);

/*
 * Returns the index, in the stored tensor, of the element at row `row` and column `col` of the
 * weight matrix *w. The rows of *w may be spread over the tensor in blocks of consecutive rows
 * (kvd_place).
 */
size_t kvd_weight_at(const kvd_weight *w, size_t row, size_t col);

/*
 * Returns the address of the weight's elements in the mapped file, maybe unaligned, if they can be
 * used as they are: the file stores them as `type`, unquantised, consecutive and in order, and
 * kvd_checkpoint_quantise is not in effect. Otherwise returns NULL.
 */
const void *kvd_weight_stored(const kvd_weight *w, kvd_dtype type);

/*
 * Returns the address of the weight's float32 elements in the mapped file if they can be used
 * without conversion and are aligned; else NULL.
 */
const float *kvd_weight_in_place(const kvd_weight *w);

/*
 * Writes elements first .. first+n-1 of the weight to out as float32, row by row. Uses threads if n
 * is large.
 */
void kvd_weight_read(const kvd_weight *w, size_t first, size_t n, float *out);

/*
 * Stores in *bytes the size of all weights. Quantised weights count with codes, scales and zero
 * points, random weights with 2 bytes each, other weights with their size in the file. An output
 * head that is tied to the embedding is not counted again. Fails if kvd_weight_find fails.
 */
int kvd_weights_bytes(const kvd_checkpoint *c, double *bytes, kvd_err *err);

#endif
