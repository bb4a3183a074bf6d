/*
 * Folds projections into the weights of a checkpoint, and streams the changed tensors block by
 * block. The layout of the file stays the same.
 */
#ifndef KVD_METHODS_FOLDED_H
#define KVD_METHODS_FOLDED_H

#include <stddef.h>

#include "methods/dims/dims.h"
#include "model/checkpoint/weights.h"

/*
 * The functions of this file fold a projection A, and a matrix B that undoes it, into weights W.
 * They compute in double precision. Activations are multiplied from the right, so with W [out][in]
 * as stored
 *
 *   v' = v A = (x W^T + b) A, so W' = A^T W, b' = A^T b
 *   out = (P v') B, y = out W_O^T, so W_O' = W_O B^T
 *
 * where P are the attention probabilities, and W', b' and W_O' are the folded weights. Checkpoint
 * formats have one width for all heads: beyond the kept dimensions the weights are zero.
 */

/*
 * Returns the number of doubles of scratch memory for folding matrices of heads with d dimensions
 * into W with n columns (kvd_fold_rows) or into W_O with n rows (kvd_fold_columns).
 */
size_t kvd_fold_scratch(size_t d, size_t n);

/*
 * Folds the matrix `a` [d][m] into the rows `w` [d][cols] of one head of W_Q, W_K or W_V: rows 0 ..
 * m-1 become a^T w, the remaining rows zeros. A bias has one column.
 */
void kvd_fold_rows(size_t d, size_t m, const float *a, size_t cols, float *w, double *scratch);

/*
 * Folds b [m][d] into the d columns of one head in W_O. w [rows][ld] points to the first of these
 * columns. Columns 0 .. m-1 become w b^T, the remaining columns zeros.
 */
void kvd_fold_columns(size_t d, size_t m, const float *b, size_t rows, size_t ld, float *w,
                      double *scratch);

/* Largest number of weights (Q, K, V, ...) that one tensor of a checkpoint can hold. */
enum { KVD_FOLDED_PARTS = 3 };

typedef struct {
    /* borrowed from the checkpoint */
    const char *name;
    int layer;
    /*
     * True: the tensor is W_O, whose columns change. False: rows of W_Q, W_K, W_V or their biases
     * change.
     */
    bool output;
    kvd_tensor tensor;
    size_t cols; /* number of columns of the weight; 1 for a bias */
    size_t n_parts;
    kvd_part part[KVD_FOLDED_PARTS];
    kvd_weight where[KVD_FOLDED_PARTS];
} kvd_folded;

typedef struct {
    const kvd_config *config;
    const kvd_dims *dims;
    /* [n] entries sorted by name */
    kvd_folded *item;
    size_t n;
} kvd_folded_list;

/*
 * Lists the tensors that change when `dims` is folded into the checkpoint. Projections of Q and K
 * require a model without RoPE and without norms of Q and K (kvd_folds_qk). The list borrows the
 * checkpoint and `dims`. The caller must call kvd_folded_list_release, also after a failure.
 */
int kvd_folded_list_make(kvd_folded_list *l, const kvd_checkpoint *c, const kvd_dims *dims,
                         kvd_err *err);
void kvd_folded_list_release(kvd_folded_list *l);

/* Returns true if neither RoPE nor a norm is applied between W_Q, W_K and the attention scores. */
bool kvd_folds_qk(const kvd_config *c);

/* Returns the entry of the tensor with this stored name, or NULL if the tensor does not change. */
const kvd_folded *kvd_folded_find(const kvd_folded_list *l, const char *name);

/*
 * Callback that receives the next n elements of a tensor in `x`. If these elements did not change,
 * `stored` points to them in the checkpoint file, else it is NULL.
 */
typedef int (*kvd_folded_sink)(void *ctx, const float *x, const void *stored, size_t n,
                               kvd_err *err);

/* Passes all elements of tensor `f` to `sink` in order, in blocks. */
int kvd_folded_run(const kvd_folded_list *l, const kvd_folded *f, kvd_folded_sink sink, void *ctx,
                   kvd_err *err);

#endif
