#include "methods/cuda/cache.h"

#include <stdio.h>
#include <stdlib.h>

#include "methods/cuda/cache_parts.h"
#include "model/pass/cuda/host_hook.h"

static const char what[] = "cache";

struct kvd_gpu_caches {
    kvd_config config;
    kvd_gpu_share share;
    kvd_dtype pass;
    size_t max_tokens, max_len;
    kvd_cache_products products;
    kvd_gpu_paged *paged;
    kvd_device_memory memory;
    uint16_t *o;
};

typedef struct {
    kvd_cache cache;
    kvd_host_hook bridge;
} host_cache;

struct kvd_gpu_cache {
    kvd_gpu_attention hook; /* must be the first member */
    kvd_gpu_caches *with;
    kvd_dtype type;
    /* Length of the prompt in tokens. Prompt tokens attend to uncompressed K and V. */
    size_t prompt;
    kvd_cache_account account;
    /* Cache in CPU memory, for methods that change the cache token by token. */
    host_cache *host;
    kvd_cache_layer *layer;
    kvd_device_memory memory;
    char engine[96];
};

kvd_gpu_caches *kvd_gpu_caches_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                                   size_t max_tokens, size_t max_len, kvd_err *err)
{
    if (max_len == 0 || max_len > (size_t)1 << 24 || max_tokens < max_len) {
        kvd_fail(err, "a cache for sequences of %zu tokens, %zu together, cannot be made", max_len,
                 max_tokens);
        return NULL;
    }
    kvd_gpu_caches *const r = kvd_new(1, sizeof *r, what, err);
    if (!r)
        return NULL;
    r->config = *c;
    r->share = *share;
    r->pass = pass;
    r->max_tokens = max_tokens;
    r->max_len = max_len;
    return r;
}

void kvd_gpu_caches_free(kvd_gpu_caches *c)
{
    if (!c)
        return;
    kvd_gpu_paged_free(c->paged);
    kvd_cache_products_release(&c->products);
    kvd_device_release(&c->memory);
    free(c);
}

int kvd_cache_project_back(const kvd_gpu_attention_in *in, const kvd_cache_layer *l,
                           const uint16_t *o, uint16_t *out, kvd_err *err)
{
    const int d = in->config->d_head, n_heads = in->share->n_heads, group = l->map.group;
    const uint16_t *b = l->b_v;
    const float one = 1, zero = 0;
    for (int g = 0; g < l->map.n_kv_heads; g++) {
        const int w = l->map.d_v[g];
        /* cuBLAS is column-major, so it computes the transpose: out^T [d][n] = B_v^T o^T. */
        if (kvd_cublas_check(in->lib->cublasGemmStridedBatchedEx(
                                 in->blas, CUBLAS_OP_N, CUBLAS_OP_N, d, (int)in->n_tokens, w, &one,
                                 b, CUDA_R_16BF, d, 0, o + l->map.o_offset[g * group], CUDA_R_16BF,
                                 l->map.o_pitch, w, &zero, out + (ptrdiff_t)g * group * d,
                                 CUDA_R_16BF, n_heads * d, d, group, CUBLAS_COMPUTE_32F,
                                 CUBLAS_GEMM_DEFAULT),
                             what, err))
            return -1;
        b += (ptrdiff_t)w * d;
    }
    return 0;
}

static int run_kernels(kvd_gpu_caches *w, const kvd_cache_layer *l, const kvd_gpu_attention_in *in,
                       void *out, kvd_err *err)
{
    kvd_paged_layer p = {.map = l->map, .a_q = l->a_q, .a_k = l->a_k, .a_v = l->a_v};
    if (kvd_gpu_paged_run(w->paged, &p, in, l->b_v ? (void *)w->o : out, err))
        return -1;
    return l->b_v ? kvd_cache_project_back(in, l, w->o, out, err) : 0;
}

static int check_sequences(const kvd_gpu_caches *w, const kvd_gpu_attention_in *in, kvd_err *err)
{
    for (size_t s = 0; s < in->n_sequences; s++) {
        const size_t n = in->offset[s + 1] - in->offset[s];
        if (n == 0 || n > w->max_len)
            return kvd_fail(err, "sequence %zu has %zu tokens, the cache was made for 1 to %zu",
                            in->first_sequence + s, n, w->max_len);
    }
    return in->n_tokens > w->max_tokens
               ? kvd_fail(err, "a batch of %zu tokens, the cache was made for %zu", in->n_tokens,
                          w->max_tokens)
               : 0;
}

static int run(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err)
{
    kvd_gpu_cache *const c = (kvd_gpu_cache *)(void *)self;
    const kvd_cache_layer *const l = &c->layer[in->layer];
    if (check_sequences(c->with, in, err))
        return -1;
    if (c->host)
        return c->host->bridge.hook.run(&c->host->bridge.hook, in, out, err);
    if (l->kernels && !kvd_gpu_paged_reads(in))
        return kvd_fail(err, "layer %d: Q, K and V of a token are not contiguous", in->layer);
    if (l->kernels
            ? run_kernels(c->with, l, in, out, err)
            : kvd_cache_products_run(&c->with->products, in, l, c->type, c->prompt, out, err))
        return -1;
    /* A latent vector serves as key and as value, but is stored only once. */
    const size_t sides = in->config->latent ? 1 : 2, kept = l->kept * sides / 2,
                 dense = sides * (size_t)in->share->n_kv_heads * (size_t)in->config->d_head;
    c->account.calls += in->n_sequences;
    c->account.tokens += in->n_tokens;
    c->account.elements_kept += in->n_tokens * kept;
    c->account.elements_dense += in->n_tokens * dense;
    const size_t held = kvd_cache_tokens_held(in->offset, in->n_sequences, in->window);
    c->account.tokens_held += held;
    c->account.bytes_stored += held * kept * kvd_dtype_bytes(c->type);
    return 0;
}

static size_t count_kernels(const kvd_gpu_cache *c)
{
    size_t n = 0;
    for (int l = 0; l < c->with->config.n_layers; l++)
        n += c->layer[l].kernels;
    return n;
}

static int make_engines(kvd_gpu_cache *c, size_t kernels, bool latents, kvd_err *err)
{
    kvd_gpu_caches *const w = c->with;
    const size_t width = (size_t)w->share.n_heads * (size_t)w->config.d_head;
    if (kernels && !w->paged &&
        !(w->paged = kvd_gpu_paged_new(&w->config, &w->share, w->max_tokens, w->max_len, err)))
        return -1;
    if (kernels && !w->o &&
        !(w->o = kvd_device_new(&w->memory, w->max_tokens * width * sizeof *w->o, what, err)))
        return -1;
    return kernels < (size_t)w->config.n_layers
               ? kvd_cache_products_init(&w->products, &w->config, &w->share, w->pass,
                                         w->max_tokens, w->max_len, latents, c->prompt > 0, err)
               : 0;
}

static void name_engine(kvd_gpu_cache *c, size_t kernels)
{
    static const char products[] = "cuBLAS products, f32";
    const size_t layers = (size_t)c->with->config.n_layers;
    const char *const name = kernels ? kvd_gpu_paged_engine(c->with->paged) : products;
    if (kernels == 0 || kernels == layers)
        (void)snprintf(c->engine, sizeof c->engine, "%s", name);
    else
        (void)snprintf(c->engine, sizeof c->engine, "%s (%zu layers), %s (%zu)", name, kernels,
                       products, layers - kernels);
}

static int make_host(kvd_gpu_cache *c, const kvd_plan *plan, kvd_err *err)
{
    const kvd_gpu_caches *const w = c->with;
    if (!(c->host = kvd_device_host(&c->memory, sizeof *c->host, what, err)))
        return -1;
    (void)snprintf(c->engine, sizeof c->engine, "CPU, f32, row by row");
    if (kvd_cache_init(&c->host->cache, &w->config, plan, w->max_len, err) ||
        kvd_host_hook_init(&c->host->bridge, &w->config, &w->share, w->pass, w->max_tokens,
                           &c->host->cache.hook, err))
        return -1;
    c->hook.wants_pre = c->host->bridge.hook.wants_pre;
    c->hook.wants_input = c->host->bridge.hook.wants_input;
    return 0;
}

static int make_blocks(kvd_gpu_cache *c, const kvd_plan *plan, kvd_err *err)
{
    const kvd_gpu_caches *const w = c->with;
    const bool latents = plan->dims && plan->dims->rebuild;
    const bool as_it_was = !plan->dims && (plan->type == KVD_F32 || plan->type == w->pass);
    c->prompt = as_it_was ? 0 : plan->prompt;
    c->hook.wants_pre = latents;
    c->layer =
        kvd_device_host(&c->memory, (size_t)w->config.n_layers * sizeof *c->layer, what, err);
    if (!c->layer ||
        kvd_cache_layers_make(&w->config, &w->share, c->prompt ? KVD_F32 : w->pass, w->max_len,
                              plan->dims, plan->type, c->layer, &c->memory, err) ||
        make_engines(c, count_kernels(c), latents, err))
        return -1;
    name_engine(c, count_kernels(c));
    return 0;
}

kvd_gpu_cache *kvd_gpu_cache_new(kvd_gpu_caches *with, const kvd_plan *plan, kvd_err *err)
{
    if (plan->dims && kvd_dims_fits(plan->dims, &with->config, err))
        return NULL;
    kvd_gpu_cache *const c = kvd_new(1, sizeof *c, what, err);
    if (!c)
        return NULL;
    c->hook.run = run;
    c->with = with;
    c->type = plan->type;
    if (kvd_plan_stepwise(plan) ? make_host(c, plan, err) : make_blocks(c, plan, err)) {
        kvd_gpu_cache_free(c);
        return NULL;
    }
    return c;
}

void kvd_gpu_cache_free(kvd_gpu_cache *c)
{
    if (!c)
        return;
    if (c->host) {
        kvd_host_hook_release(&c->host->bridge);
        kvd_cache_release(&c->host->cache);
    }
    kvd_device_release(&c->memory);
    free(c);
}

kvd_gpu_attention *kvd_gpu_cache_hook(kvd_gpu_cache *c)
{
    return &c->hook;
}

void kvd_gpu_cache_set_prompts(kvd_gpu_cache *c, const kvd_prompts *prompts)
{
    if (c->host)
        c->host->cache.prompts = prompts;
}

void kvd_gpu_cache_take_account(kvd_gpu_cache *c, kvd_cache_account *sum)
{
    kvd_cache_account *const mine = c->host ? &c->host->cache.account : &c->account;
    kvd_cache_account_add(sum, mine);
    *mine = (kvd_cache_account){0};
}

const char *kvd_gpu_cache_engine(const kvd_gpu_cache *c)
{
    return c->engine;
}
