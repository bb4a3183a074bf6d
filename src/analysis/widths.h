/*
 * Kept dimensions from singular values: Eq. 6 of ZACK (Eq. 1 of FDC), its inverse F_p, and the
 * allocation by measured error. Reading 3 of DESIGN: the integer is primary.
 */
#ifndef KVD_ANALYSIS_WIDTHS_H
#define KVD_ANALYSIS_WIDTHS_H

#include <stdbool.h>

#include "formats/rates.h"

/*
 * keep(r): the largest j + 1 with tail(j) > r, tail(j) = sum_{i >= j} s_i / sum_i s_i; squares of s_i
 * when energy. sigma [d] falling; r in [0, 1). At least 1 is kept (also when all sigma are 0).
 * r = 0 keeps every dimension with a non-zero tail.
 */
int kvd_keep(const double *sigma, size_t d, double r, bool energy);

/* keep(r) for every layer and KV head of both pairs. w is allocated for the spectrum's shape. */
int kvd_widths_eq6(const kvd_spectrum *s, const kvd_pair pair[2], double r, bool energy, kvd_widths *w,
                   kvd_err *err);

/* The smallest r whose overall p reaches wanted_p (bisection on r, then the exact step). *r out. */
int kvd_widths_for_p(const kvd_spectrum *s, const kvd_pair pair[2], double wanted_p, bool energy, double *r,
                     kvd_widths *w, kvd_err *err);

/* F_p as a step function: all removal rates at which some width changes, with the overall p from there on.
 * *table_r, *table_p [*n] allocated, the caller frees. */
int kvd_rate_table(const kvd_spectrum *s, const kvd_pair pair[2], bool energy, double **table_r,
                   double **table_p, size_t *n, kvd_err *err);

/* Table of error (nats of KL divergence) against width, measured with one head cut at a time. */
typedef struct {
    kvd_model_info model;
    char method[32];
    kvd_pair pair[2];
    int n_layers, n_kv_heads, d_head;
    size_t n_widths;
    int32_t *width; /* [n_widths] rising, the last is d_head (error 0)                */
    double *error;  /* [2][n_layers][n_kv_heads][n_widths]                             */
} kvd_error_table;

extern const kvd_schema kvd_schema_error_table; /* "error-table" */
int kvd_error_table_write(kvd_h5 *f, const kvd_error_table *t, kvd_err *err);
int kvd_error_table_load(kvd_error_table *t, const char *path, kvd_err *err);
void kvd_error_table_release(kvd_error_table *t);

/* Widths at overall p that minimise the sum of tabulated errors: the lower convex hull of every head's
 * curve, interpolated, cut greedily by error per dimension. */
int kvd_widths_by_error(const kvd_error_table *t, double wanted_p, kvd_widths *w, kvd_err *err);

#endif
