#include "model/pass/cuda/backward.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/pass/cuda/attention.h"
#include "model/pass/cuda/blocks_back.h"
#include "model/pass/cuda/layer_back.h"

#define LOGITS ((size_t)512 << 20)

static const char what[] = "backward pass";

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static int take(kvd_gpu_backward *w, void *to, size_t rows, size_t bytes_per_row, const char *name,
                kvd_err *err)
{
    void *const p = kvd_device_new(&w->memory, rows * bytes_per_row, name, err);
    memcpy(to, &p, sizeof p);
    return p ? 0 : -1;
}

static int take_buffers(kvd_gpu_backward *w, kvd_err *err)
{
    const kvd_config *c = &w->w.config;
    const kvd_dtype type = w->w.weights.type;
    const size_t n = w->w.max_tokens, bytes = kvd_dtype_bytes(type), f = sizeof(float);
    const size_t widest = larger(larger(w->d, w->width), w->d_embed),
                 layers = (size_t)c->n_layers + 1;
    if (take(w, &w->x, layers * n, w->d * f, "the residuals that enter the layers", err) ||
        take(w, &w->dx, n, w->d * f, "gradients", err) ||
        take(w, &w->dy, n, w->d * f, "gradients", err) ||
        (c->order == KVD_ORDER_AFTER && take(w, &w->between, n, w->d * f, "activations", err)) ||
        take(w, &w->y, n, w->d * bytes, "activations", err) ||
        take(w, &w->d_ffn, n, w->ffn * f, "gradients of the feed-forward block", err) ||
        take(w, &w->d_o, n, w->width_q * f, "gradients of attention", err) ||
        take(w, &w->d_qkv, n, w->width * f, "gradients of queries, keys and values", err) ||
        take(w, &w->d_raw, n, w->width * f, "gradients of queries, keys and values", err) ||
        take(w, &w->d_pre, n, (w->width_q + w->width_k) * f, "gradients of queries and keys",
             err) ||
        (c->qk_norm &&
         take(w, &w->product, n, w->width * bytes, "queries, keys and values", err)) ||
        (type != KVD_F32 && take(w, &w->narrowed, n, widest * bytes, "gradients", err)) ||
        take(w, &w->scratch, 1, kvd_gpu_attend_back_scratch(type, w->w.max_len, c->n_kv_heads),
             "scores of attention", err) ||
        take(w, &w->logits, w->piece, w->vocab * f, "logits", err) ||
        (type != KVD_F32 &&
         take(w, &w->d_logits, w->piece, w->vocab * bytes, "gradients of logits", err)) ||
        take(w, &w->d_embedded, w->piece, w->d_embed * f, "the head's input", err) ||
        take(w, &w->target, n, sizeof *w->target, "targets", err) ||
        take(w, &w->u, n, sizeof *w->u, "draws", err) ||
        take(w, &w->loss, n, sizeof *w->loss, "losses", err))
        return -1;
    if (type == KVD_F32)
        w->d_logits = w->logits;
    return kvd_status(!(w->rows = kvd_pinned_new(4 * n * sizeof *w->rows, "token ids", err)) ||
                      !(w->numbers = kvd_pinned_new(2 * n * sizeof *w->numbers, "losses", err)) ||
                      !(w->bad = kvd_pinned_new(sizeof *w->bad, "a flag", err)));
}

static int name_engine(kvd_gpu_backward *w, kvd_err *err)
{
    struct cudaDeviceProp prop;
    int version = 0;
    if (kvd_cuda_check(cudaGetDeviceProperties(&prop, w->w.device), what, err) ||
        kvd_cublas_check(w->w.lib->cublasGetVersion_v2(w->w.blas, &version), what, err))
        return -1;
    (void)snprintf(w->engine, sizeof w->engine, "%s, %s, cuBLAS %d.%d.%d", prop.name,
                   kvd_dtype_name(w->w.weights.type), version / 10000, version / 100 % 100,
                   version % 100);
    return 0;
}

kvd_gpu_backward *kvd_gpu_backward_new(const kvd_checkpoint *c, kvd_dtype type, int gpu,
                                       size_t max_tokens, size_t max_len, kvd_err *err)
{
    const kvd_config *config = kvd_checkpoint_config(c);
    const kvd_gpu_forward_spec spec = {
        .type = type, .first_gpu = gpu, .n_gpus = 1, .max_tokens = max_tokens, .max_len = max_len};
    kvd_gpu_share share;
    if (type != KVD_F32 && type != KVD_BF16) {
        kvd_fail(err, "a backward pass in %s, on a GPU it runs in f32 or bf16",
                 kvd_dtype_name(type));
        return NULL;
    }
    if (kvd_batch_limits(c, max_tokens, max_len, err) ||
        kvd_gpu_share_of(config, KVD_GPU_GRADIENTS, 0, 1, &share, err))
        return NULL;
    kvd_gpu_backward *w = kvd_new(1, sizeof *w, what, err);
    if (!w)
        return NULL;
    w->d = (size_t)config->d_model;
    w->d_embed = (size_t)kvd_config_d_embed(config);
    w->vocab = (size_t)config->vocab_size;
    w->width_q = (size_t)config->n_heads * (size_t)config->d_head;
    w->width_k = (size_t)config->n_kv_heads * (size_t)config->d_head;
    w->width = w->width_q + 2 * w->width_k;
    w->ffn = (size_t)config->d_ffn;
    w->piece = smaller(larger(LOGITS / sizeof(float) / w->vocab, 1), max_tokens);
    if (kvd_gpu_worker_open(&w->w, c, &spec, &share, true, err) || take_buffers(w, err) ||
        name_engine(w, err)) {
        kvd_gpu_backward_free(w);
        return NULL;
    }
    return w;
}

void kvd_gpu_backward_free(kvd_gpu_backward *w)
{
    if (!w)
        return;
    kvd_gpu_worker_close(&w->w);
    kvd_device_release(&w->memory);
    void *const pinned[] = {w->rows, w->numbers, w->bad};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++)
        if (pinned[i])
            (void)cudaFreeHost(pinned[i]);
    free(w);
}

void kvd_gpu_backward_draw(kvd_gpu_backward *w, uint64_t seed)
{
    w->draws = true;
    w->seed = seed;
}

cudaStream_t kvd_gpu_backward_stream(const kvd_gpu_backward *w)
{
    return w->w.stream;
}

const char *kvd_gpu_backward_engine(const kvd_gpu_backward *w)
{
    return w->engine;
}

/* Returns the number of the backward pass's first check for NaN and infinity. Checks are numbered
 * in the order of execution, beginning with the forward pass. */
static unsigned stage_behind(const kvd_config *c)
{
    return kvd_gpu_stage_final(c) + 1;
}

static unsigned stage_qkv(const kvd_config *c, int layer)
{
    return stage_behind(c) + 1 + 2 * (unsigned)(c->n_layers - 1 - layer);
}

static void stage_name(const kvd_config *c, unsigned stage, char *to, size_t size)
{
    if (stage < stage_behind(c)) {
        kvd_gpu_stage_name(c, stage, to, size);
    } else if (stage == stage_behind(c)) {
        (void)snprintf(to, size, "gradient after layer %d", c->n_layers - 1);
    } else {
        const unsigned k = stage - stage_behind(c) - 1;
        (void)snprintf(to, size, "gradient of %slayer %d", k % 2 ? "" : "Q, K and V of ",
                       c->n_layers - 1 - (int)(k / 2));
    }
}

static int send_targets(kvd_gpu_backward *w, const kvd_batch *b, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences];
    uint32_t *const target = w->rows + 3 * w->w.max_tokens;
    kvd_batch_targets(b, target, w->seed, w->draws ? w->numbers : NULL);
    return kvd_status(
        kvd_queue_put(w->target, target, n * sizeof *target, w->w.stream, "targets", err) ||
        (w->draws && kvd_queue_put(w->u, w->numbers, n * sizeof *w->u, w->w.stream, "draws", err)));
}

/* Computes the gradient of the last layer's output for `rows` tokens, from token `first` on. Before
 * the call, w->dx has the tokens' hidden states; after the call, it has the gradient. */
static int piece_back(kvd_gpu_backward *w, size_t first, size_t rows, kvd_err *err)
{
    kvd_gpu_worker *const g = &w->w;
    const kvd_config *c = &g->config;
    float *const dx = w->dx + first * w->d;
    float *const d_hidden = g->weights.norm_final ? w->dy : dx;
    if (kvd_gpu_head(g, dx, rows, w->logits, err) ||
        kvd_cuda_check(kvd_gpu_cross_entropy(g->weights.type, w->logits, rows, w->vocab,
                                             w->target + first, w->draws ? w->u + first : NULL,
                                             w->d_logits, w->loss + first, g->stream),
                       what, err))
        return -1;
    if (g->weights.project_out) {
        const void *narrowed;
        if (kvd_back_product(w, w->d_logits, g->weights.head, rows, w->d_embed, w->vocab,
                             w->d_embedded, 0, err) ||
            !(narrowed = kvd_back_narrow(w, w->d_embedded, rows, w->d_embed, err)) ||
            kvd_back_product(w, narrowed, g->weights.project_out, rows, w->d, w->d_embed, d_hidden,
                             0, err))
            return -1;
    } else if (kvd_back_product(w, w->d_logits, g->weights.head, rows, w->d, w->vocab, d_hidden, 0,
                                err)) {
        return -1;
    }
    if (!g->weights.norm_final)
        return 0;
    const float *const x = w->x + ((size_t)c->n_layers * g->max_tokens + first) * w->d;
    return kvd_back_norm(w, x, g->weights.norm_final, rows, d_hidden, dx, 0, err);
}

static int loss_back(kvd_gpu_backward *w, const kvd_batch *b, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences], max = w->w.max_tokens;
    if (send_targets(w, b, err) || kvd_gpu_hidden_out(&w->w, n, w->dx, err))
        return -1;
    for (size_t first = 0; first < n; first += w->piece)
        if (piece_back(w, first, smaller(w->piece, n - first), err))
            return -1;
    return kvd_status(
        kvd_back_check(w, w->dx, n, w->d, stage_behind(&w->w.config), err) ||
        kvd_queue_get(w->numbers + max, w->loss, n * sizeof *w->loss, w->w.stream, "losses", err));
}

typedef struct {
    kvd_gpu_backward *w;
    const kvd_batch *b;
    int first_layer;
    const kvd_gpu_gradient_sink *sink;
} job;

static float *entering(const kvd_gpu_backward *w, int layer)
{
    return w->x + (size_t)layer * w->w.max_tokens * w->d;
}

static int give_up(const job *j, kvd_err *err)
{
    return j->sink->give_up ? j->sink->give_up(j->sink->ctx, err) : 0;
}

static int go_forward(const job *j, kvd_err *err)
{
    kvd_gpu_worker *const g = &j->w->w;
    const size_t n = j->b->offset[j->b->n_sequences];
    kvd_gpu_attention *const hook = kvd_gpu_dense_hook(g->dense);
    if (kvd_gpu_worker_begin(g, j->w->rows, n, err) || kvd_gpu_embedding(g, n, err))
        return -1;
    for (int l = 0; l < g->config.n_layers; l++)
        if (give_up(j, err) || kvd_gpu_residual_out(g, n, entering(j->w, l), err) ||
            kvd_gpu_layer_run(g, j->b, l, hook, 0, err))
            return -1;
    return kvd_gpu_residual_out(g, n, entering(j->w, g->config.n_layers), err);
}

static int hand_out(const job *j, int layer, kvd_err *err)
{
    const kvd_gpu_backward *w = j->w;
    const kvd_gpu_gradients g = {.config = &w->w.config,
                                 .layer = layer,
                                 .n_sequences = j->b->n_sequences,
                                 .offset = j->b->offset,
                                 .first_sequence = j->b->first_sequence,
                                 .n_tokens = j->b->offset[j->b->n_sequences],
                                 .type = w->w.weights.type,
                                 .q = w->w.qkv,
                                 .o = w->w.narrow,
                                 .in = w->w.normed,
                                 .ld = w->width,
                                 .dq = w->d_qkv,
                                 .dk = w->d_qkv + w->width_q,
                                 .dv = w->d_qkv + w->width_q + w->width_k,
                                 .d_o = w->d_o,
                                 .ld_d = w->width,
                                 .dq_pre = w->d_pre,
                                 .dk_pre = w->d_pre + w->width_q,
                                 .ld_pre = w->width_q + w->width_k,
                                 .dk_raw = w->d_raw + w->width_q,
                                 .stream = w->w.stream};
    return j->sink->take(j->sink->ctx, &g, err);
}

static int layer_back(const job *j, int layer, kvd_err *err)
{
    kvd_gpu_backward *const w = j->w;
    kvd_gpu_worker *const g = &w->w;
    const kvd_gpu_layer *l = &g->weights.layer[layer];
    const size_t n = j->b->offset[j->b->n_sequences];
    return kvd_status(kvd_gpu_residual_in(g, entering(w, layer), layer, n, err) ||
                      kvd_gpu_layer_run(g, j->b, layer, kvd_gpu_dense_hook(g->dense), 1, err) ||
                      kvd_gpu_behind_back(w, l, n, err) ||
                      kvd_gpu_attention_back(w, j->b, layer, err) ||
                      kvd_gpu_before_back(w, l, layer, n, layer == j->first_layer,
                                          stage_qkv(&g->config, layer), err) ||
                      hand_out(j, layer, err));
}

static int queue_work(const job *j, kvd_err *err)
{
    if (go_forward(j, err) || loss_back(j->w, j->b, err))
        return -1;
    for (int l = j->w->w.config.n_layers - 1; l >= j->first_layer; l--)
        if (give_up(j, err) || layer_back(j, l, err))
            return -1;
    return 0;
}

int kvd_gpu_backward_run(kvd_gpu_backward *w, const kvd_batch *b, int first_layer,
                         const kvd_gpu_gradient_sink *sink, double *loss, size_t *n_predicted,
                         kvd_err *err)
{
    const kvd_config *c = &w->w.config;
    const size_t max = w->w.max_tokens;
    const job j = {w, b, first_layer, sink};
    char where[48];
    kvd_err second;
    if (kvd_layer_check(c, first_layer, err) ||
        kvd_batch_check(c, b, max, w->w.max_len, w->rows + max, w->rows + 2 * max, err) ||
        kvd_cuda_check(cudaSetDevice(w->w.device), what, err))
        return -1;
    const size_t n = b->offset[b->n_sequences];
    memcpy(w->rows, b->id, n * sizeof *w->rows);
    const int status = queue_work(&j, err);
    if (kvd_gpu_worker_wait(&w->w, w->bad, status ? &second : err) || status)
        return -1;
    if (*w->bad != ~0ULL) {
        stage_name(c, (unsigned)(*w->bad >> 40), where, sizeof where);
        return kvd_batch_not_finite(c, b, where, (size_t)(*w->bad & ((1ULL << 40) - 1)), err);
    }
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += w->numbers[max + i];
    *loss += sum;
    *n_predicted += n - b->n_sequences;
    return 0;
}
