#include "engine/cpu/weights.h"

#include <string.h>

#include "methods/folded.h"

static float *floats(kvd_cpu_weights *w, const char *what, size_t n, kvd_err *err)
{
    float *const x = kvd_pool_new(&w->memory, n * sizeof *x);
    if (!x)
        kvd_no_memory(err, what, (unsigned long long)n * sizeof *x);
    return x;
}

static int make_widths(kvd_cpu_weights *w, int layer, kvd_err *err)
{
    kvd_cpu_widths *const u = &w->layer[layer].cut;
    const kvd_config *const c = w->config;
    const size_t n = (size_t)c->n_kv_heads;
    size_t *const all = kvd_pool_new(&w->memory, (4 * n + 2) * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "widths", (4 * n + 2) * sizeof *all);
    *u = (kvd_cpu_widths){
        .d_qk = all, .d_v = all + n, .at_qk = all + 2 * n, .at_v = all + 3 * n + 1};
    for (size_t g = 0; g < n; g++) {
        const kvd_dims_head *const h = w->dims ? &w->dims->head[(size_t)layer * n + g] : NULL;
        u->d_qk[g] = h ? (size_t)h->d_qk : (size_t)c->d_head;
        u->d_v[g] = h ? (size_t)h->d_v : (size_t)c->d_head;
        u->at_qk[g + 1] = u->at_qk[g] + u->d_qk[g];
        u->at_v[g + 1] = u->at_v[g] + u->d_v[g];
    }
    return 0;
}

typedef struct {
    const kvd_config *config;
    const kvd_dims_head *head; /* [n_kv_heads] */
    size_t group;
    float *block;
    double *scratch;
} folding;

/* Returns the matrix [d_head][*m] that projects Q, K or V (`part`) of head g to *m dimensions, or
 * NULL if the first *m dimensions are kept. */
static const float *matrix_of(const folding *f, kvd_part part, size_t g, size_t *m)
{
    const kvd_dims_head *const h = &f->head[g];
    *m = (size_t)(part == KVD_PART_V ? h->d_v : h->d_qk);
    return part == KVD_PART_V ? h->a_v : part == KVD_PART_Q ? h->a_q : h->a_k;
}

/* Multiplies W_Q, W_K or W_V, or their bias (then cols is 1), by the projection of each head, and
 * writes the result to `to`. */
static void fold_rows(const folding *f, kvd_part part, const kvd_weight *w, size_t cols, float *to)
{
    const size_t d = (size_t)f->config->d_head;
    const size_t heads = (size_t)(part == KVD_PART_Q ? f->config->n_heads : f->config->n_kv_heads);
    for (size_t i = 0; i < heads; i++) {
        size_t m;
        const float *const a = matrix_of(f, part, part == KVD_PART_Q ? i / f->group : i, &m);
        kvd_weight_read(w, i * d * cols, d * cols, f->block);
        if (a)
            kvd_fold_rows(d, m, a, cols, f->block, f->scratch);
        memcpy(to, f->block, m * cols * sizeof *to);
        to += m * cols;
    }
}

/* number of rows of W_O that are multiplied by projections at a time */
enum { FOLD_ROWS = 64 };

/* Multiplies W_O by the matrices that map each head's kept dimensions of V back to all dimensions.
 * Writes the result to `to` [rows][width]. */
static void fold_columns(const folding *f, const kvd_weight *w, size_t rows, size_t width,
                         float *to)
{
    const size_t d = (size_t)f->config->d_head, heads = (size_t)f->config->n_heads, ld = heads * d;
    for (size_t i = 0; i < rows; i += FOLD_ROWS) {
        const size_t n = rows - i < FOLD_ROWS ? rows - i : FOLD_ROWS;
        kvd_weight_read(w, i * ld, n * ld, f->block);
        for (size_t h = 0, at = 0; h < heads; h++) {
            const kvd_dims_head *const head = &f->head[h / f->group];
            const size_t m = (size_t)head->d_v;
            if (head->b_v)
                kvd_fold_columns(d, m, head->b_v, n, ld, f->block + h * d, f->scratch);
            for (size_t k = 0; k < n; k++)
                memcpy(to + (i + k) * width + at, f->block + k * ld + h * d, m * sizeof *to);
            at += m;
        }
    }
}

static size_t folded_size(const kvd_cpu_weights *w, const kvd_cpu_layer *l, kvd_part part, size_t n,
                          size_t cols)
{
    const size_t last = (size_t)w->config->n_kv_heads;
    switch (part) {
    case KVD_PART_V:
        return l->cut.at_v[last] * cols;
    case KVD_PART_K:
        return l->cut.at_qk[last] * cols;
    case KVD_PART_Q:
        return w->group * l->cut.at_qk[last] * cols;
    default:
        return n / ((size_t)w->config->n_heads * (size_t)w->config->d_head) * w->group *
               l->cut.at_v[last];
    }
}

static bool folds(const kvd_cpu_weights *w, kvd_part part, bool bias)
{
    if (!w->dims)
        return false;
    if (part == KVD_PART_V || (part == KVD_PART_O && !bias))
        return true;
    return (part == KVD_PART_Q || part == KVD_PART_K) && kvd_folds_qk(w->config);
}

typedef struct {
    bool folded;
    size_t cols, n;
    /* pointer to the weight in the memory-mapped file; NULL if the weight is copied, or the model
     * has none */
    const float *in_place;
} form;

static form form_of(const kvd_cpu_weights *w, const kvd_cpu_layer *l, int p, const kvd_weight *part)
{
    const kvd_part which = (kvd_part)(p / 2);
    form x = {
        .folded = part->n && folds(w, which, p % 2), .cols = p % 2 ? 1 : part->cols, .n = part->n};
    if (x.folded)
        x.n = folded_size(w, l, which, part->n, x.cols);
    else if (part->n)
        x.in_place = kvd_weight_in_place(part);
    return x;
}

static int find_layer(kvd_cpu_weights *w, const kvd_checkpoint *c, int layer, kvd_err *err)
{
    kvd_cpu_layer *const l = &w->layer[layer];
    kvd_weight part[KVD_LAYER_WEIGHTS];
    if (make_widths(w, layer, err) || kvd_layer_find(c, layer, part, err))
        return -1;
    l->rotates = w->dims && !kvd_folds_qk(w->config);
    for (int p = 0; p < KVD_LAYER_WEIGHTS; p++) {
        const form x = form_of(w, l, p, &part[p]);
        w->bytes += (double)x.n * sizeof(float);
        w->own_bytes += x.in_place ? 0 : (double)x.n * sizeof(float);
    }
    return 0;
}

static int load_layer(kvd_cpu_weights *w, const kvd_checkpoint *c, int layer, folding *f,
                      kvd_err *err)
{
    kvd_cpu_layer *const l = &w->layer[layer];
    kvd_weight part[KVD_LAYER_WEIGHTS];
    if (kvd_layer_find(c, layer, part, err))
        return -1;
    f->head = w->dims ? &w->dims->head[layer * w->config->n_kv_heads] : NULL;
    for (int p = 0; p < KVD_LAYER_WEIGHTS; p++) {
        const kvd_part which = (kvd_part)(p / 2);
        const form as = form_of(w, l, p, &part[p]);
        const bool copied = part[p].n && !as.in_place;
        float *const own = copied ? floats(w, "weights", as.n, err) : NULL;
        if (copied && !own)
            return -1;
        if (copied && !as.folded)
            kvd_weight_read(&part[p], 0, as.n, own);
        else if (copied && which == KVD_PART_O)
            fold_columns(f, &part[p], (size_t)w->config->d_model,
                         w->group * l->cut.at_v[w->config->n_kv_heads], own);
        else if (copied)
            fold_rows(f, which, &part[p], as.cols, own);
        (p % 2 ? l->w.b : l->w.w)[which] = copied ? own : as.in_place;
    }
    return 0;
}

static int load_layers(kvd_cpu_weights *w, const kvd_checkpoint *c, kvd_err *err)
{
    const size_t d = (size_t)w->config->d_head, wide = (size_t)w->config->d_model,
                 ld = (size_t)w->config->n_heads * d;
    folding f = {.config = w->config, .group = w->group};
    const size_t most = kvd_fold_scratch(d, wide > FOLD_ROWS ? wide : FOLD_ROWS);
    kvd_pool memory = {0};
    f.block = kvd_pool_new(&memory, (d * wide > FOLD_ROWS * ld ? d * wide : FOLD_ROWS * ld) *
                                        sizeof *f.block);
    f.scratch = kvd_pool_new(&memory, most * sizeof *f.scratch);
    int status = kvd_pool_check(&memory, "a head's weights", err);
    for (int l = 0; !status && l < w->config->n_layers; l++)
        status = load_layer(w, c, l, &f, err);
    kvd_pool_free(&memory);
    return status;
}

const float *kvd_cpu_once(const kvd_cpu_weights *w, kvd_part part, int bias)
{
    return w->once[part - KVD_N_LAYER_PARTS][bias];
}

static int find_once(kvd_cpu_weights *w, const kvd_checkpoint *c, kvd_part part, kvd_err *err)
{
    for (int bias = 0; bias < 2; bias++) {
        kvd_weight x;
        if (kvd_weight_find(c, part, bias, 0, &x, err))
            return -1;
        w->bytes += (double)x.n * sizeof(float);
        w->own_bytes += (double)x.n * sizeof(float);
    }
    return 0;
}

static int load_once(kvd_cpu_weights *w, const kvd_checkpoint *c, kvd_part part, kvd_err *err)
{
    for (int bias = 0; bias < 2; bias++) {
        kvd_weight x;
        float **const to = &w->once[part - KVD_N_LAYER_PARTS][bias];
        if (kvd_weight_find(c, part, bias, 0, &x, err) ||
            (x.n && !(*to = floats(w, "weights", x.n, err))))
            return -1;
        if (x.n)
            kvd_weight_read(&x, 0, x.n, *to);
    }
    return 0;
}

static kvd_part head_part(const kvd_cpu_weights *w)
{
    return w->config->tied_head ? KVD_PART_EMBEDDING : KVD_PART_HEAD;
}

static int find_head(kvd_cpu_weights *w, const kvd_checkpoint *c, kvd_err *err)
{
    kvd_weight x;
    if (kvd_weight_find(c, KVD_PART_EMBEDDING, false, 0, &w->embedding, err) ||
        kvd_weight_find(c, KVD_PART_POSITIONS, false, 0, &w->positions, err) ||
        kvd_weight_find(c, head_part(w), false, 0, &x, err))
        return -1;
    const bool copied = !kvd_weight_in_place(&x);
    /* Bytes of the token and position embeddings as stored in the checkpoint file, which is
     * memory-mapped. */
    const double stored = (double)(w->embedding.n * kvd_dtype_bytes(w->embedding.tensor.dtype)),
                 positions = (double)(w->positions.n * kvd_dtype_bytes(w->positions.tensor.dtype)),
                 head = (double)(x.n * sizeof *w->head);
    w->bytes += head + positions + (w->config->tied_head && !copied ? 0 : stored);
    w->own_bytes += copied ? head : 0;
    return 0;
}

static int load_head(kvd_cpu_weights *w, const kvd_checkpoint *c, kvd_err *err)
{
    kvd_weight x;
    if (kvd_weight_find(c, head_part(w), false, 0, &x, err))
        return -1;
    if ((w->head = kvd_weight_in_place(&x)))
        return 0;
    float *const own = floats(w, "the output head", x.n, err);
    if (!own)
        return -1;
    kvd_weight_read(&x, 0, x.n, own);
    w->head = own;
    return 0;
}

static const kvd_part once_parts[] = {KVD_PART_PROJECT_IN, KVD_PART_NORM_FINAL,
                                      KVD_PART_PROJECT_OUT};
enum { N_ONCE = sizeof once_parts / sizeof *once_parts };

int kvd_cpu_weights_find(kvd_cpu_weights *w, const kvd_checkpoint *c, const kvd_dims *dims,
                         kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    *w = (kvd_cpu_weights){.config = config,
                           .dims = dims,
                           .group = (size_t)(config->n_heads / config->n_kv_heads),
                           .d_embed = (size_t)kvd_config_d_embed(config)};
    if (config->latent)
        return kvd_fail(err,
                        "'%s': a %s model has latent attention, which the serving engine does not "
                        "compute: use kvdim-collect and kvdim-eval",
                        kvd_checkpoint_path(c), config->family);
    if (config->n_experts)
        return kvd_fail(err,
                        "'%s': a %s model has routed experts, which the serving engine on the CPU "
                        "does not compute: use a GPU, or kvdim-collect and kvdim-eval",
                        kvd_checkpoint_path(c), config->family);
    if (dims && kvd_dims_fits(dims, config, err))
        return -1;
    if (!(w->layer = kvd_pool_new(&w->memory, (size_t)config->n_layers * sizeof *w->layer)))
        return kvd_no_memory(err, "layers", (size_t)config->n_layers * sizeof *w->layer);
    for (int l = 0; l < config->n_layers; l++)
        if (find_layer(w, c, l, err))
            return -1;
    for (int i = 0; i < N_ONCE; i++)
        if (find_once(w, c, once_parts[i], err))
            return -1;
    return find_head(w, c, err);
}

int kvd_cpu_weights_load(kvd_cpu_weights *w, const kvd_checkpoint *c, kvd_err *err)
{
    if (load_layers(w, c, err))
        return -1;
    for (int i = 0; i < N_ONCE; i++)
        if (load_once(w, c, once_parts[i], err))
            return -1;
    return load_head(w, c, err);
}

void kvd_cpu_weights_release(kvd_cpu_weights *w)
{
    kvd_pool_free(&w->memory);
    *w = (kvd_cpu_weights){0};
}
