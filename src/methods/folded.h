/*
 * The tensors of a checkpoint that change when projections are folded into its weights, and their
 * new elements, streamed block by block. The layout of the file stays the same. Weights that share
 * one tensor (Phi-3, Falcon) are found in it head by head.
 */
#ifndef KVD_METHODS_FOLDED_H
#define KVD_METHODS_FOLDED_H

#include <stddef.h>

#include "methods/dims/dims.h"
#include "model/checkpoint/weights.h"

/*
 * Folds projections into weight matrices, in double precision. Rows of activations are multiplied
 * from the right, so with W [out][in] as stored
 *   v' = v A = (x W^T + b) A, so W' = A^T W, b' = A^T b
 *   out = (P v') B, y = out W_O^T, so W_O' = W_O B^T
 * where P are the attention probabilities. Checkpoint formats have one width for all heads: beyond
 * the kept width the weights are zero.
 */

/*
 * Returns the number of doubles of scratch memory for heads of d dimensions and n columns of W
 * (kvd_fold_rows) or n rows of W_O (kvd_fold_columns).
 */
size_t kvd_fold_scratch(size_t d, size_t n);

/*
 * Folds matrix a, A [d][m], into the d rows w [d][cols] of one head of W_Q, W_K or W_V: replaces
 * rows 0 .. m-1 by A^T w and the remaining rows by zeros. A bias has one column.
 */
void kvd_fold_rows(size_t d, size_t m, const float *a, size_t cols, float *w, double *scratch);

/*
 * Folds matrix b, B [m][d], into the d columns of one head in W_O. w [rows][ld] points to the first
 * of these columns; columns 0 .. m-1 become w B^T and the remaining columns zeros.
 */
void kvd_fold_columns(size_t d, size_t m, const float *b, size_t rows, size_t ld, float *w,
                      double *scratch);

/* Largest number of weights (Q, K, V, ...) that share one tensor. */
enum { KVD_FOLDED_PARTS = 3 };

/* Tensor of the checkpoint whose elements change when projections are folded into it. */
typedef struct {
    /* Name of the tensor in the checkpoint; borrowed from the checkpoint. */
    const char *name;
    int layer;
    /*
     * True: the tensor is W_O, whose columns change. False: rows of W_Q, W_K, W_V or their biases
     * change.
     */
    bool output;
    kvd_tensor tensor;
    size_t cols; /* number of columns of the tensor; 1 for a bias */
    size_t n_parts;
    kvd_part part[KVD_FOLDED_PARTS];
    kvd_weight where[KVD_FOLDED_PARTS];
} kvd_folded;

typedef struct {
    const kvd_config *config;
    const kvd_dims *dims;
    /* Tensors that change, sorted by name, [n]. */
    kvd_folded *item;
    size_t n;
} kvd_folded_list;

/*
 * Makes the list of tensors that change when the projections `dims` are folded into the checkpoint.
 * Projections of Q and K require a model without RoPE and without norms of Q and K (kvd_folds_qk).
 * The list borrows the checkpoint and dims. The caller must call kvd_folded_list_release, also
 * after a failure.
 */
int kvd_folded_list_make(kvd_folded_list *l, const kvd_checkpoint *c, const kvd_dims *dims,
                         kvd_err *err);
void kvd_folded_list_release(kvd_folded_list *l);

/*
 * Returns true if rotations of Q and K can be folded into W_Q and W_K, because nothing (RoPE,
 * norms) is applied between these weights and the attention scores.
 */
bool kvd_folds_qk(const kvd_config *c);

/*
 * Returns the list entry of the tensor with this stored name, or NULL if the tensor does not
 * change.
 */
const kvd_folded *kvd_folded_find(const kvd_folded_list *l, const char *name);

/*
 * Callback that receives the next n elements of a tensor in `x`. If these elements did not change,
 * `stored` points to them in the checkpoint file, else `stored` is NULL.
 */
typedef int (*kvd_folded_sink)(void *ctx, const float *x, const void *stored, size_t n,
                               kvd_err *err);

/*
 * Passes all elements of the folded tensor `f` to `sink` in order, one head's rows or a block of
 * rows of W_O per call.
 */
int kvd_folded_run(const kvd_folded_list *l, const kvd_folded *f, kvd_folded_sink sink, void *ctx,
                   kvd_err *err);

#endif
