#include "model/cuda/backward.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "model/cuda/attention_back.h"
#include "model/cuda/blocks_back.h"
#include "model/cuda/layer.h"

/* Logits of one piece, in bytes: rows enough for the product with any head. */
#define LOGITS ((size_t)512 << 20)

static const char what[] = "backward pass";

struct kvd_gpu_backward {
    kvd_gpu_worker
        w; /* the pass forward: its x, normed, second, qkv, wide and narrow are used as it leaves them */
    size_t d, d_embed, vocab, width_q, width_k, width, ffn, piece;
    kvd_device_memory memory;
    float *x;       /* [n_layers + 1][max_tokens][d_model] entering each layer, leaving the last */
    float *dx, *dy; /* [max_tokens][d_model] */
    float
        *between; /* [max_tokens][d_model], what enters the feed-forward block of KVD_ORDER_AFTER, or NULL */
    void *y;      /* [max_tokens][d_model], the same of the type of the pass */
    float *d_ffn; /* [max_tokens][d_ffn] */
    float *d_o;   /* [max_tokens][width_q] */
    float *d_qkv, *d_raw; /* [max_tokens][width_q + 2 width_k] */
    float *d_pre;         /* [max_tokens][width_q + width_k] */
    void *product;        /* [max_tokens][width_q + 2 width_k] in front of the norms of Q and K, or NULL */
    void *narrowed;       /* a gradient that goes into a product, of the type of the pass; NULL in float32 */
    void *scratch;        /* of attention */
    float *logits;        /* [piece][vocab] */
    void *d_logits;       /* the same of the type of the pass; the logits in float32 */
    float *d_embedded;    /* [piece][d_embed] */
    uint32_t *target;     /* [max_tokens] */
    double *u, *loss;     /* [max_tokens]: uniform in [0, 1), for draws; of each row */
    /* pinned */
    uint32_t *rows;  /* ids, positions, rope rows, targets: max_tokens each */
    double *numbers; /* u and loss, max_tokens each */
    kvd_gpu_bad *bad;
    bool draws;
    uint64_t seed;
    char engine[320];
};

/* ---- life ---------------------------------------------------------------------------------------------- */

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
    const size_t widest = larger(larger(w->d, w->width), w->d_embed), layers = (size_t)c->n_layers + 1;
    if (take(w, &w->x, layers * n, w->d * f, "the residuals that enter the layers", err) ||
        take(w, &w->dx, n, w->d * f, "gradients", err) || take(w, &w->dy, n, w->d * f, "gradients", err) ||
        (c->order == KVD_ORDER_AFTER && take(w, &w->between, n, w->d * f, "activations", err)) ||
        take(w, &w->y, n, w->d * bytes, "activations", err) ||
        take(w, &w->d_ffn, n, w->ffn * f, "gradients of the feed-forward block", err) ||
        take(w, &w->d_o, n, w->width_q * f, "gradients of attention", err) ||
        take(w, &w->d_qkv, n, w->width * f, "gradients of queries, keys and values", err) ||
        take(w, &w->d_raw, n, w->width * f, "gradients of queries, keys and values", err) ||
        take(w, &w->d_pre, n, (w->width_q + w->width_k) * f, "gradients of queries and keys", err) ||
        (c->qk_norm && take(w, &w->product, n, w->width * bytes, "queries, keys and values", err)) ||
        (type != KVD_F32 && take(w, &w->narrowed, n, widest * bytes, "gradients", err)) ||
        take(w, &w->scratch, 1, kvd_gpu_attend_back_scratch(type, w->w.max_len, c->n_kv_heads),
             "scores of attention", err) ||
        take(w, &w->logits, w->piece, w->vocab * f, "logits", err) ||
        (type != KVD_F32 && take(w, &w->d_logits, w->piece, w->vocab * bytes, "gradients of logits", err)) ||
        take(w, &w->d_embedded, w->piece, w->d_embed * f, "the head's input", err) ||
        take(w, &w->target, n, sizeof *w->target, "targets", err) ||
        take(w, &w->u, n, sizeof *w->u, "draws", err) || take(w, &w->loss, n, sizeof *w->loss, "losses", err))
        return -1;
    if (type == KVD_F32)
        w->d_logits = w->logits;
    return kvd_cuda_check(cudaMallocHost((void **)&w->rows, 4 * n * sizeof *w->rows), "token ids", err) ||
                   kvd_cuda_check(cudaMallocHost((void **)&w->numbers, 2 * n * sizeof *w->numbers), "losses",
                                  err) ||
                   kvd_cuda_check(cudaMallocHost((void **)&w->bad, sizeof *w->bad), "a flag", err)
               ? -1
               : 0;
}

static int name_engine(kvd_gpu_backward *w, kvd_err *err)
{
    struct cudaDeviceProp prop;
    int version = 0;
    if (kvd_cuda_check(cudaGetDeviceProperties(&prop, w->w.device), what, err) ||
        kvd_cublas_check(w->w.lib->cublasGetVersion_v2(w->w.blas, &version), what, err))
        return -1;
    (void)snprintf(w->engine, sizeof w->engine, "%s, %s, cuBLAS %d.%d.%d", prop.name,
                   kvd_dtype_name(w->w.weights.type), version / 10000, version / 100 % 100, version % 100);
    return 0;
}

kvd_gpu_backward *kvd_gpu_backward_new(const kvd_checkpoint *c, kvd_dtype type, int gpu, size_t max_tokens,
                                       size_t max_len, kvd_err *err)
{
    const kvd_config *config = kvd_checkpoint_config(c);
    const kvd_gpu_forward_spec spec = {
        .type = type, .first_gpu = gpu, .n_gpus = 1, .max_tokens = max_tokens, .max_len = max_len};
    kvd_gpu_share share;
    if (type != KVD_F32 && type != KVD_BF16) {
        kvd_fail(err, "a backward pass in %s, on a GPU it runs in f32 or bf16", kvd_dtype_name(type));
        return NULL;
    }
    if (kvd_batch_limits(c, max_tokens, max_len, err) || kvd_gpu_share_of(config, 0, 1, &share, err))
        return NULL;
    kvd_gpu_backward *w = calloc(1, sizeof *w);
    if (!w) {
        kvd_no_memory(err, what, sizeof *w);
        return NULL;
    }
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
    kvd_gpu_worker_close(&w->w); /* waits */
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

/* ---- what is checked where ------------------------------------------------------------------------------- */

/* Behind those of the pass forward, in the order in which they are found: behind the last layer; of a layer Q, K and V, then what
 * enters it. */
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
        (void)snprintf(to, size, "gradient behind layer %d", c->n_layers - 1);
    } else {
        const unsigned k = stage - stage_behind(c) - 1;
        (void)snprintf(to, size, "gradient of %slayer %d", k % 2 ? "" : "Q, K and V of ",
                       c->n_layers - 1 - (int)(k / 2));
    }
}

static int check_rows(const kvd_gpu_backward *w, const float *x, size_t n, size_t width, unsigned stage,
                      kvd_err *err)
{
    return kvd_cuda_check(kvd_gpu_check(x, n, width, stage, w->w.bad, w->w.stream), what, err);
}

/* ---- products ---------------------------------------------------------------------------------------------- */

static cudaDataType cuda_type(kvd_dtype type)
{
    return type == KVD_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* to [n][out] = from [n][in] W^T, or += that; W [out][in], from of the type of the pass. */
static int forward_product(const kvd_gpu_backward *w, const void *from, const void *matrix, size_t n,
                           size_t in, size_t out, void *to, kvd_dtype to_type, int add, kvd_err *err)
{
    const cudaDataType type = cuda_type(w->w.weights.type);
    const float one = 1, beta = add ? 1 : 0;
    return kvd_cublas_check(w->w.lib->cublasGemmEx(w->w.blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)out, (int)n,
                                                   (int)in, &one, matrix, type, (int)in, from, type, (int)in,
                                                   &beta, to, cuda_type(to_type), (int)out,
                                                   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                            what, err);
}

/* dx [n][in] = dy [n][out] W, or += that; dy of the type of the pass. */
static int back_product(const kvd_gpu_backward *w, const void *dy, const void *matrix, size_t n, size_t in,
                        size_t out, float *dx, int add, kvd_err *err)
{
    const cudaDataType type = cuda_type(w->w.weights.type);
    const float one = 1, beta = add ? 1 : 0;
    return kvd_cublas_check(w->w.lib->cublasGemmEx(w->w.blas, CUBLAS_OP_N, CUBLAS_OP_N, (int)in, (int)n,
                                                   (int)out, &one, matrix, type, (int)in, dy, type, (int)out,
                                                   &beta, dx, CUDA_R_32F, (int)in, CUBLAS_COMPUTE_32F,
                                                   CUBLAS_GEMM_DEFAULT),
                            what, err);
}

/* A gradient in the type of the pass: itself, or in w->narrowed. NULL with *err. */
static const void *narrow(const kvd_gpu_backward *w, const float *x, size_t n, size_t width, kvd_err *err)
{
    const kvd_dtype type = w->w.weights.type;
    if (type == KVD_F32)
        return x;
    return kvd_cuda_check(kvd_gpu_convert(KVD_F32, x, type, w->narrowed, n * width, w->w.stream), what, err)
               ? NULL
               : w->narrowed;
}

/* ---- norms and additions ------------------------------------------------------------------------------------- */

/* x += bias, when there is one; y, when not NULL, of `type`, the norm of that, or with gain NULL x itself. */
static int norm(const kvd_gpu_backward *w, float *x, const float *bias, const kvd_gpu_layer *l, int which,
                size_t n, void *y, kvd_dtype type, kvd_err *err)
{
    const kvd_config *c = &w->w.config;
    const float *gain = which < 0 ? NULL : l->norm[which], *add = which < 0 ? NULL : l->norm_bias[which];
    return kvd_cuda_check(kvd_gpu_norm(c->norm, type, x, bias, gain, add, c->norm_eps, n, w->d, y, w->w.stage,
                                       w->w.bad, w->w.stream),
                          what, err);
}

static int norm_back(const kvd_gpu_backward *w, const float *x, const float *gain, size_t n, const float *dy,
                     float *dx, int add, kvd_err *err)
{
    const kvd_config *c = &w->w.config;
    return kvd_cuda_check(kvd_gpu_norm_back(c->norm, x, gain, c->norm_eps, n, w->d, dy, dx, add, w->w.stream),
                          what, err);
}

/* ---- behind attention ------------------------------------------------------------------------------------------ */

static size_t width_gate_up(const kvd_gpu_backward *w)
{
    return w->w.config.activation == KVD_SWIGLU ? 2 * w->ffn : w->ffn;
}

/* Gate and up of `in` into the worker's wide. */
static int gate_up(const kvd_gpu_backward *w, const kvd_gpu_layer *l, const void *in, size_t n, kvd_err *err)
{
    return forward_product(w, in, l->gate_up, n, w->d, width_gate_up(w), w->w.wide, w->w.weights.type, 0,
                           err);
}

/* Gate and up stand in the worker's wide. d_in = the gradient with respect to what they were made of, or += that; dy with respect to what
 * the block gives. */
static int feed_forward_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, const float *dy,
                             float *d_in, int add, kvd_err *err)
{
    const kvd_gpu_worker *g = &w->w;
    const void *const narrowed = narrow(w, dy, n, w->d, err);
    return !narrowed || back_product(w, narrowed, l->down, n, w->ffn, w->d, w->d_ffn, 0, err) ||
                   kvd_cuda_check(kvd_gpu_activate_back(g->config.activation, g->weights.type, g->wide,
                                                        l->bias_gate_up, n, w->ffn, w->d_ffn, g->stream),
                                  what, err) ||
                   back_product(w, g->wide, l->gate_up, n, w->d, width_gate_up(w), d_in, add, err)
               ? -1
               : 0;
}

/* d_o = the gradient with respect to the output of attention, dx with respect to its product with W_O. */
static int output_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const void *const narrowed = narrow(w, w->dx, n, w->d, err);
    return !narrowed || back_product(w, narrowed, l->o, n, w->width_q, w->d, w->d_o, 0, err) ? -1 : 0;
}

/* The worker's x += O(o), the bias is left to what follows. */
static int add_attention(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    return forward_product(w, w->w.narrow, l->o, n, w->width_q, w->d, w->w.x, KVD_F32, 1, err);
}

/* out = x1 + F(norm'(x1)), x1 = x + O(o) */
static int behind_before(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    return add_attention(w, l, n, err) || norm(w, w->w.x, l->bias_o, l, 1, n, w->y, w->w.weights.type, err) ||
                   gate_up(w, l, w->y, n, err) || feed_forward_back(w, l, n, w->dx, w->dy, 0, err) ||
                   norm_back(w, w->w.x, l->norm[1], n, w->dy, w->dx, 1, err) || output_back(w, l, n, err)
               ? -1
               : 0;
}

/* out = x + O(o) + F(norm'(x)) */
static int behind_parallel(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const kvd_gpu_worker *g = &w->w;
    const int which = g->config.shared_norm ? 0 : 1;
    return output_back(w, l, n, err) || gate_up(w, l, g->second ? g->second : g->normed, n, err) ||
                   feed_forward_back(w, l, n, w->dx, w->dy, 0, err) ||
                   norm_back(w, g->x, l->norm[which], n, w->dy, w->dx, 1, err)
               ? -1
               : 0;
}

/* y = norm(x1), x1 = x + O(o); out = norm'(s), s = y + F(y) */
static int behind_after(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const kvd_gpu_worker *g = &w->w;
    const kvd_dtype type = g->weights.type;
    float *const s = w->between;
    if (add_attention(w, l, n, err) || norm(w, g->x, l->bias_o, l, 0, n, s, KVD_F32, err) ||
        norm(w, s, NULL, l, -1, n, w->y, type, err) || gate_up(w, l, w->y, n, err) ||
        kvd_cuda_check(kvd_gpu_activate(g->config.activation, type, g->wide, l->bias_gate_up, n, w->ffn,
                                        w->d_ffn, g->stream),
                       what, err) ||
        forward_product(w, w->d_ffn, l->down, n, w->ffn, w->d, s, KVD_F32, 1, err) ||
        (l->bias_down && norm(w, s, l->bias_down, l, -1, n, NULL, type, err)))
        return -1;
    return norm_back(w, s, l->norm[1], n, w->dx, w->dy, 0, err) ||
                   feed_forward_back(w, l, n, w->dy, w->dy, 1, err) ||
                   norm_back(w, g->x, l->norm[0], n, w->dy, w->dx, 0, err) || output_back(w, l, n, err)
               ? -1
               : 0;
}

static int behind_attention(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    switch (w->w.config.order) {
    case KVD_ORDER_BEFORE:
        return behind_before(w, l, n, err);
    case KVD_ORDER_PARALLEL:
        return behind_parallel(w, l, n, err);
    default:
        return behind_after(w, l, n, err);
    }
}

/* ---- attention and in front of it ------------------------------------------------------------------------------- */

/* d_o -> gradients with respect to Q and K after RoPE, and V. */
static int attention_back(const kvd_gpu_backward *w, const kvd_batch *b, int layer, kvd_err *err)
{
    const kvd_gpu_worker *g = &w->w;
    const kvd_config *c = &g->config;
    const size_t n = b->offset[b->n_sequences], bytes = kvd_dtype_bytes(g->weights.type);
    const char *const qkv = g->qkv;
    const kvd_gpu_attention_back_in in = {.n_sequences = b->n_sequences,
                                          .longest = kvd_batch_longest(b),
                                          .window = kvd_config_window(c, layer),
                                          .offset = b->offset,
                                          .n_heads = c->n_heads,
                                          .n_kv_heads = c->n_kv_heads,
                                          .d_head = c->d_head,
                                          .type = g->weights.type,
                                          .q = qkv,
                                          .k = qkv + w->width_q * bytes,
                                          .v = qkv + (w->width_q + w->width_k) * bytes,
                                          .ld = w->width,
                                          .d_o = narrow(w, w->d_o, n, w->width_q, err),
                                          .dq = w->d_qkv,
                                          .dk = w->d_qkv + w->width_q,
                                          .dv = w->d_qkv + w->width_q + w->width_k,
                                          .ld_d = w->width,
                                          .stream = g->stream,
                                          .lib = g->lib,
                                          .blas = g->blas};
    return !in.d_o ||
                   kvd_cuda_check(cudaMemsetAsync(w->d_qkv, 0, n * w->width * sizeof *w->d_qkv, g->stream),
                                  what, err) ||
                   kvd_gpu_attend_back(&in, w->scratch, err)
               ? -1
               : 0;
}

/* From there to what the product of Q, K and V gives, and, unless it is the last layer asked for, to dx. */
static int before_attention(const kvd_gpu_backward *w, const kvd_gpu_layer *l, int layer, size_t n, bool last,
                            kvd_err *err)
{
    const kvd_gpu_worker *g = &w->w;
    const kvd_config *c = &g->config;
    const kvd_gpu_qkv_back_args a = {.type = g->weights.type,
                                     .n_heads = c->n_heads,
                                     .n_kv_heads = c->n_kv_heads,
                                     .d_head = c->d_head,
                                     .product = w->product,
                                     .bias = l->bias_qkv,
                                     .gain_q = l->norm_q,
                                     .gain_k = l->norm_k,
                                     .eps = c->norm_eps,
                                     .cosine = g->cosine,
                                     .sine = g->sine,
                                     .rope_row = g->rope_row,
                                     .layout = c->rope_layout,
                                     .d = w->d_qkv,
                                     .d_pre = w->d_pre,
                                     .d_raw = w->d_raw};
    const unsigned stage = stage_qkv(c, layer);
    if ((w->product &&
         forward_product(w, g->normed, l->qkv, n, w->d, w->width, w->product, g->weights.type, 0, err)) ||
        kvd_cuda_check(kvd_gpu_qkv_back(&a, n, stage, g->bad, g->stream), what, err))
        return -1;
    if (last)
        return 0;
    const void *const narrowed = narrow(w, w->d_raw, n, w->width, err);
    if (!narrowed)
        return -1;
    const int after = c->order == KVD_ORDER_AFTER;
    if (back_product(w, narrowed, l->qkv, n, w->d, w->width, after ? w->dx : w->dy, after, err) ||
        (!after &&
         norm_back(w, w->x + (size_t)layer * g->max_tokens * w->d, l->norm[0], n, w->dy, w->dx, 1, err)))
        return -1;
    return check_rows(w, w->dx, n, w->d, stage + 1, err);
}

/* ---- loss and head ------------------------------------------------------------------------------------------------ */

/* What every row predicts, and where its token lies among the probabilities. */
static int send_targets(kvd_gpu_backward *w, const kvd_batch *b, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences];
    uint32_t *const target = w->rows + 3 * w->w.max_tokens;
    for (size_t i = 0; i + 1 < n; i++)
        target[i] = b->id[i + 1];
    for (size_t s = 0; s < b->n_sequences; s++)
        target[b->offset[s + 1] - 1] = UINT32_MAX;
    for (size_t s = 0; w->draws && s < b->n_sequences; s++) {
        kvd_rng r;
        kvd_rng_seed(&r, w->seed, b->first_sequence + s);
        for (size_t i = b->offset[s]; i < b->offset[s + 1]; i++)
            w->numbers[i] = kvd_rng_uniform(&r);
    }
    return kvd_cuda_check(
               cudaMemcpyAsync(w->target, target, n * sizeof *target, cudaMemcpyHostToDevice, w->w.stream),
               "targets", err) ||
                   (w->draws && kvd_cuda_check(cudaMemcpyAsync(w->u, w->numbers, n * sizeof *w->u,
                                                               cudaMemcpyHostToDevice, w->w.stream),
                                               "draws", err))
               ? -1
               : 0;
}

/* Rows first .. of what leaves the last layer. dx holds what the head read of them, and receives their gradient. */
static int piece_back(kvd_gpu_backward *w, size_t first, size_t rows, kvd_err *err)
{
    kvd_gpu_worker *const g = &w->w;
    const kvd_config *c = &g->config;
    float *const dx = w->dx + first * w->d;
    float *const d_hidden = g->weights.norm_final ? w->dy : dx;
    if (kvd_gpu_head(g, dx, rows, w->logits, err) ||
        kvd_cuda_check(kvd_gpu_cross_entropy(g->weights.type, w->logits, rows, w->vocab, w->target + first,
                                             w->draws ? w->u + first : NULL, w->d_logits, w->loss + first,
                                             g->stream),
                       what, err))
        return -1;
    if (g->weights.project_out) {
        const void *narrowed;
        if (back_product(w, w->d_logits, g->weights.head, rows, w->d_embed, w->vocab, w->d_embedded, 0,
                         err) ||
            !(narrowed = narrow(w, w->d_embedded, rows, w->d_embed, err)) ||
            back_product(w, narrowed, g->weights.project_out, rows, w->d, w->d_embed, d_hidden, 0, err))
            return -1;
    } else if (back_product(w, w->d_logits, g->weights.head, rows, w->d, w->vocab, d_hidden, 0, err)) {
        return -1;
    }
    if (!g->weights.norm_final)
        return 0;
    const float *const x = w->x + ((size_t)c->n_layers * g->max_tokens + first) * w->d;
    return norm_back(w, x, g->weights.norm_final, rows, d_hidden, dx, 0, err);
}

static int loss_back(kvd_gpu_backward *w, const kvd_batch *b, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences], max = w->w.max_tokens;
    if (send_targets(w, b, err) || kvd_gpu_hidden_out(&w->w, n, w->dx, err))
        return -1;
    for (size_t first = 0; first < n; first += w->piece)
        if (piece_back(w, first, smaller(w->piece, n - first), err))
            return -1;
    return check_rows(w, w->dx, n, w->d, stage_behind(&w->w.config), err) ||
                   kvd_cuda_check(cudaMemcpyAsync(w->numbers + max, w->loss, n * sizeof *w->loss,
                                                  cudaMemcpyDeviceToHost, w->w.stream),
                                  "losses", err)
               ? -1
               : 0;
}

/* ---- a run ---------------------------------------------------------------------------------------------------------- */

/* One run with what it was asked for. */
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
    kvd_gpu_attention *const door = kvd_gpu_dense_door(g->dense);
    if (kvd_gpu_worker_begin(g, j->w->rows, n, err) || kvd_gpu_embedding(g, n, err))
        return -1;
    for (int l = 0; l < g->config.n_layers; l++)
        if (give_up(j, err) || kvd_gpu_residual_out(g, n, entering(j->w, l), err) ||
            kvd_gpu_layer_run(g, j->b, l, door, 0, err))
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

/* dx behind the layer -> dx before it, by way of Q, K, V and the output of attention, which are computed again. */
static int layer_back(const job *j, int layer, kvd_err *err)
{
    kvd_gpu_backward *const w = j->w;
    kvd_gpu_worker *const g = &w->w;
    const kvd_gpu_layer *l = &g->weights.layer[layer];
    const size_t n = j->b->offset[j->b->n_sequences];
    return kvd_gpu_residual_in(g, entering(w, layer), layer, n, err) ||
                   kvd_gpu_layer_run(g, j->b, layer, kvd_gpu_dense_door(g->dense), 1, err) ||
                   behind_attention(w, l, n, err) || attention_back(w, j->b, layer, err) ||
                   before_attention(w, l, layer, n, layer == j->first_layer, err) || hand_out(j, layer, err)
               ? -1
               : 0;
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
                         const kvd_gpu_gradient_sink *sink, double *loss, size_t *n_predicted, kvd_err *err)
{
    const kvd_config *c = &w->w.config;
    const size_t max = w->w.max_tokens;
    const job j = {w, b, first_layer, sink};
    char where[48];
    kvd_err second;
    if (first_layer < 0 || first_layer >= c->n_layers)
        return kvd_fail(err, "layer %d asked for, the model has %d", first_layer, c->n_layers);
    if (kvd_batch_check(c, b, max, w->w.max_len, w->rows + max, w->rows + 2 * max, err) ||
        kvd_cuda_check(cudaSetDevice(w->w.device), what, err))
        return -1;
    const size_t n = b->offset[b->n_sequences];
    memcpy(w->rows, b->id, n * sizeof *w->rows);
    const int status = queue_work(&j, err);
    if (kvd_gpu_worker_wait(&w->w, w->bad, status ? &second : err) || status)
        return -1;
    if (*w->bad != ~0ULL) {
        stage_name(c, (unsigned)(*w->bad >> 40), where, sizeof where);
        return kvd_batch_not_finite(b, where, (size_t)(*w->bad & ((1ULL << 40) - 1)), err);
    }
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += w->numbers[max + i];
    *loss += sum;
    *n_predicted += n - b->n_sequences;
    return 0;
}
