/*
 * The stored tensors of a checkpoint that change when projections are folded into it, and their new
 * elements, piece by piece. The layout of the file stays: parts that share a tensor (Phi-3, Falcon)
 * are found in it head by head.
 */
#ifndef KVD_METHODS_FOLDED_H
#define KVD_METHODS_FOLDED_H

#include <stddef.h>

#include "methods/dims/dims.h"
#include "model/checkpoint/weights.h"

/*
 * Folds projections into weight matrices, in double. Rows of activations are multiplied from the
 * right, so with W [out][in] as stored
 *   v' = v A = (x W^T + b) A     W' = A^T W, b' = A^T b
 *   out = (P v') B, y = out W_O^T     W_O' = W_O B^T
 * Checkpoint formats have one width of a head: beyond the kept width the weights are zero.
 */

/*
 * Returns the number of doubles of scratch for heads of d dimensions and n columns of W
 * (kvd_fold_rows) or n rows of W_O (kvd_fold_columns).
 */
size_t kvd_fold_scratch(size_t d, size_t n);

/*
 * Folds matrix a, A [d][m], into the rows w [d][cols] of one head: replaces rows 0 .. m-1 by A^T w
 * and the others by zeros. A bias has one column.
 */
void kvd_fold_rows(size_t d, size_t m, const float *a, size_t cols, float *w, double *scratch);

/*
 * Folds matrix b, B [m][d], into the d columns of one head in rows w [rows][ld] of W_O: replaces
 * columns 0 .. m-1 by w B^T and the others by zeros.
 */
void kvd_fold_columns(size_t d, size_t m, const float *b, size_t rows, size_t ld, float *w,
                      double *scratch);

enum { KVD_FOLDED_PARTS = 3 };

/* Tensor of the checkpoint whose elements change when projections are folded into it. */
typedef struct {
    const char *name; /* stored name; borrowed from the checkpoint */
    int layer;
    bool output; /* true: W_O, whose columns change; false: rows of Q, K, V or their biases */
    kvd_tensor tensor;
    size_t cols; /* number of columns; 1 for a bias */
    size_t n_parts;
    kvd_part part[KVD_FOLDED_PARTS];
    kvd_weight where[KVD_FOLDED_PARTS];
} kvd_folded;

typedef struct {
    const kvd_config *config;
    const kvd_dims *dims;
    kvd_folded *item; /* [n] sorted by name */
    size_t n;
} kvd_folded_list;

/*
 * Makes the list of tensors that change when the projections `dims` are folded into the checkpoint.
 * Projections of Q-K require a model without RoPE and without norms of Q and K (kvd_folds_qk). The
 * list borrows the checkpoint and dims. The caller must call kvd_folded_list_release, after a
 * failure too.
 */
int kvd_folded_list_make(kvd_folded_list *l, const kvd_checkpoint *c, const kvd_dims *dims,
                         kvd_err *err);
void kvd_folded_list_release(kvd_folded_list *l);

/*
 * Returns true if rotations of Q and K can be folded into W_Q and W_K, because nothing (RoPE,
 * norms) is applied between these and the scores.
 */
bool kvd_folds_qk(const kvd_config *c);

/*
 * Returns the list entry of the tensor with this stored name, or NULL if the tensor does not
 * change.
 */
const kvd_folded *kvd_folded_find(const kvd_folded_list *l, const char *name);

/*
 * Callback that receives the next n elements of a tensor. If these elements did not change,
 * `stored` points to them in the file, else it is NULL.
 */
typedef int (*kvd_folded_sink)(void *ctx, const float *x, const void *stored, size_t n,
                               kvd_err *err);

/*
 * Passes all elements of the folded tensor `f` to `sink`, one head's rows or a block of rows of W_O
 * at a time.
 */
int kvd_folded_run(const kvd_folded_list *l, const kvd_folded *f, kvd_folded_sink sink, void *ctx,
                   kvd_err *err);

#endif
