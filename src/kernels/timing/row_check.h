/*
 * Is an output right? Query rows of a case, all of them or a sample, computed once by the reference in double from the same
 * rounded inputs, and compared with what an implementation wrote.
 */
#ifndef KVD_KERNELS_ROW_CHECK_H
#define KVD_KERNELS_ROW_CHECK_H

#include "kernels/timing/problem.h"

typedef enum { KVD_CHECK_AUTO, KVD_CHECK_ROWS, KVD_CHECK_ALL, KVD_CHECK_NONE } kvd_check_mode;

typedef struct {
    int request, head; /* query head                                       */
    size_t t;          /* query of the request                             */
    size_t at;         /* its reference is ref + at, d_v of the head long  */
    int d_v;
} kvd_checked_row;

typedef struct {
    size_t n; /* 0: nothing is checked */
    kvd_checked_row *row;
    double *ref;
} kvd_row_check;

typedef struct {
    double rel_err; /* ||out - ref|| / ||ref|| over the rows; NaN when an output is not finite         */
    double worst;   /* the same of the worst row, which long rows of small norm cannot hide behind     */
    size_t rows;
} kvd_row_error;

/* Rows of Q, K or V as kvd_problem_rows gives them; what an implementation with inputs of its own makes of the case. */
typedef void (*kvd_row_maker)(const kvd_problem *p, kvd_tensor tensor, int request, int head, size_t first,
                              size_t n, int d, float *rows);

/*
 * Chooses rows and computes their references from data made again, so no input of the kernels is read. A sample has, of up
 * to 8 requests (the shortest and the longest among them) in up to 8 KV heads each, one query head (prefill) at positions
 * around tile borders, at both ends and between, or all query heads (decode). AUTO: all rows up to 2^26 pairs of query and key,
 * a sample beyond. heads: the widths in use, at most 256.
 */
int kvd_row_check_make(kvd_row_check *c, const kvd_problem *p, const kvd_attn_heads *heads,
                       kvd_row_maker make, kvd_check_mode mode, kvd_err *err);
void kvd_row_check_release(kvd_row_check *c);

/* Row [d_v] of the output as float32. */
typedef void (*kvd_row_source)(const void *ctx, int request, int head, size_t t, int d_v, float *row);

int kvd_row_check_compare(const kvd_row_check *c, kvd_row_source source, const void *ctx, kvd_row_error *out,
                          kvd_err *err);

/* Largest rel_err that passes: 4e-3 bf16, 1e-3 fp16, 1e-5 float32; of `worst` three times that. */
double kvd_row_tolerance(kvd_dtype dtype);

#endif
