#include "methods/cache.h"

#include <assert.h>
#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "methods/head.h"
#include "model/pass/blocks.h"

static void project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a,
                    float *y, size_t ldy)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)m, (blasint)d, 1.0F,
                x, (blasint)ldx, a, (blasint)m, 0.0F, y, (blasint)ldy);
}

static void copy_rows(size_t n, size_t m, const float *x, size_t ldx, float *y)
{
    for (size_t i = 0; i < n; i++)
        memcpy(y + i * m, x + i * ldx, m * sizeof *y);
}

static const kvd_dims_head *head_of(const kvd_cache *c, int layer, size_t g,
                                    const kvd_dims_head *whole)
{
    const kvd_dims *const dims = c->plan->dims;
    return dims ? &dims->head[(size_t)layer * (size_t)dims->n_kv_heads + g] : whole;
}

/* Rounds the n numbers in x to the cache's data type, and writes them to `store`. */
static size_t put(const kvd_cache *c, char *store, size_t at, float *x, size_t n)
{
    void *const to = store + at * kvd_dtype_bytes(c->plan->type);
    kvd_from_f32(c->plan->type, x, to, n);
    kvd_to_f32(c->plan->type, to, x, n);
    return n;
}

static size_t sharing(const kvd_cache *c)
{
    const kvd_dims *const dims = c->plan->dims;
    return dims && dims->rebuild ? (size_t)dims->heads : 1;
}

/* Stores n tokens of K or V, multiplied by matrix `a` unless it is NULL. Returns the number of
 * stored elements. */
static size_t store_side(const kvd_cache *c, size_t n, size_t heads, size_t d, size_t w,
                         const float *x, size_t ld, const float *a, size_t at, float *cut)
{
    if (a)
        project(n, heads * d, w, x, ld, a, cut, w);
    else
        copy_rows(n, d, x, ld, cut);
    return put(c, c->store, at, cut, n * w);
}

static size_t tables_of(const kvd_cache *c, const kvd_config *cf, int layer)
{
    return kvd_rope_local(cf, layer) ? c->rope_len * (size_t)cf->d_head / 2 : 0;
}

static void rebuild_keys(const kvd_cache *c, const kvd_config *cf, int layer, size_t n, size_t w,
                         const float *latent, const float *b, float *k)
{
    project(n, w, (size_t)cf->d_head, latent, w, b, k, (size_t)cf->d_head);
    if (cf->positions == KVD_POSITIONS_ROPE)
        kvd_rope_apply(cf, c->cosine + tables_of(c, cf, layer), c->sine + tables_of(c, cf, layer),
                       c->position, n, 1, k);
}

/* K and V of one KV head as attention reads them: [n][w_k] and [n][w_v]. */
typedef struct {
    float *k, *v;
    const kvd_dims_head *head;
    size_t w_k, w_v;
} stored_head;

/* Returns where K and V of KV head g are stored. Heads that share a latent vector of V share the
 * memory of V. */
static stored_head stored_at(const kvd_cache *c, const kvd_config *cf, int layer, size_t n,
                             size_t g, const kvd_dims_head *whole)
{
    const size_t d = (size_t)cf->d_head, room = n * d, n_kv = (size_t)cf->n_kv_heads;
    const kvd_dims_head *const h = head_of(c, layer, g, whole);
    return (stored_head){.k = c->work + g * room,
                         .v = c->work + (n_kv + g - g % sharing(c)) * room,
                         .head = h,
                         .w_k = h->b_k ? d : (size_t)h->d_qk,
                         .w_v = (size_t)h->d_v};
}

/* Stores n tokens of heads that share a latent vector. Returns how many elements it stored. */
static size_t store_heads(const kvd_cache *c, const kvd_attention_in *in, size_t first, size_t n,
                          size_t g, const kvd_dims_head *whole, size_t at)
{
    const kvd_config *const cf = in->config;
    const size_t d = (size_t)cf->d_head, ld = (size_t)cf->n_kv_heads * d, heads = sharing(c);
    const size_t from = first * ld + g * d;
    const stored_head s = stored_at(c, cf, in->layer, n, g, whole);
    const kvd_dims_head *const h = s.head;
    const size_t d_qk = (size_t)h->d_qk;
    /* If keys are rebuilt from latent vectors, s.v holds the latent vectors until V is written to
     * it. */
    float *const k_cut = h->b_k ? s.v : s.k;
    size_t stored = store_side(c, n, heads, d, d_qk, (h->b_k ? in->k_pre : in->k) + from, ld,
                               h->a_k, at, k_cut);
    for (size_t j = 0; h->b_k && j < heads; j++)
        rebuild_keys(c, cf, in->layer, n, d_qk, k_cut, head_of(c, in->layer, g + j, whole)->b_k,
                     s.k + j * n * d);
    const size_t of_values =
        store_side(c, n, heads, d, s.w_v, in->v + from, ld, h->a_v, at + stored, s.v);
    return stored + (cf->latent ? 0 : of_values);
}

static void attend_block(const stored_head *s, size_t d, kvd_scores score, size_t first,
                         size_t rows, size_t window, const float *q, size_t ld, float *scratch,
                         float *out)
{
    const kvd_dims_head *const h = s->head;
    float *const q_cut = scratch, *const o_cut = q_cut + rows * d,
                 *const scores = o_cut + rows * s->w_v;
    size_t ldq = ld;
    if (h->a_q) {
        project(rows, d, s->w_k, q, ld, h->a_q, q_cut, s->w_k);
        q = q_cut;
        ldq = s->w_k;
    }
    kvd_attend_rows(first, rows, window, s->w_k, s->w_v, q, ldq, s->k, s->w_k, s->v, s->w_v, score,
                    scores, h->b_v ? o_cut : out, h->b_v ? s->w_v : ld);
    if (h->b_v)
        project(rows, s->w_v, d, o_cut, s->w_v, h->b_v, out, ld);
}

static size_t scratch_each(size_t d, size_t heads, size_t longest)
{
    return KVD_ATTEND_ROWS * ((1 + heads) * d + longest);
}

static void attend_rows(const kvd_cache *c, const kvd_attention_in *in, size_t base, size_t n,
                        size_t first, size_t rows, size_t head, const kvd_dims_head *whole,
                        float *scratch, float *out)
{
    const kvd_config *const cf = in->config;
    const size_t d = (size_t)cf->d_head, n_heads = (size_t)cf->n_heads,
                 n_kv = (size_t)cf->n_kv_heads;
    const size_t g = head / (n_heads / n_kv), ldq = n_heads * d, ldk = n_kv * d;
    const stored_head stored = stored_at(c, cf, in->layer, n, g, whole);
    const size_t prompt = kvd_plan_changes_nothing(c->plan) ? 0
                          : c->plan->prompt < n             ? c->plan->prompt
                                                            : n - 1;
    const size_t exact = prompt <= first ? 0 : prompt - first < rows ? prompt - first : rows;
    const size_t at = (base + first) * ldq + head * d;
    const kvd_scores score = kvd_attention_scores(in, head);
    if (exact)
        kvd_attend_rows(first, exact, in->window, d, d, in->q + at, ldq, in->k + base * ldk + g * d,
                        ldk, in->v + base * ldk + g * d, ldk, score, scratch, out + at, ldq);
    if (exact < rows)
        attend_block(&stored, d, score, first + exact, rows - exact, in->window,
                     in->q + at + exact * ldq, ldq, scratch, out + at + exact * ldq);
}

static void attend_sequence(kvd_cache *c, const kvd_attention_in *in, size_t sequence, float *out)
{
    const kvd_config *const cf = in->config;
    const size_t first = in->offset[sequence], n = in->offset[sequence + 1] - first;
    const size_t d = (size_t)cf->d_head, n_heads = (size_t)cf->n_heads,
                 n_kv = (size_t)cf->n_kv_heads;
    const size_t blocks = (n + KVD_ATTEND_ROWS - 1) / KVD_ATTEND_ROWS,
                 each = scratch_each(d, sharing(c), n);
    const kvd_dims_head whole = {.d_qk = (int)d, .d_v = (int)d};
    float *const scratch = c->work + 2 * n_kv * n * d;

    size_t elements = 0;
    for (size_t g = 0; g < n_kv; g += sharing(c))
        elements += store_heads(c, in, first, n, g, &whole, elements);

#pragma omp parallel for schedule(dynamic) collapse(2)
    for (size_t b = 0; b < blocks; b++)
        for (size_t head = 0; head < n_heads; head++) {
            /* Blocks with the most keys run first, to balance the threads. */
            const size_t row = (blocks - 1 - b) * KVD_ATTEND_ROWS;
            const size_t rows = n - row < KVD_ATTEND_ROWS ? n - row : KVD_ATTEND_ROWS;
            attend_rows(c, in, first, n, row, rows, head, &whole,
                        scratch + kvd_thread_index() * each, out);
        }

    c->account.calls++;
    c->account.tokens += n;
    c->account.elements_kept += elements;
    c->account.elements_dense += n * kvd_config_cached(cf);
    const size_t held = kvd_cache_tokens_held(&in->offset[sequence], 1, in->window);
    c->account.tokens_held += held;
    c->account.bytes_stored += elements / n * held * kvd_dtype_bytes(c->plan->type);
}

static int make_tables(kvd_cache *c, const kvd_config *config, size_t n, kvd_err *err)
{
    const size_t half = (size_t)config->d_head / 2, tables = config->rope_local_theta > 0 ? 2 : 1;
    if (!c->hook.wants_pre || config->positions != KVD_POSITIONS_ROPE || c->rope_len == n)
        return 0;
    c->rope_len = 0;
    float *const table = realloc(c->cosine, 2 * tables * n * half * sizeof *table);
    c->cosine = table ? table : c->cosine;
    uint32_t *const position = realloc(c->position, n * sizeof *position);
    c->position = position ? position : c->position;
    if (!table || !position)
        return kvd_no_memory(err, "a rope table",
                             n * (2 * tables * half * sizeof *table + sizeof *position));
    c->sine = table + tables * n * half;
    for (size_t t = 0; t < n; t++)
        position[t] = (uint32_t)t;
    c->rope_len = n;
    for (size_t i = 0; i < tables; i++)
        kvd_rope_tables(config, i, n, n, c->cosine + i * n * half, c->sine + i * n * half);
    return 0;
}

static int run_blocks(kvd_cache *c, const kvd_attention_in *in, float *out, kvd_err *err)
{
    const size_t d = (size_t)in->config->d_head, n_kv = (size_t)in->config->n_kv_heads;
    for (size_t s = 0; s < in->n_sequences; s++) {
        const size_t n = in->offset[s + 1] - in->offset[s];
        if (n == 0 || 2 * n * n_kv * d > c->store_n ||
            2 * n * n_kv * d + kvd_thread_count() * scratch_each(d, sharing(c), n) > c->work_n)
            return kvd_fail(err, "sequence %zu has %zu tokens, the cache was made for 1 to %zu",
                            in->first_sequence + s, n, c->store_n / (2 * n_kv * d));
    }
    int status = 0;
    const int saved = kvd_blas_serial();
    for (size_t s = 0; !status && s < in->n_sequences; s++) {
        status = make_tables(c, in->config, in->offset[s + 1] - in->offset[s], err);
        if (!status)
            attend_sequence(c, in, s, out);
    }
    kvd_blas_restore(saved);
    return status;
}

static bool alike(const kvd_cache *c, const kvd_attention_in *in, size_t a, size_t b)
{
    return !c->hook.wants_pre ||
           in->offset[a + 1] - in->offset[a] == in->offset[b + 1] - in->offset[b];
}

/* Computes attention for sequences `from` .. `to` - 1 in parallel. Then adds their statistics, such
 * as the number of stored bits, to c->account, in sequence order. */
static int step_sequences(kvd_cache *c, const kvd_attention_in *in, size_t from, size_t to,
                          float *out, kvd_err *err)
{
    const kvd_plan *const plan = kvd_plan_of_layer(c->plan, in->layer);
    const size_t n_kv = (size_t)in->config->n_kv_heads,
                 together = kvd_plan_heads_together(plan) ? n_kv : 1, parts = n_kv / together,
                 n = (to - from) * parts;
    const size_t tables = c->cosine ? tables_of(c, in->config, in->layer) : 0;
    size_t failed = n;
    kvd_stepwise_account *const account = calloc(n, sizeof *account);
    if (!account)
        return kvd_no_memory(err, "accounts of heads", n * sizeof *account);
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n; i++) {
        kvd_err mine;
        if (!kvd_stepwise_heads(plan, c->prompts, in, from + i / parts, (int)(i % parts * together),
                                together, c->cosine ? c->cosine + tables : NULL,
                                c->cosine ? c->sine + tables : NULL, out, &account[i], &mine))
            continue;
#pragma omp critical(kvd_cache_step)
        if (i < failed) {
            *err = mine;
            failed = i;
        }
    }
    for (size_t i = 0; i < n; i++)
        kvd_stepwise_account_add(&c->account.steps, &account[i]);
    free(account);
    c->account.calls += to - from;
    c->account.tokens += in->offset[to] - in->offset[from];
    c->account.tokens_held += kvd_cache_tokens_held(in->offset + from, to - from, in->window);
    return failed < n ? -1 : 0;
}

static int run_steps(kvd_cache *c, const kvd_attention_in *in, float *out, kvd_err *err)
{
    int status = 0;
    const int saved = kvd_blas_serial();
    for (size_t s = 0, to; !status && s < in->n_sequences; s = to) {
        for (to = s + 1; to < in->n_sequences && alike(c, in, s, to);)
            to++;
        status = make_tables(c, in->config, in->offset[s + 1] - in->offset[s], err) ||
                 step_sequences(c, in, s, to, out, err);
    }
    kvd_blas_restore(saved);
    return status ? -1 : 0;
}

static int run(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err)
{
    kvd_cache *c = (kvd_cache *)(void *)self;
    assert(!in->start);
    return kvd_plan_stepwise(c->plan) ? run_steps(c, in, out, err) : run_blocks(c, in, out, err);
}

int kvd_cache_init(kvd_cache *c, const kvd_config *config, const kvd_plan *plan, size_t max_len,
                   kvd_err *err)
{
    memset(c, 0, sizeof *c);
    assert(!plan->maker || plan->dims);
    if (plan->dims && kvd_dims_fits(plan->dims, config, err))
        return -1;
    const size_t d = (size_t)config->d_head, n_kv = (size_t)config->n_kv_heads;
    if (max_len == 0 || max_len > (size_t)1 << 24)
        return kvd_fail(err, "a cache for sequences of %zu tokens cannot be made", max_len);
    c->hook.run = run;
    c->hook.wants_pre = (kvd_plan_needs(plan) & KVD_NEEDS_PRE_ROPE) != 0;
    c->hook.wants_input = (kvd_plan_needs(plan) & KVD_NEEDS_INPUT) != 0;
    c->plan = plan;
    if (kvd_plan_stepwise(plan))
        return 0;
    c->store_n = 2 * max_len * n_kv * d;
    c->work_n = c->store_n + kvd_thread_count() * scratch_each(d, sharing(c), max_len);
    c->store = malloc(c->store_n * kvd_dtype_bytes(plan->type));
    c->work = malloc(c->work_n * sizeof *c->work);
    if (!c->store || !c->work) {
        const unsigned long long bytes =
            (unsigned long long)c->store_n * kvd_dtype_bytes(plan->type) +
            c->work_n * sizeof *c->work;
        kvd_cache_release(c);
        return kvd_no_memory(err, "a cache", bytes);
    }
    return 0;
}

void kvd_cache_release(kvd_cache *c)
{
    free(c->store);
    free(c->work);
    free(c->cosine);
    free(c->position);
    memset(c, 0, sizeof *c);
}
