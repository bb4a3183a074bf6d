/* Method xquant on the GPU: the cache stores quantised inputs of layers, from which K and V are
 * computed for attention. */
#include "methods/bits/cuda/xquant.h"

#include <stdlib.h>
#include <string.h>

#include "methods/bits/cuda/packed.h"
#include "methods/bits/cuda/streams.h"
#include "methods/dims/cuda/latents.h"
#include "methods/method.h"

static const char what[] = "coded inputs";

typedef struct {
    kvd_gpu_method method;
    /* Page tables and pages of decoded vectors. The pages hold only one layer at a time. */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    kvd_xquant_form form;
    kvd_xquant_page page;
    size_t wide; /* n_kv_heads * d_head */
    /* bf16 matrices of all layers: the projection of layer inputs, if used, then the matrices that
     * turn stored vectors into K and V. */
    uint16_t *matrix;
    size_t in_layer, up_at;
    bool joint; /* true: all KV heads share B (kvd_latent_restore_args.columns) */
    /* True if decode steps do not rebuild V. Instead, they weight the stored vectors by attention
     * probabilities, and project the sum. */
    bool direct;
    /* Workspace for decode steps that do not restore V. sums: partial results of attention. newest:
     * attention scores of the newest tokens. */
    float *sums, *newest;
    float2 *ends;
    uint16_t *o;
    /* [n_layers][2 wide + d_head] in device memory: biases of K and V, and weights of the RMS norm
     * of K. NULL: the model has none of these. */
    float *finish;
    /* [max_tokens][pitch] Projected layer inputs of new tokens. NULL: layer inputs are stored
     * without projection. */
    uint16_t *rows;
    int32_t *table;
    uint32_t *codes;
    uint16_t *ring;
    size_t pages, slots;
    uint32_t *tokens;
    double held;
} xquant;

static xquant *of(const kvd_gpu_method *m)
{
    return (xquant *)(uintptr_t)m;
}

static size_t pitch_of(const xquant *q)
{
    return (size_t)q->form.rank * (q->form.channels ? 2 : 1);
}

/* Returns the offset, in elements, of the matrix that turns stored vectors into K (side 0) or V
 * (side 1). */
static size_t up_of_side(const xquant *q, int side)
{
    return (size_t)side * q->wide * (size_t)q->form.rank;
}

static size_t in_ring(const xquant *q)
{
    return (size_t)q->form.ring_pages * KVD_PAGE_TOKENS * pitch_of(q);
}

static double slot_bits(const kvd_gpu_method *m, size_t slot)
{
    const xquant *const q = of(m);
    const kvd_xquant_form *const f = &q->form;
    const size_t n = q->tokens[slot], keys = n / (size_t)f->group * (size_t)f->group;
    const double vector = (double)f->rank * f->bits,
                 token = vector + 32.0 * kvd_xquant_pieces(f->rank, f->group),
                 channels = (double)keys * vector + (double)keys / f->group * f->rank * 32 +
                            (double)((n - keys) * q->wide) * 16;
    return m->cache->config->n_layers * ((double)n * token + (f->channels ? channels : 0));
}

static double held(const kvd_gpu_method *m)
{
    return of(m)->held;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    xquant *const q = of(m);
    (void)err;
    kvd_gpu_packed_count(m, it, q->slots, q->tokens, &q->held);
    return 0;
}

static kvd_xquant_args steps_of(const kvd_gpu_method *m, const kvd_paged_rows *r)
{
    const xquant *const q = of(m);
    const kvd_paged_cache *const c = m->cache;
    const size_t layer = (size_t)r->layer;
    return (kvd_xquant_args){.form = q->form,
                             .page = q->page,
                             .codes = q->codes + layer * q->pages * (size_t)q->page.words,
                             .ring = q->ring + layer * q->slots * in_ring(q),
                             .pages = q->store.pool,
                             .n = (int32_t)r->steps,
                             .max_pages = (int32_t)c->pages->max_pages,
                             .kv_len = c->batch->device.kv_len,
                             .slot = c->batch->device.slot,
                             .page_table = c->pages->device,
                             .longest = (int32_t)c->max_len,
                             .n_sms = c->n_sms,
                             .keys_alone = q->direct};
}

static kvd_xquant_args prompts_of(const kvd_gpu_method *m, const kvd_paged_rows *r)
{
    const xquant *const q = of(m);
    const kvd_paged_cache *const c = m->cache;
    kvd_xquant_args a = steps_of(m, r);
    a.n = (int32_t)r->prompts;
    a.kv_len += r->steps;
    a.slot += r->steps;
    a.start = c->batch->device.start + r->steps;
    a.page_table += r->steps * c->pages->max_pages;
    a.rows = (q->rows ? q->rows : (const uint16_t *)r->input) + r->steps * pitch_of(q);
    a.longest = 1;
    for (size_t i = 0; i < r->prompts; i++)
        a.longest = c->batch->host.q_len[r->steps + i] > a.longest
                        ? c->batch->host.q_len[r->steps + i]
                        : a.longest;
    return a;
}

static int put_steps(const xquant *q, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = q->method.cache;
    const kvd_xquant_args to = steps_of(&q->method, r);
    const bool applies_rope = c->hook.wants_raw && c->cosine;
    kvd_latent_put_args a = {.s = kvd_latent_store_slices(&q->store, r->layer, false, r->steps),
                             .n_heads = c->share->n_heads,
                             .d_head = c->config->d_head,
                             .q = r->x,
                             .ld_q = r->ld,
                             .cosine = applies_rope ? c->cosine : NULL,
                             .sine = applies_rope ? c->sine : NULL,
                             .interleaved = c->config->rope_layout == KVD_ROPE_INTERLEAVED,
                             .position = c->batch->device.step_at,
                             .to_q = c->q_steps,
                             .latent = q->rows ? q->rows : r->input,
                             .ld_latent = pitch_of(q)};
    kvd_latent_store_describe(&q->store, r->layer, &a);
    a.s.page_table = q->table;
    a.pool = to.ring;
    return kvd_cuda_check(kvd_latent_put(&a, r->stream), "append", err);
}

/* Stores exact K and V of prompts in the pages that the attention of the prompts reads. */
static int put_prompts(kvd_paged_cache *c, const kvd_paged_rows *r, kvd_err *err)
{
    kvd_paged_rows rest = *r;
    rest.x = (const uint16_t *)r->x + r->steps * r->ld;
    rest.steps = 0;
    return kvd_paged_cache_append(c, &rest, kvd_paged_cache_pool(c, r->layer), c->pages->device,
                                  err);
}

static int append(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const xquant *const q = of(m);
    kvd_paged_cache *const c = m->cache;
    const size_t n = r->prompts ? c->batch->n_tokens : r->steps;
    if (kvd_gpu_packed_rings(c, r, q->form.ring_pages, q->table, err) ||
        kvd_clock_end(c->clock, kvd_paged_cache_behind(c), r->stream, err) ||
        (q->rows && kvd_gpu_product(q->w, r->input, q->matrix + (size_t)r->layer * q->in_layer,
                                    KVD_BF16, n, (size_t)c->config->d_model, pitch_of(q), q->rows,
                                    KVD_BF16, 0, KVD_GPU_ATTENTION, err)) ||
        kvd_clock_end(c->clock, KVD_PHASE_ROTATE, r->stream, err))
        return -1;
    return kvd_status((r->prompts && put_prompts(c, r, err)) ||
                      (r->steps && put_steps(q, r, err)) ||
                      kvd_clock_end(c->clock, KVD_PHASE_APPEND, r->stream, err));
}

static kvd_latent_restore_args restored(const xquant *q, const kvd_paged_rows *r)
{
    const kvd_config *const c = q->method.cache->config;
    kvd_latent_restore_args a = kvd_latent_store_restored(&q->store, r->layer, false, r->steps);
    a.keys_alone = q->direct;
    if (!q->finish)
        return a;
    a.bias = q->finish + (size_t)r->layer * (2 * q->wide + (size_t)c->d_head);
    a.gain = c->qk_norm ? a.bias + 2 * q->wide : NULL;
    a.eps = (float)c->norm_eps;
    return a;
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const xquant *const q = of(m);
    if (!r->steps)
        return 0;
    const kvd_xquant_args a = steps_of(m, r);
    const kvd_latent_restore_args up = restored(q, r);
    return kvd_status(
        kvd_cuda_check(kvd_xquant_restore(&a, r->stream), what, err) ||
        kvd_cuda_check(kvd_latent_restore(&up, r->stream), "K and V from inputs", err) ||
        kvd_clock_end(m->cache->clock, KVD_PHASE_RESTORE, r->stream, err));
}

enum { PARTS_MAX = 64 };

static size_t parts_of(const xquant *q, size_t n)
{
    const size_t parts = (size_t)q->method.cache->n_sms / n;
    return parts < 1 ? 1 : parts > PARTS_MAX ? PARTS_MAX : parts;
}

static int attend_steps(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err)
{
    const xquant *const q = of(m);
    const kvd_paged_cache *const c = m->cache;
    const kvd_attn_map *const map = &c->layer[r->layer].map;
    const kvd_cublas *const lib = q->w->lib;
    const kvd_xquant_attend_args a = {.x = steps_of(m, r),
                                      .n_heads = map->n_heads,
                                      .n_kv_heads = map->n_kv_heads,
                                      .scale = map->scale,
                                      .q = c->q_steps,
                                      .pool = kvd_paged_cache_pool(c, r->layer),
                                      .page_elements = (size_t)map->page_elements,
                                      .sinks = kvd_paged_cache_sinks(c, r->layer),
                                      .parts = (int32_t)parts_of(q, r->steps),
                                      .sums = q->sums,
                                      .ends = q->ends,
                                      .newest = q->newest,
                                      .o = q->o};
    const uint16_t *const up =
        q->matrix + (size_t)r->layer * q->in_layer + q->up_at + up_of_side(q, KVD_VALUES);
    const int d = c->config->d_head, rank = q->form.rank, group = map->group;
    const float one = 1, zero = 0;
    if (kvd_cuda_check(kvd_xquant_attend(&a, r->stream), "attention of coded inputs", err))
        return -1;
    /* cuBLAS is column-major, so its operands and its result are transposed here. */
    for (int i = 0; i < group; i++)
        if (kvd_cublas_check(lib->cublasGemmStridedBatchedEx(
                                 q->w->blas, CUBLAS_OP_T, CUBLAS_OP_N, d, (int)r->steps, rank, &one,
                                 up, CUDA_R_16BF, rank, (long long)d * rank, q->o + i * rank,
                                 CUDA_R_16BF, map->n_heads * rank, (long long)group * rank, &zero,
                                 (uint16_t *)out + i * d, CUDA_R_16BF, map->o_pitch,
                                 (long long)group * d, map->n_kv_heads, CUBLAS_COMPUTE_32F,
                                 CUBLAS_GEMM_DEFAULT),
                             "values of coded inputs", err))
            return -1;
    return 0;
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    if (r->prompts) {
        const kvd_xquant_args a = prompts_of(m, r);
        if (kvd_cuda_check(kvd_xquant_code(&a, r->stream), what, err))
            return -1;
    }
    const kvd_xquant_args a = steps_of(m, r);
    return r->steps ? kvd_cuda_check(kvd_xquant_code(&a, r->stream), what, err) : 0;
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    xquant *const q = of(m);
    const kvd_paged_cache *const c = m->cache;
    const size_t layers = (size_t)c->config->n_layers;
    q->pages = pages + 1; /* the last page is for rows that pad a batch */
    q->slots = slots;
    if (!(q->tokens = calloc(slots, sizeof *q->tokens)))
        return kvd_no_memory(err, what, slots * sizeof *q->tokens);
    q->codes =
        kvd_stream_pool(&q->store.memory,
                        layers * q->pages * (size_t)q->page.words * sizeof *q->codes, stream, err);
    q->ring = kvd_stream_pool(&q->store.memory, layers * slots * in_ring(q) * sizeof *q->ring,
                              stream, err);
    q->store.pool = kvd_stream_pool(
        &q->store.memory, q->pages * KVD_PAGE_TOKENS * pitch_of(q) * sizeof *q->store.pool, stream,
        err);
    q->table = kvd_device_new(
        &q->store.memory, c->batch->max_slices * c->pages->max_pages * sizeof *q->table, what, err);
    return kvd_status(!q->codes || !q->ring || !q->store.pool || !q->table);
}

static void release(kvd_gpu_method *m)
{
    xquant *const q = of(m);
    kvd_latent_store_release(&q->store);
    free(q->tokens);
    free(q);
}

static void convert_up(const xquant *q, const float *up, bool joint, uint16_t *to)
{
    const size_t rank = (size_t)q->form.rank, n = joint ? rank / 8 : 1, each = rank / n;
    for (size_t i = 0; i < q->wide; i++)
        for (size_t j = 0; j < n; j++)
            kvd_from_f32(KVD_BF16, up + i * rank + j * each, to + (j * q->wide + i) * each, each);
}

static void convert_layer(const xquant *q, int layer, uint16_t *to)
{
    const size_t rank = (size_t)q->form.rank, d = (size_t)q->method.cache->config->d_model;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const kvd_xquant_matrices m =
            kvd_xquant_matrices_of(q->method.plan->bits_self, layer, (kvd_side)side);
        if (m.down)
            kvd_from_f32(KVD_BF16, m.down, to + (size_t)side * rank * d, rank * d);
        convert_up(q, m.up, q->joint && !(q->direct && side == KVD_VALUES),
                   to + q->up_at + up_of_side(q, side));
    }
}

static int make_matrices(xquant *q, kvd_err *err)
{
    const size_t layers = (size_t)q->method.cache->config->n_layers, rank = (size_t)q->form.rank,
                 bytes = q->in_layer * sizeof *q->matrix;
    uint16_t *const host = malloc(bytes);
    int status = host ? 0 : kvd_no_memory(err, what, bytes);
    q->matrix = status ? NULL : kvd_device_new(&q->store.memory, layers * bytes, what, err);
    for (size_t l = 0; q->matrix && !status && l < layers; l++) {
        convert_layer(q, (int)l, host);
        status = kvd_device_put(q->matrix + l * q->in_layer, host, bytes, what, err);
        q->store.layer[l].up = q->matrix + l * q->in_layer + q->up_at;
        for (int side = 0; side < KVD_N_SIDES; side++)
            for (int g = 0; g < q->method.cache->config->n_kv_heads; g++)
                q->store.layer[l].matrix[side][g] =
                    (int)(up_of_side(q, side) +
                          (size_t)(g * q->method.cache->config->d_head) * (q->joint ? 8 : rank));
    }
    free(host);
    return q->matrix && !status ? 0 : -1;
}

/* Fills q->finish: biases of K and V, 0 if the model has none, and weights of the RMS norm of K. */
static int make_finish(xquant *q, kvd_err *err)
{
    const kvd_config *const c = q->method.cache->config;
    const size_t d = (size_t)c->d_head, each = 2 * q->wide + d,
                 bytes = (size_t)c->n_layers * each * sizeof *q->finish;
    if (!c->bias_qkv && !c->qk_norm)
        return 0;
    float *const host = calloc(1, bytes);
    if (!host)
        return kvd_no_memory(err, what, bytes);
    for (int l = 0; l < c->n_layers; l++)
        for (int side = 0; side < KVD_N_SIDES; side++) {
            const kvd_xquant_matrices m =
                kvd_xquant_matrices_of(q->method.plan->bits_self, l, (kvd_side)side);
            float *const to = host + (size_t)l * each;
            if (m.bias)
                memcpy(to + (size_t)side * q->wide, m.bias, q->wide * sizeof *to);
            if (m.norm)
                memcpy(to + 2 * q->wide, m.norm, d * sizeof *to);
        }
    const int status = !(q->finish = kvd_device_new(&q->store.memory, bytes, what, err)) ||
                       kvd_device_put(q->finish, host, bytes, what, err);
    free(host);
    return kvd_status(status);
}

/* Returns true if kvd_xquant_attend supports the model and the parameters. */
static bool attends(const xquant *q)
{
    const kvd_paged_cache *const c = q->method.cache;
    return q->joint && c->attention != KVD_ATTENTION_STOCK && !c->config->bias_qkv &&
           kvd_xquant_attends(&q->form, c->config->n_heads, c->config->n_kv_heads);
}

static int make_attention(xquant *q, kvd_err *err)
{
    const kvd_paged_cache *const c = q->method.cache;
    kvd_device_memory *const m = &q->store.memory;
    const size_t steps = c->batch->max_slices, sms = (size_t)c->n_sms,
                 heads = (size_t)c->config->n_heads, parts = (sms > steps ? sms : steps) * heads,
                 rank = (size_t)q->form.rank;
    q->sums = kvd_device_new(m, parts * rank * sizeof *q->sums, what, err);
    q->ends = kvd_device_new(m, parts * sizeof *q->ends, what, err);
    q->newest = kvd_device_new(m, steps * heads * sizeof *q->newest, what, err);
    q->o = kvd_device_new(m, steps * heads * rank * sizeof *q->o, what, err);
    q->method.attend_steps = attend_steps;
    q->method.kernels = "steps on codes of values";
    return m->status;
}

static int describe(xquant *q, const kvd_plan *plan, kvd_err *err)
{
    kvd_paged_cache *const c = q->method.cache;
    const size_t layers = (size_t)c->config->n_layers, d = (size_t)c->config->d_model;
    const kvd_xquant_matrices of_keys = kvd_xquant_matrices_of(plan->bits_self, 0, KVD_KEYS);
    const int32_t group = (int32_t)kvd_gpu_packed_value(plan, "group");
    q->form = (kvd_xquant_form){.rank = (int32_t)of_keys.rank,
                                .bits = (int32_t)kvd_gpu_packed_value(plan, "bits"),
                                .group = group,
                                .channels = of_keys.down != NULL};
    q->form.ring_pages = q->form.channels && group > KVD_PAGE_TOKENS ? group / KVD_PAGE_TOKENS : 1;
    q->page = kvd_xquant_page_of(&q->form);
    q->wide = (size_t)(c->config->n_kv_heads * c->config->d_head);
    q->joint = kvd_latent_joins(c->config->n_kv_heads, c->config->d_head);
    q->direct = attends(q);
    q->up_at = of_keys.down ? pitch_of(q) * d : 0;
    q->in_layer = q->up_at + KVD_N_SIDES * q->wide * of_keys.rank;
    q->method.page_bytes = layers * (size_t)q->page.words * sizeof *q->codes +
                           KVD_PAGE_TOKENS * pitch_of(q) * sizeof *q->store.pool;
    q->method.slot_bytes = layers * in_ring(q) * sizeof *q->ring;
    if (kvd_latent_store_begin(&q->store, c, c->config->n_kv_heads, err))
        return -1;
    q->store.joint = !q->form.channels;
    for (size_t l = 0; l < layers; l++) {
        q->store.layer[l].rank[KVD_KEYS][0] = q->store.layer[l].rank[KVD_VALUES][0] = q->form.rank;
        q->store.layer[l].columns = q->joint ? (int)q->wide : 0;
        q->store.layer[l].applies_rope = c->config->positions == KVD_POSITIONS_ROPE;
    }
    const kvd_step_batch *const b = c->batch;
    return kvd_status(
        make_matrices(q, err) || make_finish(q, err) || kvd_latent_store_init(&q->store, err) ||
        (q->direct && make_attention(q, err)) ||
        (q->form.channels &&
         !(q->rows = kvd_device_new(&q->store.memory, b->max_tokens * pitch_of(q) * sizeof *q->rows,
                                    what, err))));
}

/* Returns true if the kernels support the value of parameter `group`, the number of quantised
 * numbers per scale. */
static bool has_group(const kvd_plan *plan)
{
    const int group = (int)kvd_gpu_packed_value(plan, "group");
    return group % KVD_PAGE_TOKENS == 0 || KVD_PAGE_TOKENS % group == 0;
}

/* Returns the name of a feature of the model that the kernels do not support, or NULL. */
static const char *not_computed(const kvd_config *c)
{
    const bool partial =
        c->rope_dims && c->rope_dims < c->d_head && c->rope_layout != KVD_ROPE_INTERLEAVED;
    return c->qk_norm_whole          ? "a norm over all heads of K"
           : partial                 ? "partial RoPE"
           : c->rope_local_theta > 0 ? "RoPE that differs between layers"
                                     : NULL;
}

static int check(const kvd_plan *plan, const kvd_paged_cache *c, kvd_err *err)
{
    const char *const other = not_computed(c->config);
    const int rank = (int)kvd_xquant_matrices_of(plan->bits_self, 0, KVD_KEYS).rank;
    if (!has_group(plan))
        return kvd_fail(err,
                        "xquant,group=%g: the CUDA engine codes groups of a divisor or a multiple "
                        "of %d numbers",
                        kvd_gpu_packed_value(plan, "group"), KVD_PAGE_TOKENS);
    if (rank % KVD_WIDTH_STEP)
        return kvd_fail(
            err, "'xquant' with vectors of %d numbers: the CUDA engine takes multiples of %d", rank,
            KVD_WIDTH_STEP);
    return other ? kvd_fail(err, "'xquant' in a model with %s: the CUDA engine does not run it",
                            other)
                 : 0;
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    if (check(plan, cache, err))
        return -1;
    xquant *const q = calloc(1, sizeof *q);
    if (!q)
        return kvd_no_memory(err, what, sizeof *q);
    q->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .one_layer = true,
                                 .anywhere = true,
                                 .apart = 1u << KVD_PHASE_ROTATE,
                                 .make = make,
                                 .begin = kvd_gpu_packed_begin,
                                 .ended = ended,
                                 .held = held,
                                 .bits = slot_bits,
                                 .append = append,
                                 .appended = appended,
                                 .attended = attended,
                                 .free = release};
    q->w = cache->worker;
    cache->hook.wants_input = 1;
    *m = &q->method;
    return describe(q, plan, err);
}

static bool generates(const kvd_plan *plan)
{
    return has_group(plan);
}

static bool fits(const kvd_plan *plan, const kvd_config *c)
{
    (void)plan;
    return !not_computed(c);
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_SINKS | KVD_GPU_SCALE;
}

static bool before_rope(const kvd_plan *plan)
{
    (void)plan;
    return true;
}

const kvd_gpu_kind kvd_gpu_xquant = {
    .computes = computes,
    .joined = "the codes are those of a layer's input, which all KV heads share",
    .generates = generates,
    .fits = fits,
    .before_rope = before_rope,
    .open = open_method};
