#include "methods/cache.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "model/blocks.h"

/* y [n][m] = x [n][d] a [d][m], with leading dimensions for x and y. */
static void project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a, float *y,
                    size_t ldy)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)m, (blasint)d, 1.0F, x,
                (blasint)ldx, a, (blasint)m, 0.0F, y, (blasint)ldy);
}

static void copy_rows(size_t n, size_t m, const float *x, size_t ldx, float *y)
{
    for (size_t i = 0; i < n; i++)
        memcpy(y + i * m, x + i * ldx, m * sizeof *y);
}

static const kvd_dims_head *head_of(const kvd_cache *c, int layer, size_t g, const kvd_dims_head *whole)
{
    const kvd_dims *const dims = c->plan->dims;
    return dims ? &dims->head[(size_t)layer * (size_t)dims->n_kv_heads + g] : whole;
}

/* Stores x [n] in the type of the store and hands back in x what a later read finds there. */
static size_t put(const kvd_cache *c, char *store, size_t at, float *x, size_t n)
{
    void *const to = store + at * kvd_dtype_bytes(c->plan->type);
    kvd_from_f32(c->plan->type, x, to, n);
    kvd_to_f32(c->plan->type, to, x, n);
    return n;
}

/* KV heads that share what is stored. */
static size_t sharing(const kvd_cache *c)
{
    const kvd_dims *const dims = c->plan->dims;
    return dims && dims->rebuild ? (size_t)dims->heads : 1;
}

/* K' or V' of `heads` KV heads from x on, rows ld apart: projected into cut [n][w] and put into the store at element `at`. */
static size_t store_side(const kvd_cache *c, size_t n, size_t heads, size_t d, size_t w, const float *x,
                         size_t ld, const float *a, size_t at, float *cut)
{
    if (a)
        project(n, heads * d, w, x, ld, a, cut, w);
    else
        copy_rows(n, d, x, ld, cut);
    return put(c, c->store, at, cut, n * w);
}

/* Keys of full width from latents [n][w], as they are read: behind RoPE. */
static void rebuild_keys(const kvd_cache *c, const kvd_config *cf, size_t n, size_t w, const float *latent,
                         const float *b, float *k)
{
    project(n, w, (size_t)cf->d_head, latent, w, b, k, (size_t)cf->d_head);
    if (cf->positions == KVD_POSITIONS_ROPE)
        kvd_rope_apply(cf, c->cosine, c->sine, c->position, n, 1, k);
}

/* What is stored of a KV head of n rows as a later read finds it: keys [n][w_k], values [n][w_v]. */
typedef struct {
    float *k, *v;
    const kvd_dims_head *head;
    size_t w_k, w_v;
} stored_head;

/* Every head has room for [n][d_head] twice, keys of all heads first; those that share values have their room together. */
static stored_head stored_at(const kvd_cache *c, const kvd_config *cf, int layer, size_t n, size_t g,
                             const kvd_dims_head *whole)
{
    const size_t d = (size_t)cf->d_head, room = n * d, n_kv = (size_t)cf->n_kv_heads;
    const kvd_dims_head *const h = head_of(c, layer, g, whole);
    return (stored_head){.k = c->work + g * room,
                         .v = c->work + (n_kv + g - g % sharing(c)) * room,
                         .head = h,
                         .w_k = h->b_k ? d : (size_t)h->d_qk,
                         .w_v = (size_t)h->d_v};
}

/* Stores n rows of KV heads g .. g + sharing - 1. Returns how many numbers those are. */
static size_t store_heads(const kvd_cache *c, const kvd_attention_in *in, size_t first, size_t n, size_t g,
                          const kvd_dims_head *whole, size_t at)
{
    const kvd_config *const cf = in->config;
    const size_t d = (size_t)cf->d_head, ld = (size_t)cf->n_kv_heads * d, heads = sharing(c);
    const size_t from = first * ld + g * d;
    const stored_head s = stored_at(c, cf, in->layer, n, g, whole);
    const kvd_dims_head *const h = s.head;
    const size_t d_qk = (size_t)h->d_qk;
    float *const k_cut = h->b_k ? s.v : s.k; /* latents of keys have been read when values come */
    size_t stored =
        store_side(c, n, heads, d, d_qk, (h->b_k ? in->k_pre : in->k) + from, ld, h->a_k, at, k_cut);
    for (size_t j = 0; h->b_k && j < heads; j++)
        rebuild_keys(c, cf, n, d_qk, k_cut, head_of(c, in->layer, g + j, whole)->b_k, s.k + j * n * d);
    stored += store_side(c, n, heads, d, s.w_v, in->v + from, ld, h->a_v, at + stored, s.v);
    return stored;
}

/* Query rows first .. first+rows-1 of one head against what is stored; out has leading dimension ld. */
static void attend_block(const stored_head *s, size_t d, size_t first, size_t rows, size_t window,
                         const float *q, size_t ld, float *scratch, float *out)
{
    const kvd_dims_head *const h = s->head;
    const float scale = 1.0f / sqrtf((float)d); /* of the uncut head */
    float *const q_cut = scratch, *const o_cut = q_cut + rows * d, *const scores = o_cut + rows * s->w_v;
    size_t ldq = ld;
    if (h->a_q) {
        project(rows, d, s->w_k, q, ld, h->a_q, q_cut, s->w_k);
        q = q_cut;
        ldq = s->w_k;
    }
    kvd_attend_rows(first, rows, window, s->w_k, s->w_v, q, ldq, s->k, s->w_k, s->v, s->w_v, scale, scores,
                    h->b_v ? o_cut : out, h->b_v ? s->w_v : ld);
    if (h->b_v)
        project(rows, s->w_v, d, o_cut, s->w_v, h->b_v, out, ld);
}

/* Q', O' and the scores of one block of queries. */
static size_t scratch_each(size_t d, size_t heads, size_t longest)
{
    return KVD_ATTEND_ROWS * ((1 + heads) * d + longest);
}

/* Rows first .. first+rows-1 of a query head: those of the prompt see keys and values as they are, later ones what is stored. */
static void attend_rows(const kvd_cache *c, const kvd_attention_in *in, size_t base, size_t n, size_t first,
                        size_t rows, size_t head, const kvd_dims_head *whole, float *scratch, float *out)
{
    const kvd_config *const cf = in->config;
    const size_t d = (size_t)cf->d_head, n_heads = (size_t)cf->n_heads, n_kv = (size_t)cf->n_kv_heads;
    const size_t g = head / (n_heads / n_kv), ldq = n_heads * d, ldk = n_kv * d;
    const stored_head stored = stored_at(c, cf, in->layer, n, g, whole);
    const size_t prompt = kvd_plan_changes_nothing(c->plan) ? 0
                          : c->plan->prompt < n             ? c->plan->prompt
                                                            : n - 1;
    const size_t exact = prompt <= first ? 0 : prompt - first < rows ? prompt - first : rows;
    const size_t at = (base + first) * ldq + head * d;
    if (exact)
        kvd_attend_rows(first, exact, in->window, d, d, in->q + at, ldq, in->k + base * ldk + g * d, ldk,
                        in->v + base * ldk + g * d, ldk, 1.0f / sqrtf((float)d), scratch, out + at, ldq);
    if (exact < rows)
        attend_block(&stored, d, first + exact, rows - exact, in->window, in->q + at + exact * ldq, ldq,
                     scratch, out + at + exact * ldq);
}

static void attend_sequence(kvd_cache *c, const kvd_attention_in *in, size_t sequence, float *out)
{
    const kvd_config *const cf = in->config;
    const size_t first = in->offset[sequence], n = in->offset[sequence + 1] - first;
    const size_t d = (size_t)cf->d_head, n_heads = (size_t)cf->n_heads, n_kv = (size_t)cf->n_kv_heads;
    const size_t blocks = (n + KVD_ATTEND_ROWS - 1) / KVD_ATTEND_ROWS, each = scratch_each(d, sharing(c), n);
    const kvd_dims_head whole = {.d_qk = (int)d, .d_v = (int)d};
    float *const scratch = c->work + 2 * n_kv * n * d;

    size_t elements = 0;
    for (size_t g = 0; g < n_kv; g += sharing(c))
        elements += store_heads(c, in, first, n, g, &whole, elements);

#pragma omp parallel for schedule(dynamic) collapse(2)
    for (size_t b = 0; b < blocks; b++)
        for (size_t head = 0; head < n_heads; head++) {
            const size_t row = (blocks - 1 - b) * KVD_ATTEND_ROWS; /* long ones first */
            const size_t rows = n - row < KVD_ATTEND_ROWS ? n - row : KVD_ATTEND_ROWS;
            attend_rows(c, in, first, n, row, rows, head, &whole, scratch + kvd_thread_index() * each, out);
        }

    c->account.calls++;
    c->account.tokens += n;
    c->account.elements_kept += elements;
    c->account.elements_dense += 2 * n * n_kv * d;
    c->account.bytes_stored += elements * kvd_dtype_bytes(c->plan->type);
}

/* Tables for sequences of this length, where keys before RoPE are turned; they differ only where RoPE's scaling depends on it. */
static int make_tables(kvd_cache *c, const kvd_config *config, size_t n, kvd_err *err)
{
    const size_t half = (size_t)config->d_head / 2;
    if (!c->door.wants_pre || config->positions != KVD_POSITIONS_ROPE || c->rope_len == n)
        return 0;
    c->rope_len = 0;
    float *const tables = realloc(c->cosine, 2 * n * half * sizeof *tables);
    c->cosine = tables ? tables : c->cosine;
    uint32_t *const position = realloc(c->position, n * sizeof *position);
    c->position = position ? position : c->position;
    if (!tables || !position)
        return kvd_no_memory(err, "a rope table", n * (2 * half * sizeof *tables + sizeof *position));
    c->sine = tables + n * half;
    for (size_t t = 0; t < n; t++)
        position[t] = (uint32_t)t;
    c->rope_len = n;
    kvd_rope_tables(config, n, n, c->cosine, c->sine);
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

/* ---- row by row --------------------------------------------------------------------------------- */

/* Whether one set of tables serves both sequences. */
static bool alike(const kvd_cache *c, const kvd_attention_in *in, size_t a, size_t b)
{
    return !c->door.wants_pre || in->offset[a + 1] - in->offset[a] == in->offset[b + 1] - in->offset[b];
}

/* Sequences from .. to-1, all their KV heads side by side. Their accounts are added in order, so that equal runs give equal bits. */
static int step_sequences(kvd_cache *c, const kvd_attention_in *in, size_t from, size_t to, float *out,
                          kvd_err *err)
{
    const size_t n_kv = (size_t)in->config->n_kv_heads, n = (to - from) * n_kv;
    size_t failed = n;
    kvd_stepwise_account *const account = calloc(n, sizeof *account);
    if (!account)
        return kvd_no_memory(err, "accounts of heads", n * sizeof *account);
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n; i++) {
        kvd_err mine;
        if (!kvd_stepwise_head(c->plan, c->prompts, in, from + i / n_kv, (int)(i % n_kv), c->cosine, c->sine,
                               out, &account[i], &mine))
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
    kvd_cache *c = (kvd_cache *)(void *)self; /* door is the first member */
    assert(!in->start);                       /* whole sequences; running ones: running.h */
    return kvd_plan_stepwise(c->plan) ? run_steps(c, in, out, err) : run_blocks(c, in, out, err);
}

/* ---- life ------------------------------------------------------------------------------------------ */

int kvd_cache_init(kvd_cache *c, const kvd_config *config, const kvd_plan *plan, size_t max_len, kvd_err *err)
{
    memset(c, 0, sizeof *c);
    assert(!plan->maker || plan->dims); /* open */
    if (plan->dims && kvd_dims_fits(plan->dims, config, err))
        return -1;
    const size_t d = (size_t)config->d_head, n_kv = (size_t)config->n_kv_heads;
    if (max_len == 0 || max_len > (size_t)1 << 24)
        return kvd_fail(err, "a cache for sequences of %zu tokens cannot be made", max_len);
    c->door.run = run;
    c->door.wants_pre = (kvd_plan_needs(plan) & KVD_NEEDS_PRE_ROPE) != 0;
    c->plan = plan;
    if (kvd_plan_stepwise(plan))
        return 0;
    c->store_n = 2 * max_len * n_kv * d;
    c->work_n = c->store_n + kvd_thread_count() * scratch_each(d, sharing(c), max_len);
    c->store = malloc(c->store_n * kvd_dtype_bytes(plan->type));
    c->work = malloc(c->work_n * sizeof *c->work);
    if (!c->store || !c->work) {
        const unsigned long long bytes =
            (unsigned long long)c->store_n * kvd_dtype_bytes(plan->type) + c->work_n * sizeof *c->work;
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

int kvd_cache_check_steps(const kvd_stepwise_account *a, const kvd_plan *plan, size_t rows, kvd_err *err)
{
    if (a->rows != rows)
        return kvd_fail(err, "the cache took %zu steps, not %zu", a->rows, rows);
    if (plan->levels && a->dropped == 0)
        return kvd_fail(err, "'%s' dropped no entry: its budget holds every sequence whole",
                        plan->tokens->name);
    if (plan->levels && a->lowered == 0)
        return kvd_fail(err, "'%s' lowered no entry", plan->levels->name);
    if (plan->tokens && plan->tokens->lowers && !kvd_plan_two_levels(plan) && a->dropped == 0)
        return kvd_fail(err, "'%s' dropped no entry, and nothing stores less of what it lowers",
                        plan->tokens->name);
    if (plan->tokens && a->dropped + a->lowered == 0)
        return kvd_fail(err, "'%s' dropped and lowered no entry: its budget holds every sequence whole",
                        plan->tokens->name);
    if (plan->layers && a->merged == 0)
        return kvd_fail(err, "'%s' merged no entry", plan->layers->name);
    if (plan->channels && a->pruned == 0)
        return kvd_fail(err, "'%s' shortened no entry: no prompt is longer than what it leaves whole",
                        plan->channels->name);
    if (plan->bits && a->coded == 0)
        return kvd_fail(err, "'%s' coded no entry: no sequence is longer than what it leaves exact",
                        plan->bits->name);
    return 0;
}

int kvd_cache_check(const kvd_cache_account *a, const kvd_config *config, const kvd_plan *plan,
                    size_t n_sequences, size_t n_tokens, size_t n_steps, int first_layer, kvd_err *err)
{
    const size_t layers = (size_t)(config->n_layers - first_layer), n_kv = (size_t)config->n_kv_heads;
    const kvd_dims *const dims = plan->dims;
    size_t kept = 0;
    const size_t share = dims && dims->rebuild ? (size_t)dims->heads : 1;
    for (size_t i = (size_t)first_layer * n_kv; i < (size_t)config->n_layers * n_kv; i += share)
        kept += dims ? (size_t)dims->head[i].d_qk + (size_t)dims->head[i].d_v : 2 * (size_t)config->d_head;
    if (a->calls != n_sequences * layers)
        return kvd_fail(err, "the cache acted %zu times, not on each of %zu sequences in %zu layers",
                        a->calls, n_sequences, layers);
    if (a->tokens != n_tokens * layers)
        return kvd_fail(err, "the cache stored %zu rows, not each of %zu tokens in %zu layers", a->tokens,
                        n_tokens, layers);
    if (kvd_plan_stepwise(plan))
        return kvd_cache_check_steps(&a->steps, plan, n_steps * layers * n_kv, err);
    if (a->elements_kept != n_tokens * kept)
        return kvd_fail(err, "the cache stored %zu numbers, the widths make %zu", a->elements_kept,
                        n_tokens * kept);
    return 0;
}

void kvd_cache_account_add(kvd_cache_account *sum, const kvd_cache_account *a)
{
    sum->calls += a->calls;
    sum->tokens += a->tokens;
    sum->elements_kept += a->elements_kept;
    sum->elements_dense += a->elements_dense;
    sum->bytes_stored += a->bytes_stored;
    kvd_stepwise_account_add(&sum->steps, &a->steps);
}

void kvd_cache_account_whole(const kvd_config *c, const kvd_plan *plan, size_t n_sequences, size_t n_tokens,
                             kvd_cache_account *sum)
{
    assert(!plan->dims && !kvd_plan_stepwise(plan));
    const size_t layers = (size_t)c->n_layers, each = 2 * (size_t)c->n_kv_heads * (size_t)c->d_head;
    sum->calls += n_sequences * layers;
    sum->tokens += n_tokens * layers;
    sum->elements_kept += n_tokens * layers * each;
    sum->elements_dense += n_tokens * layers * each;
    sum->bytes_stored += n_tokens * layers * each * kvd_dtype_bytes(plan->type);
}

void kvd_cache_count_bytes(const kvd_config *c, const kvd_dims *dims, size_t element_bytes,
                           kvd_cache_bytes *out)
{
    assert(!dims || (dims->n_layers == c->n_layers && dims->n_kv_heads == c->n_kv_heads));
    const double bytes = (double)element_bytes, d = c->d_head;
    const double all = 2.0 * c->n_layers * c->n_kv_heads * d;
    double kept = 0, kept16 = 0, basis = 0;
    for (int i = 0; dims && i < c->n_layers * c->n_kv_heads; i++) {
        const kvd_dims_head *const h = &dims->head[i];
        kept += h->d_qk + h->d_v;
        kept16 += kvd_pad16(h->d_qk, c->d_head) + kvd_pad16(h->d_v, c->d_head);
        if (c->positions == KVD_POSITIONS_ROPE)
            basis += (h->a_q ? d * h->d_qk : 0) + (h->a_k && h->a_k != h->a_q ? d * h->d_qk : 0);
    }
    if (!dims)
        kept = kept16 = all;
    out->dense = all * bytes;
    out->nominal = kept * bytes;
    out->padded = kept16 * bytes;
    out->basis = basis * bytes;
    out->overall_p = 1 - kept / all;
    out->overall_p16 = 1 - kept16 / all;
}
