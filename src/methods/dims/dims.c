#include "methods/dims/dims.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the first `width` columns of a basis as float32 [d][width], which the caller frees, or
 * NULL on failure. */
static float *leading_columns(const double *basis, size_t d, size_t width, const char *pair,
                              kvd_err *err)
{
    float *a = kvd_new(d * width, sizeof *a, "a projection", err);
    if (!a)
        return NULL;
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < width; j++) {
            const float x = (float)basis[i * d + j];
            if (!isfinite(x)) {
                kvd_fail(err, "basis of pair '%s': entry [%zu][%zu] is not finite as float32", pair,
                         i, j);
                free(a);
                return NULL;
            }
            a[i * width + j] = x;
        }
    return a;
}

static float *transposed(const float *a, size_t rows, size_t cols, kvd_err *err)
{
    float *b = kvd_new(rows * cols, sizeof *b, "a projection", err);
    if (!b)
        return NULL;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            b[j * rows + i] = a[i * cols + j];
    return b;
}

static int cut_orthogonal(const kvd_dims_method *m, const kvd_spectrum *s, int layer, int kv_head,
                          kvd_dims_head *h, kvd_err *err)
{
    const size_t d = (size_t)s->model.d_head;
    h->a_q = leading_columns(kvd_spectrum_R(s, m->pair[0], layer, kv_head), d, (size_t)h->d_qk,
                             kvd_pair_name[m->pair[0]], err);
    h->a_k = h->a_q;
    h->a_v = leading_columns(kvd_spectrum_R(s, m->pair[1], layer, kv_head), d, (size_t)h->d_v,
                             kvd_pair_name[m->pair[1]], err);
    if (!h->a_q || !h->a_v)
        return -1;
    h->b_v = transposed(h->a_v, d, (size_t)h->d_v, err);
    return h->b_v ? 0 : -1;
}

static int cut_biorthogonal(const kvd_dims_method *m, const kvd_spectrum *s, int layer, int kv_head,
                            kvd_dims_head *h, kvd_err *err)
{
    const size_t d = (size_t)s->model.d_head, d_qk = (size_t)h->d_qk, d_v = (size_t)h->d_v;
    const char *const qk = kvd_pair_name[m->pair[0]], *const v = kvd_pair_name[m->pair[1]];
    h->a_q = leading_columns(kvd_spectrum_R(s, m->pair[0], layer, kv_head), d, d_qk, qk, err);
    h->a_k = h->a_q ? leading_columns(kvd_spectrum_right(s, m->pair[0], layer, kv_head), d, d_qk,
                                      qk, err)
                    : NULL;
    h->a_v = h->a_k ? leading_columns(kvd_spectrum_R(s, m->pair[1], layer, kv_head), d, d_v, v, err)
                    : NULL;
    if (!h->a_v)
        return -1;
    float *right =
        leading_columns(kvd_spectrum_right(s, m->pair[1], layer, kv_head), d, d_v, v, err);
    if (!right)
        return -1;
    h->b_v = transposed(right, d, d_v, err);
    free(right);
    return h->b_v ? 0 : -1;
}

static int check_spectrum(const kvd_dims_method *m, const kvd_spectrum *s, kvd_err *err)
{
    if (s->pairing != KVD_SHARED)
        return kvd_fail(
            err,
            "method '%s' needs pairing 'shared', the spectrum has '%s': a cache holds one K per "
            "KV head",
            m->info.name, kvd_pairing_name[s->pairing]);
    for (int side = 0; side < 2; side++) {
        const kvd_pair pair = m->pair[side];
        if (!s->pair[pair].present)
            return kvd_fail(err, "method '%s' needs pair '%s', which the spectrum lacks",
                            m->info.name, kvd_pair_name[pair]);
        if (s->pair[pair].n_h != s->model.n_kv_heads)
            return kvd_fail(
                err, "method '%s': pair '%s' has %d bases per layer, the model %d KV heads",
                m->info.name, kvd_pair_name[pair], s->pair[pair].n_h, s->model.n_kv_heads);
        if (m->biorthogonal && !s->pair[pair].right)
            return kvd_fail(err, "method '%s' needs the right matrices of pair '%s'", m->info.name,
                            kvd_pair_name[pair]);
    }
    if (strcmp(s->rope, "before") == 0)
        return kvd_fail(err,
                        "method '%s' cuts Q and K after RoPE, the spectrum was taken '%s' RoPE",
                        m->info.name, s->rope);
    if (s->first_layer != 0 || s->n_layers != s->model.n_layers)
        return kvd_fail(err, "method '%s' needs layers 0-%d, the spectrum has layers %d-%d",
                        m->info.name, s->model.n_layers - 1, s->first_layer,
                        s->first_layer + s->n_layers - 1);
    return 0;
}

static int check_widths(const kvd_dims_method *m, const kvd_spectrum *s, const kvd_widths *w,
                        kvd_err *err)
{
    if (w->n_layers != s->n_layers || w->n_kv_heads != s->model.n_kv_heads ||
        w->d_head != s->model.d_head)
        return kvd_fail(
            err,
            "method '%s': widths are for %d layers, %d KV heads, d_head %d; the spectrum has %d, "
            "%d, %d",
            m->info.name, w->n_layers, w->n_kv_heads, w->d_head, s->n_layers, s->model.n_kv_heads,
            s->model.d_head);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < w->n_layers * w->n_kv_heads; i++) {
            const int32_t kept = w->kept[side][i];
            if (kept < 1 || kept > w->d_head)
                return kvd_fail(err, "method '%s': layer %d head %d keeps %d of %d dimensions",
                                m->info.name, i / w->n_kv_heads, i % w->n_kv_heads, (int)kept,
                                w->d_head);
            if (m->one_p && kept != w->kept[0][0])
                return kvd_fail(
                    err,
                    "method '%s' has the same width for every head, but layer %d head %d has %d "
                    "and the first head %d",
                    m->info.name, i / w->n_kv_heads, i % w->n_kv_heads, (int)kept,
                    (int)w->kept[0][0]);
        }
    return 0;
}

static int start(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, kvd_err *err)
{
    memset(d, 0, sizeof *d);
    if (check_spectrum(m, s, err))
        return -1;
    strncpy(d->method, m->info.name, sizeof d->method - 1);
    d->pair[0] = m->pair[0];
    d->pair[1] = m->pair[1];
    d->n_layers = s->n_layers;
    d->n_kv_heads = s->model.n_kv_heads;
    d->d_head = s->model.d_head;
    const size_t n = (size_t)d->n_layers * (size_t)d->n_kv_heads;
    d->head = calloc(n, sizeof *d->head);
    if (!d->head)
        return kvd_no_memory(err, "projections", (unsigned long long)n * sizeof *d->head);
    for (size_t i = 0; i < n; i++)
        d->head[i].d_qk = d->head[i].d_v = d->d_head;
    return 0;
}

/* Computes the projections of one KV head. On failure, releases all projections in *d. */
static int cut_head(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, int layer,
                    int kv_head, kvd_err *err)
{
    kvd_dims_head *const h = &d->head[layer * d->n_kv_heads + kv_head];
    if (!(m->biorthogonal ? cut_biorthogonal(m, s, layer, kv_head, h, err)
                          : cut_orthogonal(m, s, layer, kv_head, h, err)))
        return 0;
    kvd_in(err, "method '%s', layer %d, KV head %d", m->info.name, layer, kv_head);
    kvd_dims_release(d);
    return -1;
}

int kvd_dims_build(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s,
                   const kvd_widths *w, kvd_err *err)
{
    if (start(d, m, s, err))
        return -1;
    if (check_widths(m, s, w, err)) {
        kvd_dims_release(d);
        return -1;
    }
    for (int i = 0; i < d->n_layers * d->n_kv_heads; i++) {
        d->head[i].d_qk = w->kept[0][i];
        d->head[i].d_v = w->kept[1][i];
        if (cut_head(d, m, s, i / d->n_kv_heads, i % d->n_kv_heads, err))
            return -1;
    }
    return 0;
}

static void drop_qk(kvd_dims_head *h)
{
    if (h->a_k != h->a_q)
        free(h->a_k);
    free(h->a_q);
    free(h->b_k);
    h->a_q = h->a_k = h->b_k = NULL;
}

static void drop_v(kvd_dims_head *h)
{
    free(h->a_v);
    free(h->b_v);
    h->a_v = h->b_v = NULL;
}

void kvd_dims_release(kvd_dims *d)
{
    if (d->head)
        for (size_t i = 0; i < (size_t)d->n_layers * (size_t)d->n_kv_heads; i++) {
            drop_qk(&d->head[i]);
            drop_v(&d->head[i]);
        }
    free(d->head);
    memset(d, 0, sizeof *d);
}

static void leave(const kvd_dims *d, kvd_dims_head *h, int side)
{
    if (side == 0) {
        drop_qk(h);
        h->d_qk = d->d_head;
    } else {
        drop_v(h);
        h->d_v = d->d_head;
    }
}

int kvd_dims_one(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, int layer,
                 int kv_head, int side, int width, kvd_err *err)
{
    if (start(d, m, s, err))
        return -1;
    assert(layer >= 0 && layer < d->n_layers && kv_head >= 0 && kv_head < d->n_kv_heads);
    assert(width >= 1 && width <= d->d_head);
    kvd_dims_head *const h = &d->head[layer * d->n_kv_heads + kv_head];
    *(side == 0 ? &h->d_qk : &h->d_v) = width;
    if (cut_head(d, m, s, layer, kv_head, err))
        return -1;
    leave(d, h, 1 - side);
    return 0;
}

bool kvd_dims_cuts(const kvd_dims *d, int side)
{
    for (int i = 0; i < d->n_layers * d->n_kv_heads; i++)
        if (side == 0 ? d->head[i].a_k : d->head[i].a_v)
            return true;
    return false;
}

void kvd_dims_leave(kvd_dims *d, int side)
{
    for (int i = 0; i < d->n_layers * d->n_kv_heads; i++)
        leave(d, &d->head[i], side);
}

void kvd_dims_leave_layers(kvd_dims *d, int first, int last)
{
    for (int i = 0; i < d->n_layers * d->n_kv_heads; i++) {
        const int layer = i / d->n_kv_heads;
        for (int side = 0; (layer < first || layer >= d->n_layers - last) && side < 2; side++)
            leave(d, &d->head[i], side);
    }
}

int kvd_dims_fits(const kvd_dims *d, const kvd_config *c, kvd_err *err)
{
    if (c->latent)
        return kvd_fail(err,
                        "projections cut keys and values apart, but a %s model caches one latent "
                        "per token that is both: use none, or a method that only drops tokens",
                        c->family);
    if (d->n_layers != c->n_layers || d->n_kv_heads != c->n_kv_heads || d->d_head != c->d_head)
        return kvd_fail(
            err, "projections are for %d layers, %d KV heads, d_head %d; the model has %d, %d, %d",
            d->n_layers, d->n_kv_heads, d->d_head, c->n_layers, c->n_kv_heads, c->d_head);
    return 0;
}

void kvd_dims_widths(const kvd_dims *d, kvd_widths *w)
{
    assert(w->n_layers == d->n_layers && w->n_kv_heads == d->n_kv_heads && w->d_head == d->d_head);
    for (int i = 0; i < d->n_layers * d->n_kv_heads; i++) {
        w->kept[0][i] = d->head[i].d_qk;
        w->kept[1][i] = d->head[i].d_v;
    }
}

int kvd_widths_uniform(kvd_widths *w, double p)
{
    if (!(p >= 0 && p < 1))
        return -1;
    int32_t kept = (int32_t)lround((1 - p) * w->d_head);
    if (kept < 1)
        kept = 1;
    for (int i = 0; i < w->n_layers * w->n_kv_heads; i++)
        w->kept[0][i] = w->kept[1][i] = kept;
    return 0;
}
