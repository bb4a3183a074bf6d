#include <stdlib.h>
#include <string.h>

#include "methods/cuda/cache_parts.h"

/*
 * Returns a zero-padded copy of x [rows][columns]. If memory is short, returns NULL and sets
 * *status to -1.
 */
static float *padded(const float *x, size_t rows, size_t columns, size_t to_rows, size_t to_columns,
                     int *status, kvd_err *err)
{
    float *const y = x ? calloc(to_rows * to_columns, sizeof *y) : NULL;
    if (x && !y)
        *status = kvd_no_memory(err, "padded projections", to_rows * to_columns * sizeof *y);
    for (size_t i = 0; y && i < rows; i++)
        memcpy(y + i * to_columns, x + i * columns, columns * sizeof *y);
    return y;
}

static int pad_head(const kvd_dims_head *from, size_t d, int d_qk, int d_v, kvd_dims_head *to,
                    kvd_err *err)
{
    int status = 0;
    const size_t qk = (size_t)from->d_qk, v = (size_t)from->d_v;
    /* A head without a matrix keeps all d_head dimensions, so d_head is the layer's widest. */
    *to = (kvd_dims_head){.d_qk = d_qk, .d_v = d_v};
    to->a_q = padded(from->a_q, d, qk, d, (size_t)d_qk, &status, err);
    to->a_k =
        from->a_k == from->a_q ? to->a_q : padded(from->a_k, d, qk, d, (size_t)d_qk, &status, err);
    to->a_v = padded(from->a_v, d, v, d, (size_t)d_v, &status, err);
    to->b_v = padded(from->b_v, v, d, (size_t)d_v, d, &status, err);
    return status;
}

int kvd_dims_widest(const kvd_dims *from, kvd_dims *to, kvd_err *err)
{
    const int kv = from->n_kv_heads, n = from->n_layers * kv;
    *to = *from;
    if (!(to->head = calloc((size_t)n, sizeof *to->head)))
        return kvd_no_memory(err, "padded projections", (size_t)n * sizeof *to->head);
    for (int l = 0; l < n; l += kv) {
        int d_qk = 0, d_v = 0;
        for (int g = 0; g < kv; g++) {
            d_qk = from->head[l + g].d_qk > d_qk ? from->head[l + g].d_qk : d_qk;
            d_v = from->head[l + g].d_v > d_v ? from->head[l + g].d_v : d_v;
        }
        for (int g = 0; g < kv; g++)
            if (pad_head(&from->head[l + g], (size_t)from->d_head, d_qk, d_v, &to->head[l + g],
                         err))
                return -1;
    }
    return 0;
}
