/* Copies projection matrices to the device, for float32 products and bf16 kernels. */
#include <stdlib.h>
#include <string.h>

#include "methods/cuda/cache_parts.h"

static const char what[] = "projections of a cache";

enum { SIDE_Q, SIDE_K, SIDE_V, SIDE_BACK, SIDE_UP, SIDES };

static const float *matrix_of(const kvd_dims_head *h, int side)
{
    return side == SIDE_Q    ? h->a_q
           : side == SIDE_K  ? h->a_k
           : side == SIDE_V  ? h->a_v
           : side == SIDE_UP ? h->b_k
                             : h->b_v;
}

static size_t width_of(const kvd_dims_head *h, int side)
{
    return (size_t)(side < SIDE_V ? h->d_qk : h->d_v);
}

static bool has(const kvd_dims_head *head, int n, int side)
{
    bool some = false;
    for (int g = 0; g < n; g++)
        some = some || matrix_of(&head[g], side);
    return some;
}

static bool one_for_both(const kvd_dims_head *head, int n)
{
    bool same = true;
    for (int g = 0; g < n; g++)
        same = same && head[g].a_q == head[g].a_k;
    return same;
}

/* Copies one projection matrix of a head to `to`, or writes the identity if the head has none. */
static void copy_matrix(const kvd_dims_head *h, int side, size_t d, float *to, size_t ld)
{
    const float *const m = matrix_of(h, side);
    const size_t w = width_of(h, side), rows = side == SIDE_BACK ? w : d,
                 columns = side == SIDE_BACK ? d : w;
    for (size_t i = 0; i < rows; i++)
        if (m)
            memcpy(to + i * ld, m + i * columns, columns * sizeof *m);
        else
            to[i * ld + i] = 1;
}

/* Writes one projection matrix per KV head to `to`, float32 [n][d][d]. The caller must set `to` to
 * 0 before the call. */
static void fill_wide(const kvd_dims_head *head, int n, int side, size_t d, float *to)
{
    for (int g = 0; g < n; g++)
        copy_matrix(&head[g], side, d, to + (size_t)g * d * d, d);
}

/* Writes to `to` the matrices that project K or V to latent vectors or, if `side` is SIDE_UP or
 * SIDE_BACK, the matrices that restore K or V. The caller must zero `to`. */
static void fill_latents(const kvd_dims_head *head, int n, int side, int heads, size_t d, float *to)
{
    const size_t wide = (size_t)heads * d;
    const bool up = side == SIDE_UP || side == SIDE_BACK;
    for (int g = 0; g < n; g += up ? 1 : heads) {
        const size_t w = (size_t)(side == SIDE_UP || side == SIDE_K ? head[g].d_qk : head[g].d_v);
        const float *const m = matrix_of(&head[g], side);
        const size_t rows = up ? w : wide, columns = up ? d : w, ld = up ? d : wide;
        float *const at = to + (size_t)(up ? g : g / heads) * wide * ld;
        for (size_t i = 0; i < rows; i++)
            memcpy(at + i * ld, m + i * columns, columns * sizeof *m);
    }
}

/* Writes the projection matrices of all KV heads to `to`, which the caller must have set to 0.
 * Returns the number of elements. */
static size_t fill_tight(const kvd_dims_head *head, const kvd_attn_map *map, int side, size_t d,
                         float *to)
{
    size_t at = 0;
    for (int g = 0; g < map->n_kv_heads; g++) {
        const size_t w = (size_t)(side < SIDE_V ? map->d_qk[g] : map->d_v[g]);
        copy_matrix(&head[g], side, d, to + at, side == SIDE_BACK ? d : w);
        at += d * w;
    }
    return at;
}

static void resolve_layer(kvd_cache_layer *l, const kvd_config *c, const kvd_gpu_share *share,
                          int layer, bool bf16, size_t max_len, const kvd_dims_head *head,
                          int sharing)
{
    int d_qk[KVD_HEADS_MAX], d_v[KVD_HEADS_MAX];
    const size_t window = kvd_config_window(c, layer);
    const bool few = share->n_kv_heads <= KVD_HEADS_MAX;
    for (int g = 0; g < share->n_kv_heads; g++) {
        const int qk = head ? head[g].d_qk : c->d_head, v = head ? head[g].d_v : c->d_head;
        l->kept += g % sharing ? 0 : (size_t)qk + (size_t)v;
        if (few) {
            d_qk[g] = kvd_pad16(qk, c->d_head);
            d_v[g] = kvd_pad16(v, c->d_head);
        }
    }
    l->kernels = bf16 && few && !(window && window < max_len) &&
                 !kvd_gpu_paged_map(c, share, d_qk, d_v, &l->map);
}

typedef struct {
    /* Memory of all projection matrices; NULL when bytes are only counted. */
    char *arena;
    size_t used;
    /* Float32 scratch [n][d][d] for the projection matrices of n KV heads, before their conversion
     * to bf16. */
    float *wide;
    uint16_t *narrow;
} upload;

static int copy_side(upload *u, const kvd_cache_layer *l, const kvd_dims_head *head, int n,
                     int side, size_t d, const void **to, kvd_err *err)
{
    const size_t all = (size_t)n * d * d * (size_t)(l->heads ? l->heads : 1),
                 room = (all * sizeof *u->wide + 255) / 256 * 256;
    char *const at = u->arena + u->used;
    u->used += room;
    if (!u->arena)
        return 0;
    memset(u->wide, 0, all * sizeof *u->wide);
    const void *from = u->wide;
    size_t bytes = all * sizeof *u->wide;
    if (l->kernels) {
        const size_t elements = fill_tight(head, &l->map, side, d, u->wide);
        kvd_from_f32(KVD_BF16, u->wide, u->narrow, elements);
        from = u->narrow;
        bytes = elements * sizeof *u->narrow;
    } else if (l->heads) {
        fill_latents(head, n, side, l->heads, d, u->wide);
    } else {
        fill_wide(head, n, side, d, u->wide);
    }
    *to = at;
    return kvd_device_put(at, from, bytes, what, err);
}

static int copy_layer(upload *u, kvd_cache_layer *l, const kvd_dims_head *head, int n, size_t d,
                      kvd_err *err)
{
    const void **const to[SIDES] = {&l->a_q, &l->a_k, &l->a_v, &l->b_v, &l->b_k};
    for (int side = 0; side < SIDES; side++) {
        if (side == SIDE_K && one_for_both(head, n))
            l->a_k = l->a_q;
        else if (has(head, n, side) && copy_side(u, l, head, n, side, d, to[side], err))
            return -1;
    }
    return 0;
}

static int copy_layers(upload *u, const kvd_config *c, const kvd_gpu_share *share,
                       const kvd_dims *dims, kvd_cache_layer *layer, kvd_err *err)
{
    for (int l = 0; l < c->n_layers; l++)
        if (copy_layer(u, &layer[l], &dims->head[l * dims->n_kv_heads + share->first_kv_head],
                       share->n_kv_heads, (size_t)c->d_head, err))
            return -1;
    return 0;
}

int kvd_cache_layers_make(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                          size_t max_len, const kvd_dims *dims, kvd_dtype type,
                          kvd_cache_layer *layer, kvd_device_memory *memory, kvd_err *err)
{
    const bool latents = dims && dims->rebuild, bf16 = pass == KVD_BF16 && type == KVD_BF16;
    const int sharing = latents ? dims->heads : 1;
    const size_t d = (size_t)c->d_head, n = (size_t)share->n_kv_heads * (size_t)sharing * d * d;
    if (share->first_kv_head % sharing || share->n_kv_heads % sharing)
        return kvd_fail(err, "KV heads from %d on, %d of them: latents are of %d together",
                        share->first_kv_head, share->n_kv_heads, sharing);
    for (int l = 0; l < c->n_layers; l++) {
        resolve_layer(&layer[l], c, share, l, bf16 && !latents, max_len,
                      dims ? &dims->head[l * dims->n_kv_heads + share->first_kv_head] : NULL,
                      sharing);
        layer[l].heads = latents ? dims->heads : 0;
    }
    if (!dims)
        return 0;
    upload u = {.wide = malloc(n * sizeof *u.wide), .narrow = malloc(n * sizeof *u.narrow)};
    int status = -1;
    if (!u.wide || !u.narrow) {
        kvd_no_memory(err, what, (unsigned long long)n * sizeof *u.wide);
    } else if (!copy_layers(&u, c, share, dims, layer, err)) {
        u.arena = kvd_device_new(memory, u.used, what, err);
        u.used = 0;
        /* The sources are pageable memory, so the copies must end before the buffers are freed. */
        status = u.arena && !copy_layers(&u, c, share, dims, layer, err)
                     ? kvd_cuda_check(cudaDeviceSynchronize(), what, err)
                     : -1;
    }
    free(u.wide);
    free(u.narrow);
    return status;
}

/* Returns a copy of x [rows][columns], padded with zeros, or NULL if x is NULL. If memory runs out,
 * returns NULL and sets *status to -1. */
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
