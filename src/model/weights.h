/*
 * The parts of a model as float32, whatever the file stores: another dtype, or rows of a tensor
 * that holds several parts; and whatever few bits keep of them (kvd_checkpoint_quantise).
 */
#ifndef KVD_MODEL_WEIGHTS_H
#define KVD_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>

#include "model/checkpoint.h"
#include "model/family.h"

typedef struct {
    kvd_tensor tensor;
    size_t n;                    /* elements of the part; 0: the model has none    */
    size_t cols;                 /* 1 for a vector                                 */
    size_t first, block, stride; /* rows of the tensor, as kvd_place               */
    int bits;                    /* 0: as stored; else what is read is of so many  */
    size_t group;                /* weights of a row that share a scale            */
} kvd_weight;

/* Finds the part and checks its tensor's shape. A part that the model does not have is no error: n is
 * 0. The tensor is valid until the checkpoint is closed. */
int kvd_weight_find(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, kvd_weight *w,
                    kvd_err *err);

/* Which element of the tensor is in that row and column of the part. Rows of one block follow each other. */
size_t kvd_weight_at(const kvd_weight *w, size_t row, size_t col);

/* The part in the file, when it is read as it stands there, as elements of that type in one piece, maybe unaligned; else NULL. */
const void *kvd_weight_stored(const kvd_weight *w, kvd_dtype type);

/* The same of aligned float32. */
const float *kvd_weight_in_place(const kvd_weight *w);

/* Elements first .. first+n-1 of the part, row by row, in float32. Uses threads when n is large. */
void kvd_weight_read(const kvd_weight *w, size_t first, size_t n, float *out);

/*
 * Bytes of all weights: of what is quantised its codes, scales and zero points, of the rest what the file takes, random weights 2 bytes
 * each; a tied head once. Fails as kvd_weight_find.
 */
int kvd_weights_bytes(const kvd_checkpoint *c, double *bytes, kvd_err *err);

#endif
