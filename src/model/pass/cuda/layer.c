#include "model/pass/cuda/layer.h"

#include <stdio.h>

/* Returns the number of the check that looks for NaN and infinity in a layer's Q, K and V. All
 * checks of a forward pass are numbered in the order of execution. */
static unsigned stage_qkv(int layer)
{
    return 1 + 2 * (unsigned)layer;
}

static unsigned stage_end(int layer)
{
    return 2 + 2 * (unsigned)layer;
}

unsigned kvd_gpu_stage_final(const kvd_config *c)
{
    return stage_qkv(c->n_layers);
}

unsigned kvd_gpu_stage_before(int layer)
{
    return layer ? stage_end(layer - 1) : 0;
}

void kvd_gpu_stage_name(const kvd_config *c, unsigned stage, char *to, size_t size)
{
    if (stage == 0 || stage == kvd_gpu_stage_final(c))
        (void)snprintf(to, size, "%s", stage ? "final norm" : "embedding");
    else
        (void)snprintf(to, size, "layer %u", (stage - 1) / 2);
}

int kvd_gpu_launched(const kvd_gpu_worker *w, cudaError_t e, kvd_gpu_phase p, kvd_err *err)
{
    if (e)
        return kvd_cuda_check(e, kvd_gpu_phase_name(p), err);
    if (w->queued)
        w->queued(w->queued_ctx, p, w->stream);
    return 0;
}

int kvd_gpu_product(const kvd_gpu_worker *w, const void *x, const void *matrix, kvd_dtype type,
                    size_t n, size_t in, size_t out, void *y, kvd_dtype y_type, int add,
                    kvd_gpu_phase p, kvd_err *err)
{
    const cudaDataType from = type == KVD_F32 ? CUDA_R_32F : CUDA_R_16BF;
    const float one = 1, beta = add ? 1 : 0;
    const cublasStatus_t s = w->lib->cublasGemmEx(
        w->blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)out, (int)n, (int)in, &one, matrix, from, (int)in,
        x, from, (int)in, &beta, y, y_type == KVD_F32 ? CUDA_R_32F : CUDA_R_16BF, (int)out,
        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return kvd_cublas_check(s, kvd_gpu_phase_name(p), err)
               ? -1
               : kvd_gpu_launched(w, cudaSuccess, p, err);
}

/* tokens of the whole batch (half is -1), or of its first or second half (half is 0 or 1) */
typedef struct {
    size_t first, n;
    int half;
} rows;

static rows all_rows(size_t n)
{
    return (rows){0, n, -1};
}

/* Splits a large batch in halves, so that one half is summed over GPUs while the other is computed.
 * Returns 1 if the batch stays whole, 2 if it is split. */
static int halves(const kvd_gpu_worker *w, size_t n, rows to[2])
{
    enum { LEAST = 2048, TILE = 256 };
    enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    to[0] = all_rows(n);
    if (!w->sum || n < LEAST || w->config.order != KVD_ORDER_BEFORE ||
        cudaStreamIsCapturing(w->stream, &capturing) || capturing)
        return 1;
    const size_t first = (n / 2 + TILE - 1) / TILE * TILE;
    to[0] = (rows){0, first, 0};
    to[1] = (rows){first, n - first, 1};
    return 2;
}

/* Makes w->stream wait for the sums over GPUs of one half of the batch, or of both halves if `half`
 * is -1. */
static int join(kvd_gpu_worker *w, int half, kvd_err *err)
{
    const unsigned which = w->under_way & (half < 0 ? 3U : 1U << half);
    for (int i = 0; i < 2; i++)
        if ((which >> i & 1) && (kvd_cuda_check(cudaStreamWaitEvent(w->stream, w->summed[i], 0),
                                                "sum of a half", err) ||
                                 kvd_gpu_launched(w, cudaSuccess, KVD_GPU_SUM, err)))
            return -1;
    w->under_way &= ~which;
    return 0;
}

int kvd_gpu_join_sums(kvd_gpu_worker *w, kvd_err *err)
{
    return join(w, -1, err);
}

static int sum_beside(kvd_gpu_worker *w, rows r, kvd_err *err)
{
    const size_t d = (size_t)w->config.d_model;
    if (kvd_cuda_check(cudaEventRecord(w->written[r.half], w->stream), "sum of a half", err) ||
        kvd_cuda_check(cudaStreamWaitEvent(w->sums, w->written[r.half], 0), "sum of a half", err) ||
        kvd_gpu_sum_add(w->sum, w->weights.share.index, w->x + r.first * d, r.n * d, w->sums,
                        err) ||
        kvd_cuda_check(cudaEventRecord(w->summed[r.half], w->sums), "sum of a half", err))
        return -1;
    w->under_way |= 1U << r.half;
    return 0;
}

int kvd_gpu_residual_sum(const kvd_gpu_worker *w, size_t n, kvd_err *err)
{
    if (!w->sum)
        return 0;
    return kvd_gpu_sum_add(w->sum, w->weights.share.index, w->x, n * (size_t)w->config.d_model,
                           w->stream, err)
               ? -1
               : kvd_gpu_launched(w, cudaSuccess, KVD_GPU_SUM, err);
}

static int residual_sum(kvd_gpu_worker *w, rows r, kvd_err *err)
{
    return r.half < 0 ? kvd_gpu_residual_sum(w, r.n, err) : sum_beside(w, r, err);
}

static void *row_at(const void *array, size_t first, size_t width, kvd_dtype type)
{
    return (char *)array + first * width * kvd_dtype_bytes(type);
}

/* Computes `from` [n][in] W^T for the tokens in r. Writes the product to `to` [n][out] or, if
 * `add`, adds it to `to`. */
static int product(const kvd_gpu_worker *w, const void *from, const void *matrix, rows r, size_t in,
                   size_t out, void *to, kvd_dtype to_type, int add, kvd_gpu_phase p, kvd_err *err)
{
    const kvd_dtype type = w->weights.type;
    return kvd_gpu_product(w, row_at(from, r.first, in, type), matrix, type, r.n, in, out,
                           row_at(to, r.first, out, to_type), to_type, add, p, err);
}

/* Multiplies `from` by this GPU's part of a weight matrix. GPU 0 adds the product to the residual
 * stream w->x; other GPUs store only the product in w->x. The sum of w->x over all GPUs is the new
 * residual stream. */
static int into_residual(const kvd_gpu_worker *w, const void *from, const void *matrix, rows r,
                         size_t in, int earlier, kvd_gpu_phase p, kvd_err *err)
{
    return product(w, from, matrix, r, in, (size_t)w->config.d_model, w->x, KVD_F32,
                   earlier || w->weights.share.index == 0, p, err);
}

/* Adds w->pending (a bias, a block's output, or NULL) to the residual stream. Then writes the
 * normalised residual stream to y. */
static int norm(kvd_gpu_worker *w, const float *gain, const float *bias, rows r, void *y,
                kvd_dtype type, kvd_err *err)
{
    const kvd_config *c = &w->config;
    if (join(w, r.half, err))
        return -1;
    const cudaError_t e = kvd_gpu_norm_rows(
        c->norm, type, w->x, w->pending, w->branch ? (size_t)c->d_model : 0, gain, bias,
        c->norm_eps, r.first, r.n, (size_t)c->d_model, y, w->stage, w->bad, w->stream);
    /* The first half of a batch keeps w->pending, because the second half needs it too. */
    if (r.half != 0)
        w->pending = NULL;
    return kvd_gpu_launched(w, e, KVD_GPU_NORM, err);
}

static int layer_norm(kvd_gpu_worker *w, const kvd_gpu_layer *l, int which, rows r, void *y,
                      kvd_dtype type, kvd_err *err)
{
    return norm(w, l->norm[which], l->norm_bias[which], r, y, type, err);
}

/* Projects the embeddings to d_model, which gives the residual stream. */
static int project_in(kvd_gpu_worker *w, size_t n, kvd_err *err)
{
    const size_t d = (size_t)w->config.d_model, narrow = (size_t)kvd_config_d_embed(&w->config);
    const kvd_dtype type = w->weights.type;
    cudaError_t e = kvd_gpu_embed(type, w->weights.embedding, (float)w->config.embed_scale, w->id,
                                  NULL, NULL, n, narrow, w->wide, w->stream);
    if (!e)
        e = kvd_gpu_convert(KVD_F32, w->wide, type, w->narrow, n * narrow, w->stream);
    /* Copies the learned vector of each token's position; the vector of position t is row t + 2 of
     * the table. */
    if (!e && w->weights.positions)
        e = kvd_gpu_embed(KVD_F32, w->weights.positions + 2 * d, 0, w->position, NULL, NULL, n, d,
                          w->x, w->stream);
    if (e)
        return kvd_cuda_check(e, kvd_gpu_phase_name(KVD_GPU_EMBED), err);
    return product(w, w->narrow, w->weights.project_in, all_rows(n), narrow, d, w->x, KVD_F32,
                   w->weights.positions != NULL, KVD_GPU_EMBED, err);
}

int kvd_gpu_embedding(kvd_gpu_worker *w, size_t n, kvd_err *err)
{
    w->pending = NULL;
    w->stage = 0;
    if (w->weights.project_in)
        return project_in(w, n, err);
    return kvd_gpu_launched(w,
                            kvd_gpu_embed(w->weights.type, w->weights.embedding,
                                          (float)w->config.embed_scale, w->id, w->weights.positions,
                                          w->position, n, (size_t)w->config.d_model, w->x,
                                          w->stream),
                            KVD_GPU_EMBED, err);
}

int kvd_gpu_residual_in(kvd_gpu_worker *w, const float *residual, int layer, size_t n, kvd_err *err)
{
    const size_t size = n * (size_t)w->config.d_model;
    const int index = w->weights.share.index;
    w->pending = NULL;
    w->stage = stage_qkv(layer);
    if (index == 0 &&
        kvd_queue_copy(w->x, residual, size * sizeof *w->x, w->stream, "residual stream", err))
        return -1;
    return w->sum ? kvd_gpu_sum_spread(w->sum, index, w->x, size, w->stream, err) : 0;
}

static int rotates(const kvd_gpu_worker *w)
{
    return w->config.positions == KVD_POSITIONS_ROPE;
}

/* Writes the input of attention. If the feed-forward block reads the same residual stream through a
 * norm of its own, also writes the input of the feed-forward block. */
static int before_attention(kvd_gpu_worker *w, const kvd_gpu_layer *l, rows r, kvd_err *err)
{
    const kvd_dtype type = w->weights.type;
    if (!kvd_config_norms_inputs(&w->config))
        return norm(w, NULL, NULL, r, w->normed, type, err);
    if (layer_norm(w, l, 0, r, w->normed, type, err))
        return -1;
    return w->second ? layer_norm(w, l, 1, r, w->second, type, err) : 0;
}

int kvd_gpu_finish_qkv(const kvd_gpu_worker *w, int layer, size_t n, const kvd_gpu_attention *hook,
                       unsigned long long *began, kvd_err *err)
{
    const kvd_gpu_layer *const l = &w->weights.layer[layer];
    const kvd_gpu_share *const s = &w->weights.share;
    const size_t tables =
        kvd_batch_rope_layer(&w->config, w->max_len, layer) * ((size_t)w->config.d_head / 2);
    const kvd_gpu_qkv a = {.type = w->weights.type,
                           .n_heads = s->n_heads,
                           .n_kv_heads = s->n_kv_heads,
                           .d_head = w->config.d_head,
                           .bias = l->bias_qkv,
                           .gain_q = l->norm_q,
                           .gain_k = l->norm_k,
                           .eps = w->config.norm_eps,
                           .factor = w->factor,
                           .cosine = rotates(w) ? w->cosine + tables : NULL,
                           .sine = rotates(w) ? w->sine + tables : NULL,
                           .rope_row = w->rope_row,
                           .layout = w->config.rope_layout,
                           .rope_dims = w->config.rope_dims,
                           .qkv = w->qkv,
                           .pre = hook->wants_pre && rotates(w) ? w->wide : NULL,
                           .began = began};
    if (hook->wants_raw)
        return 0;
    return kvd_gpu_launched(w, kvd_gpu_qkv_finish(&a, n, stage_qkv(layer), w->bad, w->stream),
                            KVD_GPU_ROPE, err);
}

static int queries_keys_values(kvd_gpu_worker *w, const kvd_gpu_layer *l, int layer, size_t n,
                               const kvd_gpu_attention *hook, kvd_err *err)
{
    rows r[2];
    const int parts = halves(w, n, r);
    for (int i = 0; i < parts; i++)
        if (before_attention(w, l, r[i], err) ||
            (w->config.latent
                 ? kvd_gpu_latent_project(w, l, n, stage_qkv(layer), err)
                 : product(w, w->normed, l->qkv, r[i], (size_t)w->config.d_model, (size_t)l->n_qkv,
                           w->qkv, w->weights.type, 0, KVD_GPU_QKV, err)))
            return -1;
    return kvd_gpu_finish_qkv(w, layer, n, hook, NULL, err);
}

static int attention(kvd_gpu_worker *w, const kvd_batch *b, int layer, kvd_gpu_attention *hook,
                     kvd_err *err)
{
    const kvd_gpu_share *s = &w->weights.share;
    const size_t bytes = kvd_dtype_bytes(w->weights.type), d = (size_t)w->config.d_head;
    const size_t q = (size_t)s->n_heads * d, k = (size_t)s->n_kv_heads * d;
    const char *qkv = w->qkv, *pre = rotates(w) ? w->wide : w->qkv;
    const kvd_gpu_attention_in in = {.config = &w->config,
                                     .share = s,
                                     .layer = layer,
                                     .n_sequences = b->n_sequences,
                                     .offset = b->offset,
                                     .first_sequence = b->first_sequence,
                                     .n_tokens = b->offset[b->n_sequences],
                                     .longest = kvd_batch_longest(b),
                                     .start = b->start,
                                     .whole = b->whole,
                                     .type = w->weights.type,
                                     .q = qkv,
                                     .k = qkv + q * bytes,
                                     .v = qkv + (q + k) * bytes,
                                     .ld = (size_t)w->weights.layer[layer].n_qkv,
                                     .q_pre = hook->wants_pre ? pre : NULL,
                                     .k_pre = hook->wants_pre ? pre + q * bytes : NULL,
                                     .ld_pre = rotates(w) ? q + k : q + 2 * k,
                                     .input = hook->wants_input ? w->normed : NULL,
                                     .window = kvd_config_window(&w->config, layer),
                                     .sinks = w->weights.layer[layer].sinks,
                                     .stream = w->stream,
                                     .lib = w->lib,
                                     .blas = w->blas};
    return hook->run(hook, &in, w->narrow, err)
               ? -1
               : kvd_gpu_launched(w, cudaSuccess, KVD_GPU_ATTENTION, err);
}

static int check_output(const kvd_gpu_worker *w, size_t n, kvd_err *err)
{
    const size_t width = (size_t)w->weights.share.n_heads * (size_t)w->config.d_head;
    const int copy = w->weights.type != KVD_F32;
    cudaError_t e = cudaSuccess;
    if (copy)
        e = kvd_gpu_convert(w->weights.type, w->narrow, KVD_F32, w->wide, n * width, w->stream);
    if (!e)
        e = kvd_gpu_check(copy ? w->wide : w->narrow, n, width, w->stage, w->bad, w->stream);
    return kvd_cuda_check(e, kvd_gpu_phase_name(KVD_GPU_ATTENTION), err);
}

static int gate_and_up(kvd_gpu_worker *w, const kvd_gpu_layer *l, const void *in, rows r,
                       kvd_err *err)
{
    const kvd_config *c = &w->config;
    const size_t ffn = (size_t)w->weights.share.n_ffn, width = kvd_config_gated(c) ? 2 * ffn : ffn;
    const kvd_dtype type = w->weights.type;
    return kvd_status(
        product(w, in, l->gate_up, r, (size_t)c->d_model, width, w->wide, type, 0, KVD_GPU_GATE_UP,
                err) ||
        kvd_gpu_launched(w,
                         kvd_gpu_activate(c->activation, type,
                                          row_at(w->wide, r.first, width, type), l->bias_gate_up,
                                          r.n, ffn, row_at(w->narrow, r.first, ffn, type),
                                          w->stream),
                         KVD_GPU_ACTIVATION, err));
}

/* Adds the feed-forward block's output, without bias, to the residual stream, and queues the sum
 * over GPUs. */
static int feed_forward(kvd_gpu_worker *w, const kvd_gpu_layer *l, const void *in, rows r,
                        int earlier, kvd_err *err)
{
    return kvd_status(gate_and_up(w, l, in, r, err) ||
                      into_residual(w, w->narrow, l->down, r, (size_t)w->weights.share.n_ffn,
                                    earlier, KVD_GPU_DOWN, err) ||
                      residual_sum(w, r, err));
}

static int add_attention(const kvd_gpu_worker *w, const kvd_gpu_layer *l, rows r, kvd_err *err)
{
    const bool latent = w->config.latent > 0;
    if (latent && kvd_gpu_latent_values(w, l, r.n, err))
        return -1;
    return into_residual(w, latent ? w->wide : w->narrow, l->o, r, (size_t)l->n_o, 0, KVD_GPU_O,
                         err);
}

/* For layers y = x + W_O o + ffn(norm(x)): computes everything that follows the attention output
 * o. */
static int behind_parallel(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const rows r = all_rows(n);
    if (into_residual(w, w->narrow, l->o, r, (size_t)l->n_o, 0, KVD_GPU_O, err) ||
        feed_forward(w, l, w->second ? w->second : w->normed, r, 1, err))
        return -1;
    if (l->bias_o) {
        w->pending = l->bias_o;
        return norm(w, NULL, NULL, r, NULL, w->weights.type, err);
    }
    return 0;
}

/* For layers y = x1 + ffn(norm(x1)), x1 = x + W_O o: computes everything that follows the attention
 * output o. May process the batch in two halves. */
static int behind_before(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    rows r[2];
    const int parts = halves(w, n, r);
    for (int i = 0; i < parts; i++)
        if (add_attention(w, l, r[i], err) || residual_sum(w, r[i], err))
            return -1;
    w->pending = l->bias_o;
    for (int i = 0; i < parts; i++)
        if (layer_norm(w, l, 1, r[i], w->normed, w->weights.type, err) ||
            feed_forward(w, l, w->normed, r[i], 0, err))
            return -1;
    return 0;
}

static int behind_after(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const kvd_dtype type = w->weights.type;
    const rows r = all_rows(n);
    if (into_residual(w, w->narrow, l->o, r, (size_t)l->n_o, 0, KVD_GPU_O, err) ||
        residual_sum(w, r, err))
        return -1;
    w->pending = l->bias_o;
    if (layer_norm(w, l, 0, r, w->x, KVD_F32, err) ||
        norm(w, NULL, NULL, r, w->normed, type, err) || feed_forward(w, l, w->normed, r, 0, err))
        return -1;
    w->pending = l->bias_down;
    return layer_norm(w, l, 1, r, w->x, KVD_F32, err);
}

/* Ends a block whose output is normalised. Multiplies w->narrow by `matrix`, adds `bias` and writes
 * the normalised result to w->branch. A later call of norm() adds w->branch to the residual
 * stream. */
static int end_branch(kvd_gpu_worker *w, const kvd_gpu_layer *l, int which, size_t n,
                      const void *matrix, size_t in, const float *bias, kvd_gpu_phase p,
                      kvd_err *err)
{
    const kvd_config *c = &w->config;
    const size_t d = (size_t)c->d_model;
    if (product(w, w->narrow, matrix, all_rows(n), in, d, w->branch, KVD_F32, 0, p, err))
        return -1;
    if (w->sum &&
        (kvd_gpu_sum_add(w->sum, w->weights.share.index, w->branch, n * d, w->stream, err) ||
         kvd_gpu_launched(w, cudaSuccess, KVD_GPU_SUM, err)))
        return -1;
    w->pending = w->branch;
    return kvd_gpu_launched(w,
                            kvd_gpu_norm(c->norm, KVD_F32, w->branch, bias, l->branch[which],
                                         l->branch_bias[which], c->norm_eps, n, d, w->branch,
                                         w->stage, w->bad, w->stream),
                            KVD_GPU_NORM, err);
}

static int behind_branches(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const rows r = all_rows(n);
    const int around = w->config.order == KVD_ORDER_AROUND;
    return end_branch(w, l, 0, n, l->o, (size_t)l->n_o, l->bias_o, KVD_GPU_O, err) ||
                   norm(w, around ? l->norm[1] : NULL, around ? l->norm_bias[1] : NULL, r,
                        w->normed, w->weights.type, err) ||
                   gate_and_up(w, l, w->normed, r, err) ||
                   end_branch(w, l, 1, n, l->down, (size_t)w->weights.share.n_ffn, l->bias_down,
                              KVD_GPU_DOWN, err)
               ? -1
               : 0;
}

static int behind_experts(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const rows r = all_rows(n);
    if (add_attention(w, l, r, err) || residual_sum(w, r, err))
        return -1;
    w->pending = l->bias_o;
    return kvd_status((!kvd_gpu_experts_norm(w, l, n) &&
                       layer_norm(w, l, 1, r, w->experts.normed, KVD_F32, err)) ||
                      kvd_gpu_experts_add(w, l, n, err) || residual_sum(w, r, err));
}

static int behind_attention(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    if (l->expert)
        return behind_experts(w, l, n, err);
    if (kvd_config_norms_branches(&w->config))
        return behind_branches(w, l, n, err);
    if (w->config.order == KVD_ORDER_AFTER)
        return behind_after(w, l, n, err);
    if (w->config.order == KVD_ORDER_PARALLEL ? behind_parallel(w, l, n, err)
                                              : behind_before(w, l, n, err))
        return -1;
    w->pending = l->bias_down;
    return 0;
}

int kvd_gpu_layer_run(kvd_gpu_worker *w, const kvd_batch *b, int layer, kvd_gpu_attention *hook,
                      int stop, kvd_err *err)
{
    const kvd_gpu_layer *l = &w->weights.layer[layer];
    const size_t n = b->offset[b->n_sequences];
    if (queries_keys_values(w, l, layer, n, hook, err) || attention(w, b, layer, hook, err))
        return -1;
    w->stage = stage_end(layer);
    if (stop)
        return check_output(w, n, err);
    if (behind_attention(w, l, n, err))
        return -1;
    if (layer < w->config.n_layers - 1)
        return 0;
    /* In models that normalise each block's output, adds the last block's output to the residual
     * stream. */
    return kvd_status((w->branch && norm(w, NULL, NULL, all_rows(n), NULL, w->weights.type, err)) ||
                      kvd_gpu_join_sums(w, err));
}

int kvd_gpu_residual_out(kvd_gpu_worker *w, size_t n, float *residual, kvd_err *err)
{
    return norm(w, NULL, NULL, all_rows(n), residual, KVD_F32, err);
}

int kvd_gpu_hidden_out(kvd_gpu_worker *w, size_t n, float *hidden, kvd_err *err)
{
    if (norm(w, w->weights.norm_final, w->weights.norm_final_bias, all_rows(n), hidden, KVD_F32,
             err))
        return -1;
    return kvd_gpu_launched(w,
                            kvd_gpu_check(hidden, n, (size_t)w->config.d_model,
                                          kvd_gpu_stage_final(&w->config), w->bad, w->stream),
                            KVD_GPU_FINAL, err);
}

int kvd_gpu_head(kvd_gpu_worker *w, const float *hidden, size_t n, float *logits, kvd_err *err)
{
    const kvd_dtype type = w->weights.type;
    if (type == KVD_F32)
        return kvd_gpu_head_of(w, hidden, n, logits, err);
    if (kvd_cuda_check(kvd_gpu_convert(KVD_F32, hidden, type, w->normed,
                                       n * (size_t)w->config.d_model, w->stream),
                       "head", err))
        return -1;
    return kvd_gpu_head_of(w, w->normed, n, logits, err);
}

int kvd_gpu_head_of(kvd_gpu_worker *w, const void *in, size_t n, float *logits, kvd_err *err)
{
    const size_t d = (size_t)w->config.d_model, width = (size_t)kvd_config_d_embed(&w->config);
    const kvd_dtype type = w->weights.type;
    if (w->weights.project_out) {
        if (product(w, in, w->weights.project_out, all_rows(n), d, width, w->narrow, type, 0,
                    KVD_GPU_FINAL, err))
            return -1;
        in = w->narrow;
    }
    const size_t vocab = (size_t)w->config.vocab_size;
    if (product(w, in, w->weights.head, all_rows(n), width, vocab, logits, KVD_F32, 0,
                KVD_GPU_FINAL, err))
        return -1;
    return w->config.logit_softcap > 0
               ? kvd_gpu_launched(
                     w,
                     kvd_gpu_softcap(logits, n * vocab, (float)w->config.logit_softcap, w->stream),
                     KVD_GPU_FINAL, err)
               : 0;
}
