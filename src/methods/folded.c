#include "methods/folded.h"

#include <assert.h>
#include <cblas.h>
#include <stdlib.h>
#include <string.h>

size_t kvd_fold_scratch(size_t d, size_t n)
{
    return d * d + 2 * d * n;
}

void kvd_fold_rows(size_t d, size_t m, const float *a, size_t cols, float *w, double *scratch)
{
    double *const left = scratch, *const in = left + d * m, *const out = in + d * cols;
    for (size_t i = 0; i < d * m; i++)
        left[i] = (double)a[i];
    for (size_t i = 0; i < d * cols; i++)
        in[i] = (double)w[i];
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)m, (blasint)cols, (blasint)d, 1.0,
                left, (blasint)m, in, (blasint)cols, 0.0, out, (blasint)cols);
    for (size_t i = 0; i < d * cols; i++)
        w[i] = i < m * cols ? (float)out[i] : 0.0F;
}

void kvd_fold_columns(size_t d, size_t m, const float *b, size_t rows, size_t ld, float *w,
                      double *scratch)
{
    double *const right = scratch, *const in = right + m * d, *const out = in + rows * d;
    for (size_t i = 0; i < m * d; i++)
        right[i] = (double)b[i];
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < d; j++)
            in[i * d + j] = (double)w[i * ld + j];
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)m, (blasint)d, 1.0,
                in, (blasint)d, right, (blasint)d, 0.0, out, (blasint)m);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < d; j++)
            w[i * ld + j] = j < m ? (float)out[i * m + j] : 0.0F;
}

enum { OUTPUT_ROWS = 64 };

bool kvd_folds_qk(const kvd_config *c)
{
    return c->positions != KVD_POSITIONS_ROPE && !c->qk_norm;
}

static const kvd_dims_head *head_at(const kvd_folded_list *l, int layer, size_t kv_head)
{
    return &l->dims->head[(size_t)layer * (size_t)l->dims->n_kv_heads + kv_head];
}

/* Returns the matrix that projects a head's Q, K or V, or NULL if none does. Sets *m to its number
 * of columns. */
static const float *matrix_of(const kvd_folded_list *l, int layer, kvd_part part, size_t head,
                              size_t *m)
{
    const size_t group = (size_t)kvd_config_group(l->config);
    const kvd_dims_head *const h = head_at(l, layer, part == KVD_PART_Q ? head / group : head);
    *m = (size_t)(part == KVD_PART_V ? h->d_v : h->d_qk);
    return part == KVD_PART_Q ? h->a_q : part == KVD_PART_K ? h->a_k : h->a_v;
}

static kvd_folded *entry_for(kvd_folded_list *l, const kvd_weight *w, int layer)
{
    for (size_t i = l->n; i-- > 0 && l->item[i].layer == layer;)
        if (l->item[i].tensor.data == w->tensor.data)
            return &l->item[i];
    kvd_folded *const f = &l->item[l->n++];
    *f = (kvd_folded){.name = w->tensor.name, .layer = layer, .tensor = w->tensor, .cols = w->cols};
    return f;
}

static int add_part(kvd_folded_list *l, const kvd_checkpoint *c, kvd_part part, int layer,
                    kvd_err *err)
{
    for (int bias = 0; bias < (part == KVD_PART_O ? 1 : 2); bias++) {
        kvd_weight w;
        if (kvd_weight_find(c, part, bias, layer, &w, err))
            return -1;
        if (!w.n)
            continue;
        kvd_folded *const f = entry_for(l, &w, layer);
        assert(f->n_parts < KVD_FOLDED_PARTS);
        f->output = part == KVD_PART_O;
        f->part[f->n_parts] = part;
        f->where[f->n_parts++] = w;
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const kvd_folded *)a)->name, ((const kvd_folded *)b)->name);
}

static int name_order(const void *key, const void *f)
{
    return strcmp(key, ((const kvd_folded *)f)->name);
}

static bool changes(const kvd_dims *dims, int layer, kvd_part part)
{
    const kvd_dims_head *const head = &dims->head[layer * dims->n_kv_heads];
    for (int g = 0; g < dims->n_kv_heads; g++)
        if (part == KVD_PART_Q || part == KVD_PART_K ? head[g].a_q : head[g].a_v)
            return true;
    return false;
}

int kvd_folded_list_make(kvd_folded_list *l, const kvd_checkpoint *c, const kvd_dims *dims,
                         kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    const kvd_part parts[] = {KVD_PART_V, KVD_PART_O, KVD_PART_Q, KVD_PART_K};
    const size_t room = (size_t)config->n_layers * 7;
    *l = (kvd_folded_list){.config = config, .dims = dims};
    if (kvd_dims_fits(dims, config, err))
        return -1;
    if (kvd_dims_cuts(dims, 0) && !kvd_folds_qk(config))
        return kvd_fail(
            err, "%s is applied between W_Q, W_K and the scores: the bases of Q-K do not fold",
            config->qk_norm ? "a norm" : "RoPE");
    l->item = calloc(room, sizeof *l->item);
    if (!l->item)
        return kvd_no_memory(err, "the list of folded tensors",
                             (unsigned long long)room * sizeof *l->item);
    for (int layer = 0; layer < config->n_layers; layer++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (changes(dims, layer, parts[i]) && add_part(l, c, parts[i], layer, err))
                return -1;
    if (l->n)
        qsort(l->item, l->n, sizeof *l->item, by_name);
    return 0;
}

void kvd_folded_list_release(kvd_folded_list *l)
{
    free(l->item);
    memset(l, 0, sizeof *l);
}

const kvd_folded *kvd_folded_find(const kvd_folded_list *l, const char *name)
{
    return l->n ? bsearch(name, l->item, l->n, sizeof *l->item, name_order) : NULL;
}

typedef struct {
    const kvd_folded_list *list;
    const kvd_folded *folded;
    kvd_folded_sink sink;
    void *ctx;
    float *x;
    double *scratch;
} run;

static const void *stored_at(const kvd_tensor *t, size_t element)
{
    return (const char *)t->data + element * kvd_dtype_bytes(t->dtype);
}

/* Returns the matrix that projects weight rows row .. row + d_head - 1, or NULL if none does. Sets
 * *m to its number of columns. */
static const float *matrix_for_rows(const run *r, size_t row, size_t *m)
{
    const kvd_folded *const f = r->folded;
    const size_t d = (size_t)r->list->config->d_head;
    for (size_t i = 0; i < f->n_parts; i++) {
        const kvd_weight *const w = &f->where[i];
        if (row < w->first || (row - w->first) % w->stride >= w->block)
            continue;
        const size_t of_part =
            (row - w->first) / w->stride * w->block + (row - w->first) % w->stride;
        if (of_part < w->n / w->cols)
            return matrix_of(r->list, f->layer, f->part[i], of_part / d, m);
    }
    return NULL;
}

static int run_rows(const run *r, kvd_err *err)
{
    const kvd_folded *const f = r->folded;
    const size_t d = (size_t)r->list->config->d_head, n = d * f->cols;
    for (size_t row = 0; row < f->tensor.dims[0]; row += d) {
        size_t m = 0;
        const float *const a = matrix_for_rows(r, row, &m);
        kvd_tensor_read(&f->tensor, row * f->cols, n, r->x);
        if (a)
            kvd_fold_rows(d, m, a, f->cols, r->x, r->scratch);
        if (r->sink(r->ctx, r->x, a ? NULL : stored_at(&f->tensor, row * f->cols), n, err))
            return -1;
    }
    return 0;
}

static int run_output(const run *r, kvd_err *err)
{
    const kvd_folded *const f = r->folded;
    const size_t d = (size_t)r->list->config->d_head,
                 group = (size_t)kvd_config_group(r->list->config);
    for (size_t row = 0; row < f->tensor.dims[0]; row += OUTPUT_ROWS) {
        const size_t left = f->tensor.dims[0] - row, rows = left < OUTPUT_ROWS ? left : OUTPUT_ROWS;
        kvd_tensor_read(&f->tensor, row * f->cols, rows * f->cols, r->x);
        for (size_t head = 0; head < f->cols / d; head++) {
            const kvd_dims_head *const h = head_at(r->list, f->layer, head / group);
            if (h->b_v)
                kvd_fold_columns(d, (size_t)h->d_v, h->b_v, rows, f->cols, r->x + head * d,
                                 r->scratch);
        }
        if (r->sink(r->ctx, r->x, NULL, rows * f->cols, err))
            return -1;
    }
    return 0;
}

int kvd_folded_run(const kvd_folded_list *l, const kvd_folded *f, kvd_folded_sink sink, void *ctx,
                   kvd_err *err)
{
    const size_t d = (size_t)l->config->d_head, rows = f->output ? OUTPUT_ROWS : d;
    const size_t scratch = kvd_fold_scratch(d, f->output ? OUTPUT_ROWS : f->cols);
    run r = {
        l, f, sink, ctx, malloc(rows * f->cols * sizeof *r.x), malloc(scratch * sizeof *r.scratch)};
    int status;
    if (r.x && r.scratch)
        status = f->output ? run_output(&r, err) : run_rows(&r, err);
    else
        status = kvd_no_memory(err, "rows of a tensor",
                               (unsigned long long)rows * f->cols * sizeof *r.x +
                                   scratch * sizeof *r.scratch);
    free(r.x);
    free(r.scratch);
    return status;
}
