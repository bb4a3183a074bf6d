/* One GPU of a forward pass: its stream, libraries, weights and buffers. */
#include <stdlib.h>
#include <string.h>

#include "model/pass/cuda/layer.h"

/* number of bytes of workspace for cuBLAS, twice its default */
enum { WORKSPACE = 64 * 1024 * 1024 };

typedef struct {
    kvd_device_memory *memory;
    size_t bytes;
} taker;

static int take(taker *t, void *to, size_t rows, size_t bytes_per_row, const char *what,
                kvd_err *err)
{
    t->bytes += rows * bytes_per_row;
    if (!t->memory)
        return 0;
    void *const p = kvd_device_new(t->memory, rows * bytes_per_row, what, err);
    memcpy(to, &p, sizeof p);
    return p ? 0 : -1;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static bool on_hopper(void)
{
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major == 9;
}

/* Returns true if kvdim's own kernels compute the experts of large batches. */
static bool takes_many(const kvd_config *c)
{
    enum { EXPERTS = 64 };
    return c->n_experts >= EXPERTS && on_hopper();
}

/* Returns the largest number of tokens per launch for which kvdim's own kernels, not cuBLAS,
 * compute the experts. Returns 0 if cuBLAS always computes them. */
size_t kvd_gpu_experts_few(const kvd_config *c, const kvd_gpu_forward_spec *s,
                           const kvd_gpu_share *share)
{
    if (!s->steps || !c->n_experts || s->type != KVD_BF16 || c->activation != KVD_SWIGLU ||
        c->n_experts > KVD_FEW_EXPERTS || c->d_model % 8 || share->n_expert % 8)
        return 0;
    enum { MANY = 8192 };
    const size_t few = (size_t)KVD_FEW_TOKENS * (size_t)c->n_experts / (size_t)c->n_chosen,
                 n = larger(larger(s->steps, few), takes_many(c) ? MANY : 0);
    return n < s->max_tokens ? n : s->max_tokens;
}

static int ask_device(kvd_gpu_few_experts *few, kvd_err *err)
{
    int device = 0;
    if (kvd_cuda_check(cudaGetDevice(&device), "routed experts", err) ||
        kvd_cuda_check(cudaDeviceGetAttribute(&few->sms, cudaDevAttrMultiProcessorCount, device),
                       "routed experts", err))
        return -1;
    few->overlaps = on_hopper();
    return 0;
}

static int take_few(taker *t, kvd_gpu_expert_buffers *e, const kvd_config *c,
                    const kvd_gpu_forward_spec *s, const kvd_gpu_share *share, kvd_err *err)
{
    static const char what[] = "routed experts of few tokens";
    const size_t d = (size_t)c->d_model, ffn = (size_t)share->n_expert,
                 experts = (size_t)c->n_experts, chosen = (size_t)c->n_chosen,
                 n = kvd_gpu_experts_few(c, s, share),
                 groups = kvd_gpu_few_groups(n, chosen, experts);
    e->one_phase = s->steps > 0;
    e->most_few = n;
    e->many = n && takes_many(c);
    e->few = (kvd_gpu_few_experts){
        .d = d, .ffn = ffn, .alpha = (float)c->expert_alpha, .limit = (float)c->expert_limit};
    if (n && t->memory && ask_device(&e->few, err))
        return -1;
    return kvd_status(
        n && (take(t, &e->few.group, groups, sizeof *e->few.group, what, err) ||
              take(t, &e->few.n_groups, 1, sizeof *e->few.n_groups, what, err) ||
              take(t, &e->few.place, n, chosen * sizeof *e->few.place, what, err) ||
              take(t, &e->few.hidden, n, chosen * ffn * sizeof(uint16_t), what, err) ||
              take(t, &e->few.out, n, chosen * d * sizeof(float), what, err) ||
              take(t, &e->table, (size_t)c->n_layers, experts * sizeof *e->table, what, err)));
}

static int take_experts(taker *t, kvd_gpu_expert_buffers *e, const kvd_config *c,
                        const kvd_gpu_forward_spec *s, const kvd_gpu_share *share, kvd_err *err)
{
    const size_t n = s->max_tokens;
    const kvd_dtype type = s->type;
    static const char what[] = "routed experts";
    const size_t d = (size_t)c->d_model, experts = (size_t)c->n_experts,
                 uses = (size_t)c->n_chosen * sizeof(uint32_t);
    if (experts == 0)
        return 0;
    e->routes = (kvd_gpu_routes){.n_experts = experts,
                                 .n_chosen = (size_t)c->n_chosen,
                                 .add_up = c->chosen_add_up,
                                 .groups = (size_t)c->expert_groups,
                                 .groups_chosen = (size_t)c->groups_chosen,
                                 .sigmoid = c->route_sigmoid,
                                 .scale = c->expert_scale};
    return kvd_status(
        take_few(t, e, c, s, share, err) ||
        (type != KVD_F32 && take(t, &e->normed, n, d * sizeof(float), what, err)) ||
        take(t, &e->in, n, d * kvd_dtype_bytes(type), what, err) ||
        take(t, &e->out, n, d * sizeof(float), what, err) ||
        (c->shared_gate && take(t, &e->shared, n, sizeof(float), what, err)) ||
        take(t, &e->routes.logit, n, experts * sizeof(float), what, err) ||
        take(t, &e->routes.factor, n, uses, what, err) ||
        take(t, &e->routes.weight, n, uses, what, err) ||
        take(t, &e->routes.expert, n, uses, what, err) ||
        take(t, &e->routes.row, n, uses, what, err) ||
        take(t, &e->routes.count, experts, sizeof(uint32_t), what, err) ||
        (t->memory && !(e->count = kvd_pinned_new(experts * sizeof *e->count, what, err))));
}

static int take_buffers(taker *t, kvd_gpu_worker *w, const kvd_config *c,
                        const kvd_gpu_forward_spec *s, const kvd_gpu_share *share, kvd_err *err)
{
    const size_t n = s->max_tokens, bytes = kvd_dtype_bytes(s->type), head = (size_t)c->d_head;
    const size_t d = (size_t)c->d_model, d_embed = (size_t)kvd_config_d_embed(c),
                 ffn = larger((size_t)share->n_ffn,
                              (size_t)larger((size_t)share->n_expert, (size_t)share->n_shared));
    const size_t q = (size_t)share->n_heads * head, k = (size_t)share->n_kv_heads * head;
    const size_t gate_up = kvd_config_gated(c) ? 2 * ffn : ffn,
                 tables = kvd_batch_rope_rows(c, s->max_len);
    const bool two_norms = c->order == KVD_ORDER_PARALLEL && !c->shared_norm;
    const bool projected = d_embed != d;
    const kvd_gpu_latent_sizes latent = kvd_gpu_latent_sizes_of(c, s->type);
    const size_t wide = larger(
        larger(larger(gate_up, q + k) * bytes, larger(q, projected ? d_embed : 0) * sizeof(float)),
        latent.wide);
    const size_t narrow =
        larger(larger(larger(ffn, q), projected ? d_embed : 0) * bytes, latent.narrow);
    void *workspace = NULL;
    if (take(t, &w->x, n, d * sizeof(float), "the residual stream", err) ||
        take(t, &w->normed, n, d * bytes, "activations", err) ||
        (two_norms && take(t, &w->second, n, d * bytes, "activations", err)) ||
        (kvd_config_norms_branches(c) &&
         take(t, &w->branch, n, d * sizeof(float), "the output of a branch", err)) ||
        (c->qk_norm_whole && take(t, &w->factor, n, 2 * sizeof(float), "factors of norms", err)) ||
        take_experts(t, &w->experts, c, s, share, err) ||
        take(t, &w->qkv, n, (q + 2 * k) * bytes, "queries, keys and values", err) ||
        take(t, &w->wide, n, wide, "activations of the feed-forward block", err) ||
        take(t, &w->narrow, n, narrow, "activations of the feed-forward block", err) ||
        take(t, &w->id, n, 3 * sizeof(uint32_t), "token ids", err) ||
        (tables && take(t, &w->cosine, tables, head / 2 * sizeof(float), "the rope table", err)) ||
        (tables && take(t, &w->sine, tables, head / 2 * sizeof(float), "the rope table", err)) ||
        take(t, &w->bad, 1, sizeof *w->bad, "a flag", err) ||
        take(t, &workspace, 1, WORKSPACE, "the workspace of cuBLAS", err))
        return -1;
    if (!t->memory)
        return 0;
    if (c->n_experts && s->type == KVD_F32)
        w->experts.normed = w->normed;
    w->position = w->id + n;
    w->rope_row = w->position + n;
    return kvd_cublas_check(w->lib->cublasSetWorkspace_v2(w->blas, workspace, WORKSPACE),
                            "workspace", err);
}

size_t kvd_gpu_worker_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s,
                            const kvd_gpu_share *share, bool dense, bool streamed)
{
    taker t = {0};
    kvd_gpu_worker w = {0};
    kvd_err unused;
    (void)take_buffers(&t, &w, c, s, share, &unused);
    return t.bytes + kvd_gpu_weights_bytes(c, s->type, share, streamed) +
           (dense ? kvd_gpu_dense_bytes(c, share, s->type, s->max_tokens, s->max_len) : 0);
}

static int fill_rope(kvd_gpu_worker *w, kvd_err *err)
{
    const size_t rows = kvd_batch_rope_rows(&w->config, w->max_len);
    const size_t n = rows * ((size_t)w->config.d_head / 2), bytes = n * sizeof(float);
    if (n == 0)
        return 0;
    float *host = malloc(2 * bytes);
    if (!host)
        return kvd_no_memory(err, "the rope table", 2 * bytes);
    kvd_batch_rope(&w->config, w->max_len, host, host + n);
    const int status = kvd_device_put(w->cosine, host, bytes, "the rope table", err) ||
                       kvd_device_put(w->sine, host + n, bytes, "the rope table", err);
    free(host);
    return status ? -1 : 0;
}

static int fill_table(const kvd_gpu_worker *w, kvd_err *err)
{
    const size_t n = (size_t)w->config.n_experts;
    if (!w->experts.most_few || w->weights.streamed)
        return 0;
    for (int l = 0; l < w->config.n_layers; l++)
        if (w->weights.layer[l].expert &&
            kvd_device_put(w->experts.table + (size_t)l * n, w->weights.layer[l].expert,
                           n * sizeof *w->experts.table, "the list of experts", err))
            return -1;
    return 0;
}

/* Opens cuBLAS. Its products are summed in float32, even if a sum is split among thread blocks. */
static int open_cublas(kvd_gpu_worker *w, kvd_err *err)
{
    const cublasMath_t math =
        CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    return kvd_status(
        !(w->lib = kvd_cublas_load(err)) || !(w->blas = kvd_cublas_open("forward pass", err)) ||
        kvd_cublas_check(w->lib->cublasSetStream_v2(w->blas, w->stream), "forward pass", err) ||
        kvd_cublas_check(w->lib->cublasSetMathMode(w->blas, math), "forward pass", err));
}

/* Creates the stream for sums over GPUs. The stream has priority, because other GPUs wait for the
 * sums. */
static int open_sums(kvd_gpu_worker *w, kvd_err *err)
{
    int least = 0, most = 0;
    if (kvd_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &most), "sums", err) ||
        kvd_cuda_check(cudaStreamCreateWithPriority(&w->sums, cudaStreamNonBlocking, most), "sums",
                       err))
        return -1;
    for (int i = 0; i < 2; i++)
        if (kvd_cuda_check(cudaEventCreateWithFlags(&w->written[i], cudaEventDisableTiming), "sums",
                           err) ||
            kvd_cuda_check(cudaEventCreateWithFlags(&w->summed[i], cudaEventDisableTiming), "sums",
                           err))
            return -1;
    return 0;
}

/* Sets *streamed if experts do not fit into the GPU's memory. Fails if other weights do not fit. */
static int enough_memory(const kvd_gpu_worker *w, const kvd_checkpoint *c,
                         const kvd_gpu_forward_spec *s, const kvd_gpu_share *share, bool dense,
                         bool *streamed, kvd_err *err)
{
    enum { SPARE = 20 }; /* a 20th of the memory stays free */
    const size_t there = s->weights ? s->weights->bytes : 0;
    *streamed = s->weights && s->weights->streamed;
    size_t left = 0, total = 0;
    size_t need = kvd_gpu_worker_bytes(&w->config, s, share, dense, *streamed) - there;
    if (kvd_cuda_check(cudaMemGetInfo(&left, &total), "forward pass", err))
        return -1;
    const bool limited = s->memory && s->memory < left;
    const size_t most = limited ? s->memory : left,
                 spare = limited || most < total / SPARE ? 0 : total / SPARE;
    if (!s->weights && w->config.n_experts > 0 && !s->resident && need > most - spare) {
        *streamed = true;
        need = kvd_gpu_worker_bytes(&w->config, s, share, dense, true);
    }
    return need <= most
               ? 0
               : kvd_fail(
                     err,
                     "'%s' in %s with batches of %zu tokens takes %zu bytes%s on GPU %d, which "
                     "has %zu of %zu bytes left%s",
                     kvd_checkpoint_path(c), kvd_dtype_name(s->type), s->max_tokens, need,
                     *streamed ? " without its routed experts" : "", w->device, most, total,
                     limited ? " for the pass" : "");
}

static int take_weights(kvd_gpu_worker *w, const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                        const kvd_gpu_share *share, bool streamed, kvd_err *err)
{
    if (!s->weights)
        return kvd_gpu_weights_load(&w->weights, c, s->type, share, streamed, err);
    if (s->n_gpus != 1 || s->weights->type != s->type || s->weights->share.count != 1)
        return kvd_fail(err, "weights in %s of one GPU for a pass in %s on %d GPUs",
                        kvd_dtype_name(s->weights->type), kvd_dtype_name(s->type), s->n_gpus);
    w->weights = *s->weights;
    w->borrowed = true;
    return 0;
}

int kvd_gpu_worker_open(kvd_gpu_worker *w, const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                        const kvd_gpu_share *share, bool dense, kvd_err *err)
{
    taker t = {.memory = &w->memory};
    bool streamed;
    w->config = *kvd_checkpoint_config(c);
    w->device = s->first_gpu + share->index;
    w->max_tokens = s->max_tokens;
    w->max_len = s->max_len;
    if (kvd_cuda_check(cudaSetDevice(w->device), "forward pass", err) ||
        enough_memory(w, c, s, share, dense, &streamed, err) ||
        take_weights(w, c, s, share, streamed, err) ||
        kvd_cuda_check(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking), "forward pass",
                       err) ||
        (s->n_gpus > 1 && open_sums(w, err)) || open_cublas(w, err) ||
        take_buffers(&t, w, &w->config, s, share, err) || fill_rope(w, err) || fill_table(w, err) ||
        (dense && !(w->dense = kvd_gpu_dense_new(&w->config, &w->weights.share, s->type,
                                                 s->max_tokens, s->max_len, err))))
        return -1;
    return 0;
}

void kvd_gpu_worker_close(kvd_gpu_worker *w)
{
    if (cudaSetDevice(w->device))
        return;
    if (w->stream)
        (void)cudaStreamSynchronize(w->stream);
    if (w->sums)
        (void)cudaStreamSynchronize(w->sums);
    kvd_gpu_dense_free(w->dense);
    kvd_cublas_close(w->blas);
    kvd_device_release(&w->memory);
    if (w->experts.count)
        (void)cudaFreeHost(w->experts.count);
    if (!w->borrowed)
        kvd_gpu_weights_release(&w->weights);
    for (int i = 0; i < 2; i++) {
        if (w->written[i])
            (void)cudaEventDestroy(w->written[i]);
        if (w->summed[i])
            (void)cudaEventDestroy(w->summed[i]);
    }
    if (w->sums)
        (void)cudaStreamDestroy(w->sums);
    if (w->stream)
        (void)cudaStreamDestroy(w->stream);
}

int kvd_gpu_worker_begin(kvd_gpu_worker *w, const uint32_t *rows, size_t n, kvd_err *err)
{
    const size_t pitch = w->max_tokens * sizeof *rows;
    return kvd_status(
        kvd_cuda_check(cudaMemcpy2DAsync(w->id, pitch, rows, pitch, n * sizeof *rows, 3,
                                         cudaMemcpyHostToDevice, w->stream),
                       "token ids", err) ||
        kvd_cuda_check(cudaMemsetAsync(w->bad, 0xff, sizeof *w->bad, w->stream), "token ids", err));
}

int kvd_gpu_worker_wait(kvd_gpu_worker *w, kvd_gpu_bad *bad, kvd_err *err)
{
    if (kvd_gpu_join_sums(w, err) ||
        kvd_queue_get(bad, w->bad, sizeof *bad, w->stream, "forward pass", err))
        return -1;
    return w->sum ? kvd_gpu_sum_wait(w->sum, w->weights.share.index, w->stream, err)
                  : kvd_cuda_check(cudaStreamSynchronize(w->stream), "forward pass", err);
}
