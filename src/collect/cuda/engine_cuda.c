/* GPU engine of kvdim-collect: sums second moments and squared gradients, writes Q, K and V. */
#include "collect/collect.h"

#include <stdlib.h>

#include "collect/cuda/dump.h"
#include "collect/cuda/moments.h"
#include "collect/sums.h"
#include "common/clock.h"
#include "model/pass/cuda/backward.h"
#include "model/pass/cuda/forward.h"
#include "model/pass/latent.h"

typedef struct cuda cuda;

/* One GPU, which computes the heads of its `share`. */
typedef struct {
    cuda *all;
    int index;
    kvd_gpu_share share;
    cudaStream_t stream;
    kvd_gpu_moments *moments;
    kvd_gpu_dump *dump;
    kvd_gpu_capture capture;
} gpu;

/* number of arrays of gradients per layer: gradients with respect to K after RoPE, K before RoPE, K
 * before its norm, and V */
enum { GRADIENTS = 4 };

/* Backward pass on the GPU, and buffers in host memory for one layer's gradients. If no gradients
 * are wanted, `pass` is NULL. */
typedef struct {
    kvd_gpu_backward *pass;
    kvd_information *sums;
    float *of[GRADIENTS]; /* [max_tokens][n_kv_heads * d_head] gradients of a layer */
    float *in;            /* [max_tokens][d_model] input of the layer's projections */
    void *raw;            /* input of the layer's projections in the number type of `pass` */
} gradients;

struct cuda {
    kvd_collect_engine engine;
    kvd_collect_spec spec;
    kvd_gpu_forward *forward;
    size_t pass_memory; /* limit in bytes for the memory of the forward pass */
    gpu gpu[KVD_GPUS_MAX];
    gradients gradients;
    kvd_gpu_attention *hook[KVD_GPUS_MAX];
    /* host copy of the second moments that the GPUs hold; NULL if the GPUs hold none */
    kvd_moments *held;
    /* true if the second moments on the GPUs are newer than their copy in host memory */
    bool ahead;
    /* first token of the batch in the activations file */
    size_t first_token;
    bool add, to_dump;
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
    /* two events per layer on the first GPU, to time the computation of second moments */
    cudaEvent_t *event;
    int n_events;
    double elapsed, moments;
};

static int to_device(const cuda *c, int g, kvd_err *err)
{
    return kvd_cuda_check(cudaSetDevice(c->spec.first_gpu + g), "collecting", err);
}

static int fetch_sums(cuda *c, kvd_err *err)
{
    if (!c->ahead)
        return 0;
    for (int g = 0; g < c->spec.n_gpus; g++)
        if (to_device(c, g, err) ||
            kvd_gpu_moments_get(c->gpu[g].moments, c->held, c->gpu[g].stream, err))
            return -1;
    c->ahead = false;
    return to_device(c, 0, err);
}

/* Copies the second moments *sums to the GPUs. If the GPUs hold other second moments, first copies
 * these back to host memory. */
static int hold_sums(cuda *c, kvd_moments *sums, kvd_err *err)
{
    if (c->held == sums)
        return 0;
    if (fetch_sums(c, err))
        return -1;
    for (int g = 0; g < c->spec.n_gpus; g++)
        if (to_device(c, g, err) ||
            kvd_gpu_moments_set(c->gpu[g].moments, sums, c->gpu[g].stream, err))
            return -1;
    c->held = sums;
    return to_device(c, 0, err);
}

static int sum_weights(cuda *c, int layer, kvd_err *err)
{
    for (int g = 0; g < c->spec.n_gpus; g++)
        if (to_device(c, g, err) ||
            kvd_gpu_moments_weights(c->gpu[g].moments, kvd_gpu_forward_weights(c->forward, g),
                                    layer, c->gpu[g].stream, err))
            return -1;
    return to_device(c, 0, err);
}

/* Transposes one GPU's part of W_O, [d_model][heads * d], to [heads][d][d_model]. */
static void transpose_o(const char *from, kvd_dtype type, size_t width, size_t d_model, float *to)
{
    /* a tile that fits into the L1 cache */
    enum { ROWS = 16, COLUMNS = 64 };
    const size_t bytes = kvd_dtype_bytes(type), pieces = (d_model + ROWS - 1) / ROWS;
#pragma omp parallel for schedule(static)
    for (size_t p = 0; p < pieces; p++) {
        const size_t first = p * ROWS, n = d_model - first < ROWS ? d_model - first : ROWS;
        float row[ROWS][COLUMNS];
        for (size_t at = 0; at < width; at += COLUMNS) {
            const size_t m = width - at < COLUMNS ? width - at : COLUMNS;
            for (size_t r = 0; r < n; r++)
                kvd_to_f32(type, from + ((first + r) * width + at) * bytes, row[r], m);
            for (size_t j = 0; j < m; j++)
                for (size_t r = 0; r < n; r++)
                    to[(at + j) * d_model + first + r] = row[r][j];
        }
    }
}

/* Copies W_O and W_V to the host. `raw` must have room for W_O in float32. */
static int read_weights(cuda *c, int layer, float *w_o, float *w_v, char *raw, kvd_err *err)
{
    const kvd_config *m = kvd_checkpoint_config(c->spec.checkpoint);
    const size_t d = (size_t)m->d_head, width = (size_t)m->d_model;
    for (int g = 0; g < c->spec.n_gpus; g++) {
        const kvd_gpu_weights *w = kvd_gpu_forward_weights(c->forward, g);
        const kvd_gpu_share *s = &c->gpu[g].share;
        const size_t heads = (size_t)s->n_heads, kv_heads = (size_t)s->n_kv_heads;
        const size_t bytes = kvd_dtype_bytes(w->type), n_v = kv_heads * d * width;
        if (to_device(c, g, err) ||
            kvd_cuda_check(cudaMemcpy(raw, w->layer[layer].o, heads * d * width * bytes,
                                      cudaMemcpyDeviceToHost),
                           "weights of a layer", err))
            return -1;
        transpose_o(raw, w->type, heads * d, width, w_o + (size_t)s->first_head * d * width);
        const char *v = (const char *)w->layer[layer].qkv + (heads + kv_heads) * d * width * bytes;
        if (kvd_cuda_check(cudaMemcpy(raw, v, n_v * bytes, cudaMemcpyDeviceToHost),
                           "weights of a layer", err))
            return -1;
        kvd_to_f32(w->type, raw, w_v + (size_t)s->first_kv_head * d * width, n_v);
    }
    return to_device(c, 0, err);
}

static int read_latent_weights(const cuda *c, int layer, float *w_o, float *w_v, kvd_err *err)
{
    const kvd_checkpoint *const from = c->spec.checkpoint;
    kvd_weight part[KVD_LAYER_WEIGHTS];
    return kvd_status(kvd_layer_find(from, layer, part, err) ||
                      kvd_latent_weights(kvd_checkpoint_config(from), part, w_o, w_v, err));
}

static int dump_weights(cuda *c, kvd_err *err)
{
    const kvd_config *m = kvd_checkpoint_config(c->spec.checkpoint);
    const size_t n = (size_t)m->n_heads * (size_t)m->d_head * (size_t)m->d_model * sizeof(float);
    float *w_o = malloc(n), *w_v = malloc(n);
    char *raw = malloc(n);
    int status = w_o && w_v && raw ? 0 : kvd_no_memory(err, "weights of a layer", n);
    for (int l = c->spec.first_layer; l <= c->spec.last_layer && !status; l++)
        status = (m->latent ? read_latent_weights(c, l, w_o, w_v, err)
                            : read_weights(c, l, w_o, w_v, raw, err)) ||
                 kvd_activations_put_weights(c->spec.dump, l - c->spec.first_layer, w_o, w_v, err);
    free(w_o);
    free(w_v);
    free(raw);
    return status ? -1 : 0;
}

static int weights(kvd_collect_engine *e, kvd_err *err)
{
    cuda *c = (cuda *)e;
    if (c->spec.sums) {
        if (hold_sums(c, c->spec.sums, err))
            return -1;
        c->ahead = true;
        for (int l = c->spec.first_layer; l <= c->spec.last_layer; l++)
            if (sum_weights(c, l, err))
                return -1;
        /* Checks the weights: copying their second moments to the host fails if a weight is NaN or
         * infinite. */
        if (fetch_sums(c, err))
            return -1;
    }
    return c->spec.dump ? dump_weights(c, err) : 0;
}

static int add_moments(gpu *g, const kvd_gpu_attention_in *in, kvd_err *err)
{
    cuda *c = g->all;
    if (g->index > 0 || in->layer < c->spec.first_layer)
        return kvd_gpu_moments_add(g->moments, in, err);
    cudaEvent_t *pair = c->event + c->n_events;
    c->n_events += 2;
    return kvd_status(kvd_cuda_check(cudaEventRecord(pair[0], in->stream), "second moments", err) ||
                      kvd_gpu_moments_add(g->moments, in, err) ||
                      kvd_cuda_check(cudaEventRecord(pair[1], in->stream), "second moments", err));
}

static int record(void *ctx, const kvd_gpu_attention_in *in, kvd_err *err)
{
    gpu *g = ctx;
    cuda *c = g->all;
    if ((g->index == 0 && c->give_up(c->ctx, err)) || (c->add && add_moments(g, in, err)))
        return -1;
    return c->to_dump ? kvd_gpu_dump_add(g->dump, in, c->first_token, err) : 0;
}

static void update_times(cuda *c)
{
    const kvd_gpu_dump_times dump =
        c->gpu[0].dump ? kvd_gpu_dump_time(c->gpu[0].dump) : (kvd_gpu_dump_times){0};
    kvd_collect_times *t = &c->engine.times;
    t->record = c->moments + dump.convert;
    t->write = dump.wait;
    t->forward = c->elapsed > t->record + t->write ? c->elapsed - t->record - t->write : 0;
}

static int run_forward(cuda *c, const kvd_batch *b, kvd_err *err)
{
    const double start = kvd_clock_s();
    if (kvd_gpu_forward_run(c->forward, b, c->hook, c->spec.last_layer, NULL, err))
        return -1;
    c->elapsed += kvd_clock_s() - start;
    for (int i = 0; i < c->n_events; i += 2) {
        float ms = 0;
        if (kvd_cuda_check(cudaEventElapsedTime(&ms, c->event[i], c->event[i + 1]), "collecting",
                           err))
            return -1;
        c->moments += 1e-3 * (double)ms;
    }
    update_times(c);
    return 0;
}

static int fetch_rows(const void *from, size_t pitch, size_t width, size_t n, void *to,
                      cudaStream_t stream, kvd_err *err)
{
    return kvd_cuda_check(
        cudaMemcpy2DAsync(to, width, from, pitch, width, n, cudaMemcpyDeviceToHost, stream),
        "gradients", err);
}

static int take_gradients(void *ctx, const kvd_gpu_gradients *g, kvd_err *err)
{
    const cuda *const c = ctx;
    const gradients *const to = &c->gradients;
    const size_t f = sizeof(float), n = g->n_tokens, d = (size_t)g->config->d_model,
                 width = (size_t)g->config->n_kv_heads * (size_t)g->config->d_head * f,
                 bytes = d * kvd_dtype_bytes(g->type);
    if (g->layer > c->spec.last_layer)
        return 0;
    if (fetch_rows(g->dk, g->ld_d * f, width, n, to->of[0], g->stream, err) ||
        fetch_rows(g->dk_pre, g->ld_pre * f, width, n, to->of[1], g->stream, err) ||
        fetch_rows(g->dk_raw, g->ld_d * f, width, n, to->of[2], g->stream, err) ||
        fetch_rows(g->dv, g->ld_d * f, width, n, to->of[3], g->stream, err) ||
        fetch_rows(g->in, bytes, bytes, n, to->raw, g->stream, err) ||
        kvd_cuda_check(cudaStreamSynchronize(g->stream), "gradients", err))
        return -1;
    kvd_to_f32(g->type, to->raw, to->in, n * d);
    const kvd_gradients h = {.config = g->config,
                             .layer = g->layer,
                             .n_sequences = g->n_sequences,
                             .offset = g->offset,
                             .first_sequence = g->first_sequence,
                             .n_tokens = n,
                             .k = to->of[0],
                             .k_pre = to->of[1],
                             .k_raw = to->of[2],
                             .v = to->of[3],
                             .in = to->in};
    return kvd_information_take(to->sums, &h, err);
}

static int ask(void *ctx, kvd_err *err)
{
    const cuda *const c = ctx;
    return c->give_up(c->ctx, err);
}

static int run_backward(cuda *c, const kvd_batch *b, kvd_err *err)
{
    const kvd_gpu_gradient_sink sink = {take_gradients, ask, c};
    const double start = kvd_clock_s();
    kvd_fisher *const f = c->spec.fisher;
    kvd_information_begin(c->gradients.sums, b, c->first_token);
    const int status = kvd_gpu_backward_run(c->gradients.pass, b, c->spec.first_layer, &sink,
                                            &f->loss, &f->n_predicted, err);
    c->engine.times.backward += kvd_clock_s() - start;
    return status;
}

static int run(kvd_collect_engine *e, const kvd_batch *b, size_t first_token, kvd_moments *into,
               bool to_dump, int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err)
{
    cuda *c = (cuda *)e;
    if (into && hold_sums(c, into, err))
        return -1;
    c->ahead = c->ahead || into;
    c->first_token = first_token;
    c->add = into != NULL;
    c->to_dump = to_dump && c->spec.dump;
    c->give_up = give_up;
    c->ctx = ctx;
    c->n_events = 0;
    return kvd_status(((c->add || c->to_dump) && run_forward(c, b, err)) ||
                      (to_dump && c->gradients.pass && run_backward(c, b, err)));
}
static int flush(kvd_collect_engine *e, kvd_err *err)
{
    cuda *c = (cuda *)e;
    for (int g = 0; c->spec.dump && g < c->spec.n_gpus; g++)
        if (kvd_gpu_dump_flush(c->gpu[g].dump, err))
            return -1;
    update_times(c);
    if (fetch_sums(c, err))
        return -1;
    if (c->gradients.sums)
        kvd_information_flush(c->gradients.sums);
    /* The caller may now change the second moments c->held in host memory, so the GPUs' copy
     * becomes invalid. */
    if (c->held != c->spec.sums)
        c->held = NULL;
    return 0;
}

static const char *describe(const kvd_collect_engine *e)
{
    const cuda *const c = (const cuda *)e;
    return c->forward ? kvd_gpu_forward_engine(c->forward)
                      : kvd_gpu_backward_engine(c->gradients.pass);
}

static void release_gradients(gradients *g)
{
    for (int i = 0; i < GRADIENTS; i++)
        free(g->of[i]);
    free(g->in);
    free(g->raw);
    kvd_information_free(g->sums);
    kvd_gpu_backward_free(g->pass);
}

static void release(kvd_collect_engine *e)
{
    cuda *c = (cuda *)e;
    kvd_err ignored;
    for (int g = c->spec.n_gpus - 1; g >= 0; g--) {
        (void)to_device(c, g, &ignored);
        kvd_gpu_dump_free(c->gpu[g].dump);
        kvd_gpu_moments_free(c->gpu[g].moments);
    }
    for (int i = 0; c->event && i < 2 * (c->spec.last_layer - c->spec.first_layer + 1); i++)
        if (c->event[i])
            (void)cudaEventDestroy(c->event[i]);
    free(c->event);
    kvd_gpu_forward_free(c->forward);
    release_gradients(&c->gradients);
    free(c);
}

static kvd_gpu_forward_spec pass_of(const cuda *c)
{
    const kvd_collect_spec *const s = &c->spec;
    return (kvd_gpu_forward_spec){.type = s->compute,
                                  .first_gpu = s->first_gpu,
                                  .n_gpus = s->n_gpus,
                                  .max_tokens = s->max_tokens,
                                  .max_len = s->max_len,
                                  .memory = c->pass_memory};
}

static int check_memory(cuda *c, int g, kvd_err *err)
{
    const kvd_collect_spec *s = &c->spec;
    const kvd_gpu_share *share = &c->gpu[g].share;
    const size_t rest = (s->sums ? kvd_gpu_moments_bytes(s->sums, share) : 0) +
                        (s->dump ? kvd_gpu_dump_bytes(s->dump, share, s->max_tokens) : 0);
    size_t left = 0, total = 0;
    if (to_device(c, g, err) || kvd_cuda_check(cudaMemGetInfo(&left, &total), "collecting", err))
        return -1;
    const size_t most = left > rest ? left - rest : 1;
    if (g == 0 || most < c->pass_memory)
        c->pass_memory = most;
    const kvd_gpu_forward_spec pass = pass_of(c);
    const size_t need = kvd_gpu_forward_bytes(kvd_checkpoint_config(s->checkpoint), &pass) + rest;
    if (need <= left)
        return 0;
    return kvd_fail(
        err,
        "'%s' in %s with batches of %zu tokens takes %.1f GB on GPU %d, which has %.1f of %.1f GB left: a "
        "smaller --batch takes less%s, and so do more --gpus",
        kvd_checkpoint_path(s->checkpoint), kvd_dtype_name(s->compute), s->max_tokens,
        (double)need / 1e9, s->first_gpu + g, (double)left / 1e9, (double)total / 1e9,
        s->compute == KVD_F32 ? ", --compute bf16" : "");
}

static int open_gpu(cuda *c, int index, kvd_err *err)
{
    const kvd_collect_spec *s = &c->spec;
    gpu *g = &c->gpu[index];
    g->all = c;
    g->index = index;
    g->stream = kvd_gpu_forward_stream(c->forward, index);
    kvd_gpu_capture_init(&g->capture, kvd_gpu_forward_dense(c->forward, index));
    g->capture.record = record;
    g->capture.ctx = g;
    g->capture.hook.wants_pre = s->pre;
    c->hook[index] = &g->capture.hook;
    if (to_device(c, index, err) ||
        (s->sums && !(g->moments = kvd_gpu_moments_new(s->sums, &g->share, err))) ||
        (s->dump && !(g->dump = kvd_gpu_dump_new(s->dump, &g->share, s->max_tokens, err))))
        return -1;
    return 0;
}

static int make_events(cuda *c, kvd_err *err)
{
    const size_t n = 2 * (size_t)(c->spec.last_layer - c->spec.first_layer + 1);
    if (!(c->event = calloc(n, sizeof(cudaEvent_t))))
        return kvd_no_memory(err, "events", n * sizeof *c->event);
    for (size_t i = 0; i < n; i++)
        if (kvd_cuda_check(cudaEventCreate(&c->event[i]), "events", err))
            return -1;
    return 0;
}

static int open_gradients(cuda *c, kvd_err *err)
{
    const kvd_collect_spec *const s = &c->spec;
    const kvd_config *const m = kvd_checkpoint_config(s->checkpoint);
    const size_t n = s->max_tokens, width = (size_t)m->n_kv_heads * (size_t)m->d_head,
                 in = n * (size_t)m->d_model;
    gradients *const g = &c->gradients;
    if (s->n_gpus > 1)
        return kvd_fail(err, "--fisher runs on one GPU, not on %d: use --gpus 1", s->n_gpus);
    bool all = (g->in = malloc(in * sizeof *g->in)) && (g->raw = malloc(in * sizeof(float)));
    for (int i = 0; all && i < GRADIENTS; i++)
        all = (g->of[i] = malloc(n * width * sizeof(float))) != NULL;
    if (!all)
        return kvd_no_memory(err, "gradients of a batch", in * sizeof(float));
    return (g->sums = kvd_information_new(NULL, n, s->max_len, s->fisher, err)) &&
                   (g->pass = kvd_gpu_backward_new(s->checkpoint, s->compute, s->first_gpu, n,
                                                   s->max_len, err))
               ? 0
               : -1;
}

static int open_all(cuda *c, kvd_err *err)
{
    const kvd_collect_spec *s = &c->spec;
    const kvd_config *const config = kvd_checkpoint_config(s->checkpoint);
    /* The backward pass allocates GPU memory first, because the forward pass takes all that is
     * free. */
    if (s->fisher && open_gradients(c, err))
        return -1;
    if (!s->dump && !s->sums)
        return 0;
    if (config->latent && s->sums)
        return kvd_fail(err,
                        "second moments of a %s model, which has latent attention, are summed on "
                        "the CPU alone: use --device cpu",
                        config->family);
    for (int g = 0; g < s->n_gpus; g++)
        if (kvd_gpu_share_of(config, KVD_GPU_PASS, g, s->n_gpus, &c->gpu[g].share, err) ||
            check_memory(c, g, err))
            return -1;
    const kvd_gpu_forward_spec pass = pass_of(c);
    if (!(c->forward = kvd_gpu_forward_new(s->checkpoint, &pass, err)))
        return -1;
    for (int g = 0; g < s->n_gpus; g++)
        if (open_gpu(c, g, err))
            return -1;
    return to_device(c, 0, err) || make_events(c, err) ? -1 : 0;
}

kvd_collect_engine *kvd_collect_engine_cuda(const kvd_collect_spec *s, kvd_err *err)
{
    cuda *c = kvd_new(1, sizeof *c, "the forward pass", err);
    if (!c)
        return NULL;
    c->engine = (kvd_collect_engine){
        .weights = weights, .run = run, .flush = flush, .free = release, .describe = describe};
    c->spec = *s;
    if (c->spec.max_len > s->max_tokens)
        c->spec.max_len = s->max_tokens;
    if (open_all(c, err)) {
        release(&c->engine);
        return NULL;
    }
    return &c->engine;
}

int kvd_engine_cuda_batch(const kvd_config *c, kvd_dtype compute, int first_gpu, int n_gpus,
                          size_t seq_len, size_t *batch, kvd_err *err)
{
    enum { MOST = 16384, LEAST = 1024 };
    kvd_gpu_forward_spec pass = {
        .type = compute, .first_gpu = first_gpu, .n_gpus = n_gpus, .max_len = seq_len};
    size_t left = 0, total = 0;
    if (kvd_cuda_check(cudaSetDevice(first_gpu), "collecting", err) ||
        kvd_cuda_check(cudaMemGetInfo(&left, &total), "collecting", err))
        return -1;
    /* A tenth of the memory is left for second moments, buffers and the CUDA runtime. */
    pass.memory = total / 10 * 9;
    for (*batch = MOST; *batch > LEAST; *batch /= 2) {
        pass.max_tokens = *batch > seq_len ? *batch : seq_len;
        if (kvd_gpu_forward_bytes(c, &pass) <= pass.memory)
            break;
    }
    return 0;
}
