/*
 * How far attention outputs of a compressed run are from those of the uncompressed run, per layer and
 * query head, before the output projection (ZDC 4.2; D-25: of O^h, not of O_L, which mixes heads). The
 * runs are whole ones, so errors of lower layers are part of what an upper layer shows.
 */
#ifndef KVD_ANALYSIS_ATTENTION_ERROR_H
#define KVD_ANALYSIS_ATTENTION_ERROR_H

#include "model/attention.h"

/* Attention outputs of the uncompressed run, of one batch or of several: filled by a tap, read by another. */
typedef struct {
    float *out; /* [n_layers][max_tokens][n_heads * d_head] */
    size_t max_tokens, width;
    size_t first; /* where the rows of the batch at hand begin */
    int n_layers;
} kvd_kept_attention;

int kvd_kept_attention_init(kvd_kept_attention *k, const kvd_config *c, size_t max_tokens, kvd_err *err);
void kvd_kept_attention_release(kvd_kept_attention *k);
/* kvd_tap's `output`, ctx a kvd_kept_attention. */
int kvd_kept_attention_save(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/* Sums of one run over batches, all [n_layers][n_heads]. */
typedef struct {
    const kvd_kept_attention *kept; /* borrowed; u                              */
    int n_layers, n_heads, d_head;
    double *diff2;    /* sum |v - u|^2                                                      */
    double *norm2;    /* sum |u|^2                                                          */
    double *relative; /* sum |v - u| / |u| over elements with u != 0                        */
    double *n;        /* how many those are                                                 */
    double *n_zero;   /* elements with u = 0: no relative error exists, they are counted    */
} kvd_attention_error;

int kvd_attention_error_init(kvd_attention_error *e, const kvd_kept_attention *kept, const kvd_config *c,
                             kvd_err *err);
void kvd_attention_error_release(kvd_attention_error *e);
/* kvd_tap's `output`, ctx a kvd_attention_error. */
int kvd_attention_error_add(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/* What kvd_attention_error_add adds in all layers of a batch of n rows whose v are u. */
void kvd_attention_error_add_none(kvd_attention_error *e, const kvd_kept_attention *u, size_t n);

/* ||v - u|| / ||u|| and ZDC's elementwise D of one head; NaN where u is all zero. */
double kvd_attention_error_norm(const kvd_attention_error *e, int layer, int head);
double kvd_attention_error_zdc(const kvd_attention_error *e, int layer, int head);
/* Means over layers and heads, and the elements left out of D. */
void kvd_attention_error_mean(const kvd_attention_error *e, double *norm, double *zdc, double *n_zero);

#endif
