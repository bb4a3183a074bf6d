/* Multiplies projections into a checkpoint's weights, and passes changed tensors to a callback. */
#ifndef KVD_METHODS_FOLDED_H
#define KVD_METHODS_FOLDED_H

#include <stddef.h>

#include "methods/dims/dims.h"
#include "model/checkpoint/weights.h"

/* Returns how many doubles of scratch memory kvd_fold_rows and kvd_fold_columns need. */
size_t kvd_fold_scratch(size_t d, size_t n);

/* Projects the rows `w` [d][cols] of one head of W_Q, W_K or W_V: rows 0 to m - 1 become a^T w, and
 * the other rows become 0. The projection `a` is [d][m]. For a bias, cols is 1. */
void kvd_fold_rows(size_t d, size_t m, const float *a, size_t cols, float *w, double *scratch);

/* Replaces the d columns w [rows][ld] of one head of W_O: columns 0 to m - 1 become w b^T, and the
 * other columns become 0. b [m][d] is the matrix that restores V from projected V. */
void kvd_fold_columns(size_t d, size_t m, const float *b, size_t rows, size_t ld, float *w,
                      double *scratch);

/* Largest number of weight matrices (Q, K and V) that one tensor holds. */
enum { KVD_FOLDED_PARTS = 3 };

typedef struct {
    const char *name;
    int layer;
    /* True if the projection changes columns of W_O, false if rows of W_Q, W_K or W_V. */
    bool output;
    kvd_tensor tensor;
    size_t cols; /* columns of the weight; 1 for a bias */
    size_t n_parts;
    kvd_part part[KVD_FOLDED_PARTS];
    kvd_weight where[KVD_FOLDED_PARTS];
} kvd_folded;

typedef struct {
    const kvd_config *config;
    const kvd_dims *dims;
    kvd_folded *item;
    size_t n;
} kvd_folded_list;

/* Lists the tensors that change when the projections `dims` are multiplied into the weights of
 * checkpoint `c`. `c` and `dims` are borrowed. The caller must call kvd_folded_list_release, even
 * after a failure. */
int kvd_folded_list_make(kvd_folded_list *l, const kvd_checkpoint *c, const kvd_dims *dims,
                         kvd_err *err);
void kvd_folded_list_release(kvd_folded_list *l);

/* Returns true if the rotation matrices of Q and K can be multiplied into the weights W_Q and
 * W_K. */
bool kvd_folds_qk(const kvd_config *c);

const kvd_folded *kvd_folded_find(const kvd_folded_list *l, const char *name);

/* Callback that receives the next n elements x of a weight tensor. `stored`: their bytes in the
 * checkpoint file, or NULL if x differs from the file. */
typedef int (*kvd_folded_sink)(void *ctx, const float *x, const void *stored, size_t n,
                               kvd_err *err);

/* Multiplies weight tensor `f` by its projections, and passes all elements of the product to
 * `sink`, in order. */
int kvd_folded_run(const kvd_folded_list *l, const kvd_folded *f, kvd_folded_sink sink, void *ctx,
                   kvd_err *err);

#endif
