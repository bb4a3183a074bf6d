/*
 * Makes the matrices of method palu on the device and folds some of them into the model's weights.
 */
#include <stdlib.h>
#include <string.h>

#include "methods/cuda/fold.h"
#include "methods/dims/cuda/palu_parts.h"

static const char what[] = "matrices of palu";

/* bf16 matrices, assembled on the host and then copied to the device at once */
typedef struct {
    /* NULL in the first pass, which only counts the n elements. */
    uint16_t *x;
    size_t n;
} pile;

/*
 * Appends x [rows][columns] as bf16 [to_rows][to_columns], padded with zeros, and returns its
 * offset. If `turned` is true, x is [columns][rows] and gets transposed.
 */
static size_t add(pile *to, const float *x, size_t rows, size_t columns, size_t to_rows,
                  size_t to_columns, bool turned)
{
    const size_t at = to->n;
    for (size_t i = 0; to->x && i < to_rows * to_columns; i++) {
        const size_t r = i / to_columns, c = i % to_columns;
        const float y = r < rows && c < columns ? turned ? x[c * rows + r] : x[r * columns + c] : 0;
        kvd_from_f32(KVD_BF16, &y, to->x + at + i, 1);
    }
    to->n += to_rows * to_columns;
    return at;
}

/*
 * Appends the matrices B_k, which rebuild keys, of all heads in the element order of the fused
 * kernel.
 */
static int add_pairs(kvd_palu *p, int l, pile *to, kvd_err *err)
{
    const kvd_palu_shape s = kvd_palu_shape_of(p, l);
    const size_t n = kvd_palu_up_elements(&s), each = (size_t)s.rank_k * KVD_PALU_D_HEAD;
    float *const up = to->x ? calloc(n, sizeof *up) : NULL;
    p->layer[l].up_pair = to->n;
    to->n += n;
    if (!to->x)
        return 0;
    if (!up)
        return kvd_no_memory(err, what, n * sizeof *up);
    for (int g = 0; g < s.n_kv_heads; g++)
        memcpy(up + (size_t)g * each, kvd_palu_head(p, l, g)->b_k,
               (size_t)kvd_palu_head(p, l, g)->d_qk * KVD_PALU_D_HEAD * sizeof *up);
    kvd_palu_pack_up(&s, KVD_BF16, up, to->x + p->layer[l].up_pair);
    free(up);
    return 0;
}

static void add_layer(kvd_palu *p, int l, pile *to)
{
    kvd_latent_layer *const k = &p->store.layer[l];
    kvd_palu_layer *const at = &p->layer[l];
    const size_t d = (size_t)p->dims->d_head, wide = (size_t)p->dims->heads * d;
    for (int side = 0; side < 2; side++) {
        at->down[side] = to->n;
        for (int g = 0; g < p->dims->n_kv_heads; g += p->dims->heads) {
            const kvd_dims_head *const h = kvd_palu_head(p, l, g);
            (void)add(to, side ? h->a_v : h->a_k, wide, (size_t)(side ? h->d_v : h->d_qk), wide,
                      (size_t)k->rank[side][g / p->dims->heads], false);
        }
    }
    at->up = to->n;
    for (int side = 0; side < 2; side++)
        for (int g = 0; g < p->dims->n_kv_heads; g++) {
            const kvd_dims_head *const h = kvd_palu_head(p, l, g);
            k->matrix[side][g] = side && at->direct ? -1 : (int)(to->n - at->up);
            if (!side || !at->direct)
                (void)add(to, side ? h->b_v : h->b_k, d, (size_t)(side ? h->d_v : h->d_qk), d,
                          (size_t)k->rank[side][g / p->dims->heads], true);
        }
    at->back = to->n;
    for (int g = 0; g < p->dims->n_kv_heads; g++)
        (void)add(to, kvd_palu_head(p, l, g)->b_v, (size_t)kvd_palu_head(p, l, g)->d_v, d,
                  (size_t)k->rank[KVD_VALUES][g / p->dims->heads], d, false);
}

static int add_all(kvd_palu *p, pile *to, kvd_err *err)
{
    to->n = 0;
    for (int l = 0; l < p->dims->n_layers; l++) {
        add_layer(p, l, to);
        if (p->fused && add_pairs(p, l, to, err))
            return -1;
    }
    return 0;
}

int kvd_palu_make_matrices(kvd_palu *p, kvd_err *err)
{
    kvd_paged_cache *const c = p->method.cache;
    pile all = {0};
    if (add_all(p, &all, err))
        return -1;
    if (!(all.x = malloc(all.n * sizeof *all.x)))
        return kvd_no_memory(err, what, all.n * sizeof *all.x);
    int status = add_all(p, &all, err);
    if (!status && (!(p->matrix = kvd_device_copy(&p->store.memory, all.x, all.n * sizeof *all.x,
                                                  what, p->w->stream, err)) ||
                    kvd_cuda_check(cudaStreamSynchronize(p->w->stream), what, err)))
        status = -1;
    free(all.x);
    for (int l = 0; !status && l < p->dims->n_layers; l++) {
        p->store.layer[l].up = p->matrix + p->layer[l].up;
        c->layer[l].b_v = p->layer[l].direct ? p->matrix + p->layer[l].back : NULL;
    }
    return status;
}

/*
 * Multiplies W_K and W_V of each group of heads, rows [heads * d_head][d_model], by the transpose
 * of its projection matrix A. The products follow the rows of W_Q without gaps.
 */
static int fold_rows(const kvd_palu *p, int l, uint16_t *temp, kvd_err *err)
{
    kvd_gpu_layer *const to = &p->w->weights.layer[l];
    const size_t model = (size_t)p->w->config.d_model, d = (size_t)p->dims->d_head;
    const size_t heads = (size_t)p->method.cache->share->n_heads, kv = (size_t)p->dims->n_kv_heads;
    const size_t wide = (size_t)p->dims->heads * d;
    uint16_t *const w = to->qkv;
    size_t at = heads * d;
    for (int side = 0; side < 2; side++) {
        const uint16_t *a = p->matrix + p->layer[l].down[side];
        for (size_t g = 0; g < kv * d / wide; g++) {
            const size_t rank = (size_t)p->store.layer[l].rank[side][g],
                         from = (heads + (size_t)side * kv) * d + g * wide;
            if (kvd_gpu_fold_product(p->w, (int)wide, (int)rank, (int)model, a, w + from * model,
                                     temp, err) ||
                kvd_cuda_check(cudaMemcpyAsync(w + at * model, temp, rank * model * sizeof *w,
                                               cudaMemcpyDeviceToDevice, p->w->stream),
                               what, err))
                return -1;
            a += wide * rank;
            at += rank;
        }
    }
    to->n_qkv = (int)at;
    return 0;
}

int kvd_palu_fold(const kvd_palu *p, kvd_err *err)
{
    const kvd_paged_cache *const c = p->method.cache;
    const size_t model = (size_t)p->w->config.d_model, d = (size_t)p->dims->d_head,
                 heads = (size_t)c->share->n_heads, wide = (size_t)p->dims->heads * d;
    const size_t most = wide > heads * d ? wide : heads * d;
    kvd_device_memory memory = {0};
    uint16_t *const temp = kvd_device_new(&memory, model * most * sizeof *temp, what, err);
    int status = temp ? 0 : -1;
    for (int l = 0; l < p->dims->n_layers && !status; l++)
        if ((p->folded && fold_rows(p, l, temp, err)) ||
            (p->layer[l].direct &&
             kvd_gpu_fold_columns(p->w, &p->w->weights.layer[l], &c->layer[l], temp, err)))
            status = -1;
    kvd_err second;
    if (kvd_cuda_check(cudaStreamSynchronize(p->w->stream), what, status ? &second : err))
        status = -1;
    kvd_device_release(&memory);
    return status;
}
