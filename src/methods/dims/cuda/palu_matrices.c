/* Method palu on the GPU: copies projections to the GPU in bf16, and multiplies projections into
 * the model's weights. */
#include <stdlib.h>
#include <string.h>

#include "methods/cuda/fold.h"
#include "methods/dims/cuda/palu_parts.h"

static const char matrices[] = "matrices of palu";

/* bf16 numbers of all matrices, collected in host memory to be copied to the GPU at once. */
typedef struct {
    /* NULL in the first of two passes, which only counts in `n` how many numbers `x` will hold. */
    uint16_t *x;
    size_t n;
} pile;

/* Appends matrix x [rows][columns] as bf16, padded with zeros to [to_rows][to_columns]. If `turned`
 * is set, x is [columns][rows] and is transposed first. Returns the offset of the appended
 * matrix. */
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

/* Appends the projections that restore the keys of layer l, in the order in which kvd_palu_decode
 * reads them. */
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
        return kvd_no_memory(err, matrices, n * sizeof *up);
    for (int g = 0; g < s.n_kv_heads; g++)
        memcpy(up + (size_t)g * each, kvd_palu_head(p, l, g)->b_k,
               (size_t)kvd_palu_head(p, l, g)->d_qk * KVD_PALU_D_HEAD * sizeof *up);
    kvd_palu_pack_up(&s, KVD_BF16, up, to->x + p->layer[l].up_pair);
    free(up);
    return 0;
}

/* Appends to `to` the projection that restores K (side 0) or V (side 1) of a group of KV heads. g:
 * first head of the group. */
static void add_group(kvd_palu *p, int l, int side, int g, pile *to)
{
    kvd_latent_layer *const k = &p->store.layer[l];
    const size_t d = (size_t)p->dims.d_head, rank = (size_t)k->rank[side][g / p->dims.heads],
                 each = k->columns ? 8 : rank, first = to->n - p->layer[l].up;
    for (int i = 0; i < p->dims.heads; i++)
        k->matrix[side][g + i] = (int)(first + (size_t)i * d * each);
    for (size_t r = 0; r < rank; r += each)
        for (int i = g; i < g + p->dims.heads; i++) {
            const kvd_dims_head *const h = kvd_palu_head(p, l, i);
            const float *const b = side ? h->b_v : h->b_k;
            const size_t width = (size_t)(side ? h->d_v : h->d_qk),
                         left = width > r ? width - r : 0;
            (void)add(to, left ? b + r * d : NULL, d, left < each ? left : each, d, each, true);
        }
}

static void add_layer(kvd_palu *p, int l, pile *to)
{
    kvd_latent_layer *const k = &p->store.layer[l];
    kvd_palu_layer *const at = &p->layer[l];
    const size_t d = (size_t)p->dims.d_head, wide = (size_t)p->dims.heads * d;
    for (int side = 0; side < 2; side++) {
        at->down[side] = to->n;
        for (int g = 0; g < p->dims.n_kv_heads; g += p->dims.heads) {
            const kvd_dims_head *const h = kvd_palu_head(p, l, g);
            (void)add(to, side ? h->a_v : h->a_k, wide, (size_t)(side ? h->d_v : h->d_qk), wide,
                      (size_t)k->rank[side][g / p->dims.heads], false);
        }
    }
    at->up = to->n;
    for (int side = 0; side < 2; side++)
        for (int g = 0; g < p->dims.n_kv_heads; g += p->dims.heads) {
            if (!side || !at->direct)
                add_group(p, l, side, g, to);
            for (int i = g; side && at->direct && i < g + p->dims.heads; i++)
                k->matrix[side][i] = -1;
        }
    at->back = to->n;
    for (int g = 0; g < p->dims.n_kv_heads; g++)
        (void)add(to, kvd_palu_head(p, l, g)->b_v, (size_t)kvd_palu_head(p, l, g)->d_v, d,
                  (size_t)k->rank[KVD_VALUES][g / p->dims.heads], d, false);
}

static int add_all(kvd_palu *p, pile *to, kvd_err *err)
{
    to->n = 0;
    for (int l = 0; l < p->dims.n_layers; l++) {
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
        return kvd_no_memory(err, matrices, all.n * sizeof *all.x);
    const size_t bytes = all.n * sizeof *all.x;
    if (!add_all(p, &all, err))
        p->matrix = kvd_device_from(&p->store.memory, all.x, bytes, matrices, err);
    free(all.x);
    for (int l = 0; p->matrix && l < p->dims.n_layers; l++) {
        p->store.layer[l].up = p->matrix + p->layer[l].up;
        c->layer[l].b_v = p->layer[l].direct ? p->matrix + p->layer[l].back : NULL;
    }
    return p->matrix ? 0 : -1;
}

/* Replaces W_K and W_V of layer l by their products with the projections, so that the QKV product
 * yields latent vectors. */
static int fold_rows(const kvd_palu *p, int l, uint16_t *temp, kvd_err *err)
{
    kvd_gpu_layer *const to = &p->w->weights.layer[l];
    const size_t model = (size_t)p->w->config.d_model, d = (size_t)p->dims.d_head;
    const size_t heads = (size_t)p->method.cache->share->n_heads, kv = (size_t)p->dims.n_kv_heads;
    const size_t wide = (size_t)p->dims.heads * d;
    uint16_t *const w = to->qkv;
    size_t at = heads * d;
    for (int side = 0; side < 2; side++) {
        const uint16_t *a = p->matrix + p->layer[l].down[side];
        for (size_t g = 0; g < kv * d / wide; g++) {
            const size_t rank = (size_t)p->store.layer[l].rank[side][g],
                         from = (heads + (size_t)side * kv) * d + g * wide;
            if (kvd_gpu_fold_product(p->w, (int)wide, (int)rank, (int)model, a, w + from * model,
                                     temp, err) ||
                kvd_queue_copy(w + at * model, temp, rank * model * sizeof *w, p->w->stream,
                               matrices, err))
                return -1;
            a += wide * rank;
            at += rank;
        }
    }
    to->n_qkv = (int)at;
    return 0;
}

/* Multiplies projections into the model's weights: into W_K and W_V if p->folded is set, and into
 * W_O in layers that attend to latent V. */
int kvd_palu_fold(const kvd_palu *p, kvd_err *err)
{
    const kvd_paged_cache *const c = p->method.cache;
    const size_t model = (size_t)p->w->config.d_model, d = (size_t)p->dims.d_head,
                 heads = (size_t)c->share->n_heads, wide = (size_t)p->dims.heads * d;
    const size_t most = wide > heads * d ? wide : heads * d;
    kvd_device_memory memory = {0};
    uint16_t *const temp = kvd_device_new(&memory, model * most * sizeof *temp, matrices, err);
    int status = temp ? 0 : -1;
    for (int l = 0; l < p->dims.n_layers && !status; l++)
        if ((p->folded && fold_rows(p, l, temp, err)) ||
            (p->layer[l].direct &&
             kvd_gpu_fold_columns(p->w, &p->w->weights.layer[l], &c->layer[l], temp, err)))
            status = -1;
    kvd_err second;
    if (kvd_cuda_check(cudaStreamSynchronize(p->w->stream), matrices, status ? &second : err))
        status = -1;
    kvd_device_release(&memory);
    return status;
}
