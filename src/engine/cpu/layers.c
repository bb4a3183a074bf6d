#include "engine/cpu/layers.h"

#include <cblas.h>
#include <string.h>

#include "common/threads.h"
#include "model/pass/batch.h"
#include "model/pass/blocks.h"

enum {
    /* largest number of tokens that a matrix product computes at a time */
    BLOCK = 256,
    /* number of tokens of one head that a thread multiplies by the head's projection at a time */
    ROTATED = 64,
};

enum { N_BUFFERS = 12 };

/* Sets size[i] to the number of floats in array i of kvd_cpu_rows, in this order: x, q, k, v, o,
 * q_own, k_own, k_pre, input, work, cosine, sine. */
static void buffer_sizes(const kvd_cpu_weights *w, size_t most, size_t max_len, unsigned needs,
                         size_t size[N_BUFFERS])
{
    const kvd_config *const c = w->config;
    const size_t d = (size_t)c->d_model, q = (size_t)c->n_heads * (size_t)c->d_head,
                 k = (size_t)c->n_kv_heads * (size_t)c->d_head, block = most < BLOCK ? most : BLOCK;
    const size_t tables = kvd_batch_rope_rows(c, max_len) * (size_t)(c->d_head / 2);
    const size_t cut = w->dims ? most : 0;
    const size_t sizes[N_BUFFERS] = {most * d,
                                     most * q,
                                     most * k,
                                     most * k,
                                     most * q,
                                     cut * q,
                                     cut * k,
                                     needs & KVD_NEEDS_PRE_ROPE ? most * k : 0,
                                     needs & KVD_NEEDS_INPUT ? most * d : 0,
                                     block * kvd_layer_scratch(c),
                                     tables,
                                     tables};
    memcpy(size, sizes, sizeof sizes);
}

double kvd_cpu_rows_bytes(const kvd_cpu_weights *w, size_t most, size_t max_len, unsigned needs)
{
    size_t size[N_BUFFERS];
    double bytes = 0;
    buffer_sizes(w, most, max_len, needs, size);
    for (size_t i = 0; i < N_BUFFERS; i++)
        bytes += (double)size[i] * sizeof(float);
    return bytes;
}

int kvd_cpu_rows_init(kvd_cpu_rows *r, const kvd_cpu_weights *w, size_t most, size_t max_len,
                      unsigned needs, kvd_err *err)
{
    float **const all[N_BUFFERS] = {&r->x,     &r->q,     &r->k,      &r->v,
                                    &r->o,     &r->q_own, &r->k_own,  &r->k_pre,
                                    &r->input, &r->work,  &r->cosine, &r->sine};
    size_t size[N_BUFFERS];
    buffer_sizes(w, most, max_len, needs, size);
    *r = (kvd_cpu_rows){.model = w, .most = most, .max_len = max_len, .needs = needs};
    r->bytes = kvd_cpu_rows_bytes(w, most, max_len, needs);
    for (size_t i = 0; i < N_BUFFERS; i++)
        *all[i] = kvd_pool_new(&r->memory, size[i] * sizeof(float));
    r->position = kvd_pool_new(&r->memory, most * sizeof *r->position);
    r->rope_row = kvd_pool_new(&r->memory, most * sizeof *r->rope_row);
    if (kvd_pool_check(&r->memory, "activations of an iteration", err))
        return -1;
    kvd_batch_rope(w->config, max_len, r->cosine, r->sine);
    return 0;
}

void kvd_cpu_rows_release(kvd_cpu_rows *r)
{
    kvd_pool_free(&r->memory);
    *r = (kvd_cpu_rows){0};
}

void kvd_cpu_place(kvd_cpu_rows *r, const kvd_iteration *it)
{
    const kvd_config *const c = r->model->config;
    for (size_t i = 0, row = 0; i < it->n_slices; i++) {
        const size_t whole = it->slice[i].whole ? it->slice[i].whole : r->max_len;
        const size_t table = kvd_batch_rope_first(c, r->max_len, whole);
        for (size_t k = 0; k < it->slice[i].n; k++, row++) {
            r->position[row] = it->slice[i].before + (uint32_t)k;
            r->rope_row[row] = r->position[row] + (uint32_t)table;
        }
    }
}

void kvd_cpu_embed(kvd_cpu_rows *r, const uint32_t *id, size_t n)
{
    const kvd_cpu_weights *const w = r->model;
    const size_t d = (size_t)w->config->d_model;
    const float *const in = kvd_cpu_once(w, KVD_PART_PROJECT_IN, 0);
    float *const row = r->work;
    for (size_t i = 0; i < n; i++) {
        float *const x = r->x + i * d, *const to = in ? row : x;
        kvd_weight_read(&w->embedding, (size_t)id[i] * w->d_embed, w->d_embed, to);
        if (in)
            kvd_linear(to, in, 1, w->d_embed, d, x, 0);
        if (w->config->embed_scale > 0)
            kvd_scale(x, d, (float)w->config->embed_scale);
        /* The vector of position t is in row t + 2 of the table of position embeddings. */
        if (w->positions.n) {
            kvd_weight_read(&w->positions, ((size_t)r->position[i] + 2) * d, d, row);
            kvd_add_bias(x, row, 1, d);
        }
    }
}

static void normalise(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                      const float *x, size_t rows, float *y)
{
    kvd_layer_normalise(c, x, w->w[part], w->b[part], rows, y);
}

void kvd_cpu_before_attention(kvd_cpu_rows *r, int layer, size_t n, kvd_cpu_clock *clock)
{
    const kvd_cpu_weights *const m = r->model;
    const kvd_cpu_layer *const l = &m->layer[layer];
    const kvd_config *const c = m->config;
    const size_t tables = kvd_batch_rope_layer(c, r->max_len, layer) * (size_t)c->d_head / 2;
    const size_t d = (size_t)c->d_model, kv = (size_t)c->n_kv_heads, d_head = (size_t)c->d_head;
    const size_t wide_k = l->rotates ? kv * d_head : l->cut.at_qk[kv], wide_q = m->group * wide_k,
                 wide_v = l->cut.at_v[kv];
    const bool stores = r->needs & KVD_NEEDS_INPUT;
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t rows = n - i < BLOCK ? n - i : BLOCK;
        const kvd_layer_qkv out = {.q = r->q + i * wide_q,
                                   .k = r->k + i * wide_k,
                                   .v = r->v + i * wide_v,
                                   .k_pre =
                                       r->needs & KVD_NEEDS_PRE_ROPE ? r->k_pre + i * wide_k : NULL,
                                   .cosine = r->cosine + tables,
                                   .sine = r->sine + tables,
                                   .rope_row = r->rope_row + i};
        float *const normed = stores ? r->input + i * d : r->work;
        const float *x = r->x + i * d;
        if (kvd_config_norms_inputs(c)) {
            normalise(c, &l->w, KVD_PART_NORM_ATTENTION, x, rows, normed);
            x = normed;
            kvd_cpu_mark(clock, KVD_PHASE_NORM);
        } else if (stores) {
            memcpy(normed, x, rows * d * sizeof *x);
        }
        kvd_layer_project(x, &l->w, KVD_PART_Q, rows, d, wide_q, out.q, 0);
        kvd_layer_project(x, &l->w, KVD_PART_K, rows, d, wide_k, out.k, 0);
        kvd_layer_project(x, &l->w, KVD_PART_V, rows, d, wide_v, out.v, 0);
        kvd_cpu_mark(clock, KVD_PHASE_QKV);
        if (c->qk_norm || c->positions == KVD_POSITIONS_ROPE) {
            kvd_layer_rope(c, &l->w, rows, &out);
            kvd_cpu_mark(clock, KVD_PHASE_ROPE);
        }
    }
}

/* Multiplies x [rows][d] by matrix a [d][m] and writes the product to `to` [rows][m]. If `a` is
 * NULL, copies the first m columns of x. */
static void rotate_rows(size_t rows, size_t d, size_t m, const float *x, size_t ld, const float *a,
                        float *to, size_t ld_to)
{
    if (a)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)rows, (blasint)m,
                    (blasint)d, 1.0f, x, (blasint)ld, a, (blasint)m, 0.0f, to, (blasint)ld_to);
    else
        for (size_t i = 0; i < rows; i++)
            memcpy(to + i * ld_to, x + i * ld, m * sizeof *to);
}

void kvd_cpu_rotate(kvd_cpu_rows *r, int layer, size_t n)
{
    const kvd_cpu_weights *const w = r->model;
    const kvd_cpu_layer *const l = &w->layer[layer];
    const size_t kv = (size_t)w->config->n_kv_heads, heads = (size_t)w->config->n_heads,
                 d = (size_t)w->config->d_head, wide = l->cut.at_qk[kv];
    r->q_cut = l->rotates ? r->q_own : r->q;
    r->k_cut = l->rotates ? r->k_own : r->k;
    if (!l->rotates)
        return;
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (size_t h = 0; h < heads + kv; h++)
        for (size_t i = 0; i < n; i += ROTATED) {
            const size_t rows = n - i < ROTATED ? n - i : ROTATED,
                         g = h < heads ? h / w->group : h - heads;
            const kvd_dims_head *const dims = &w->dims->head[(size_t)layer * kv + g];
            if (h < heads)
                rotate_rows(rows, d, l->cut.d_qk[g], r->q + (i * heads + h) * d, heads * d,
                            dims->a_q,
                            r->q_cut + i * w->group * wide + kvd_cpu_query_at(w, l->cut.at_qk, h),
                            w->group * wide);
            else
                rotate_rows(rows, d, l->cut.d_qk[g], r->k + (i * kv + g) * d, kv * d, dims->a_k,
                            r->k_cut + i * wide + l->cut.at_qk[g], wide);
        }
    kvd_blas_restore(saved);
}

/* Computes a layer's output projection and feed-forward. Normalises each of the two outputs before
 * adding it to the residual stream. */
static void behind_with_branch_norms(const kvd_config *c, const kvd_cpu_layer *l, const float *o,
                                     size_t wide, size_t rows, float *scratch, float *x,
                                     kvd_cpu_clock *clock)
{
    const size_t d = (size_t)c->d_model;
    float *const normed = scratch, *const branch = normed + rows * d,
                 *const gate = branch + rows * d, *const up = gate + rows * (size_t)c->d_ffn;
    kvd_layer_project(o, &l->w, KVD_PART_O, rows, wide, d, branch, 0);
    kvd_cpu_mark(clock, KVD_PHASE_O);
    kvd_layer_add_branch(c, &l->w, KVD_PART_NORM_O, rows, branch, x);
    if (c->order == KVD_ORDER_AROUND)
        normalise(c, &l->w, KVD_PART_NORM_FFN, x, rows, normed);
    kvd_cpu_mark(clock, KVD_PHASE_NORM);
    memset(branch, 0, rows * d * sizeof *branch);
    kvd_layer_feed_forward(c, &l->w, c->order == KVD_ORDER_AROUND ? normed : x, rows, gate, up,
                           branch);
    kvd_cpu_mark(clock, KVD_PHASE_MLP);
    kvd_layer_add_branch(c, &l->w, KVD_PART_NORM_DOWN, rows, branch, x);
    kvd_cpu_mark(clock, KVD_PHASE_NORM);
}

void kvd_cpu_behind_attention(kvd_cpu_rows *r, const kvd_cpu_layer *l, size_t n,
                              kvd_cpu_clock *clock)
{
    const kvd_config *const c = r->model->config;
    const size_t d = (size_t)c->d_model, wide = r->model->group * l->cut.at_v[c->n_kv_heads];
    const kvd_part second = c->shared_norm ? KVD_PART_NORM_ATTENTION : KVD_PART_NORM_FFN;
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t rows = n - i < BLOCK ? n - i : BLOCK;
        float *const x = r->x + i * d, *const normed = r->work, *const gate = normed + rows * d,
                     *const up = gate + rows * (size_t)c->d_ffn;
        /* In models whose attention and feed-forward run in parallel, both read the residual stream
         * before the layer, so the feed-forward's norm is computed before the attention output is
         * added. */
        if (c->order == KVD_ORDER_PARALLEL) {
            normalise(c, &l->w, second, x, rows, normed);
            kvd_cpu_mark(clock, KVD_PHASE_NORM);
        }
        if (kvd_config_norms_branches(c)) {
            behind_with_branch_norms(c, l, r->o + i * wide, wide, rows, r->work, x, clock);
            continue;
        }
        kvd_layer_project(r->o + i * wide, &l->w, KVD_PART_O, rows, wide, d, x, 1);
        kvd_cpu_mark(clock, KVD_PHASE_O);
        if (c->order == KVD_ORDER_BEFORE)
            normalise(c, &l->w, second, x, rows, normed);
        if (c->order == KVD_ORDER_AFTER)
            normalise(c, &l->w, KVD_PART_NORM_ATTENTION, x, rows, x);
        kvd_cpu_mark(clock, KVD_PHASE_NORM);
        kvd_layer_feed_forward(c, &l->w, c->order == KVD_ORDER_AFTER ? x : normed, rows, gate, up,
                               x);
        kvd_cpu_mark(clock, KVD_PHASE_MLP);
        if (c->order == KVD_ORDER_AFTER) {
            normalise(c, &l->w, second, x, rows, x);
            kvd_cpu_mark(clock, KVD_PHASE_NORM);
        }
    }
}
