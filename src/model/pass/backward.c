#include "model/pass/backward.h"

#include <cblas.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "model/pass/attention.h"
#include "model/pass/blocks.h"
#include "model/pass/forward_state.h"
#include "model/pass/layer_back.h"
#include "model/pass/vector.h"

/* number of tokens whose logits are in memory at a time */
enum { PIECE = 256 };

struct kvd_backward {
    const kvd_config *c;
    kvd_forward *forward;
    kvd_dense_attention dense;
    size_t max_tokens, max_len, d, d_embed, vocab, width_q, width_k;
    /* [n_layers + 1][max_tokens][d_model] input of each layer, then the last output */
    float *x;
    /* [max_tokens][d_model] gradient of the residual stream */
    float *dx;
    /* [max_tokens][width_q] gradients of queries after RoPE, of attention outputs, of queries
     * before RoPE */
    float *dq, *d_o, *dq_pre;
    /* [max_tokens][width_k] gradients of keys after RoPE, of values, of keys before RoPE, of keys
     * before their norm */
    float *dk, *dv, *dk_pre, *dk_raw;
    /* [max_tokens][d_model] input of a layer's QKV projections */
    float *in;
    float *minus_sine;
    uint32_t *target;
    float *logits, *d_embedded;
    /* logits after the softcap: [PIECE][vocab]; NULL in models without a softcap on logits */
    float *capped;
    float *work;
    size_t work_size, work_n;
    bool draws;
    uint64_t seed;
    /* per token: random number in [0, 1), used to sample a target token from the model's
     * probabilities */
    double *drawn;
};

static int make_rope(kvd_backward *w, kvd_err *err)
{
    const size_t n = kvd_batch_rope_rows(w->c, w->max_len) * ((size_t)w->c->d_head / 2);
    if (!(w->minus_sine = kvd_floats("the rope table", n, 1, err)))
        return -1;
    for (size_t i = 0; i < n; i++)
        w->minus_sine[i] = -w->forward->sine[i];
    return 0;
}

static int allocate(kvd_backward *w, kvd_err *err)
{
    const size_t n = w->max_tokens, piece = n < PIECE ? n : PIECE;
    float **const of_q[] = {&w->dq, &w->d_o, &w->dq_pre},
                  **const of_k[] = {&w->dk, &w->dv, &w->dk_pre, &w->dk_raw};
    for (size_t i = 0; i < sizeof of_q / sizeof *of_q; i++)
        if (!(*of_q[i] = kvd_floats("queries", n, w->width_q, err)))
            return -1;
    for (size_t i = 0; i < sizeof of_k / sizeof *of_k; i++)
        if (!(*of_k[i] = kvd_floats("keys and values", n, w->width_k, err)))
            return -1;
    if (!(w->x = kvd_floats("the residuals that enter the layers", ((size_t)w->c->n_layers + 1) * n,
                            w->d, err)) ||
        !(w->dx = kvd_floats("activations", n, w->d, err)) ||
        !(w->in = kvd_floats("activations", n, w->d, err)) ||
        !(w->logits = kvd_floats("logits", piece, w->vocab, err)) ||
        (w->c->logit_softcap > 0 && !(w->capped = kvd_floats("logits", piece, w->vocab, err))) ||
        !(w->d_embedded = kvd_floats("the head's input", piece, w->d_embed, err)))
        return -1;
    w->target = malloc(n * sizeof *w->target);
    w->drawn = malloc(n * sizeof *w->drawn);
    return w->target && w->drawn ? 0 : kvd_no_memory(err, "positions", 4 * n * sizeof *w->target);
}

kvd_backward *kvd_backward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                               kvd_err *err)
{
    const kvd_config *config = kvd_checkpoint_config(c);
    if (config->latent) {
        kvd_fail(err, "a %s model has latent attention, whose gradients are not computed",
                 config->family);
        return NULL;
    }
    kvd_backward *w = kvd_new(1, sizeof *w, "the backward pass", err);
    if (!w)
        return NULL;
    w->c = config;
    w->max_tokens = max_tokens;
    w->max_len = max_len;
    w->d = (size_t)config->d_model;
    w->d_embed = (size_t)kvd_config_d_embed(config);
    w->vocab = (size_t)config->vocab_size;
    w->width_q = (size_t)config->n_heads * (size_t)config->d_head;
    w->width_k = (size_t)config->n_kv_heads * (size_t)config->d_head;
    kvd_dense_attention_init(&w->dense);
    if (!(w->forward = kvd_forward_new(c, max_tokens, max_len, err)) || allocate(w, err) ||
        make_rope(w, err)) {
        kvd_backward_free(w);
        return NULL;
    }
    w->forward->pass = "forward ";
    return w;
}

void kvd_backward_free(kvd_backward *w)
{
    if (!w)
        return;
    float *const buffers[] = {w->x,      w->dx,     w->dq,         w->d_o,    w->dk,
                              w->dv,     w->dk_pre, w->dk_raw,     w->in,     w->minus_sine,
                              w->logits, w->work,   w->d_embedded, w->dq_pre, w->capped};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    kvd_forward_free(w->forward);
    kvd_dense_attention_release(&w->dense);
    free(w->target);
    free(w->drawn);
    free(w);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static float *work_of_thread(const kvd_backward *w)
{
    return w->work + kvd_thread_index() * w->work_size;
}

static int reserve_work(kvd_backward *w, const kvd_batch *b, kvd_err *err)
{
    const size_t threads = kvd_thread_count(),
                 rows = w->forward->block * kvd_layer_back_scratch(w->c),
                 attend = KVD_ATTEND_ROWS * kvd_batch_longest(b) *
                          (size_t)(w->c->score_softcap > 0 ? 3 : 2);
    w->work_size = rows > attend ? rows : attend;
    if (w->work && threads <= w->work_n / w->work_size)
        return 0;
    free(w->work);
    w->work = kvd_floats("activations of a block", threads, w->work_size, err);
    w->work_n = w->work ? threads * w->work_size : 0;
    return w->work ? 0 : -1;
}

static float *entering(const kvd_backward *w, int layer)
{
    return w->x + (size_t)layer * w->max_tokens * w->d;
}

static int check_finite(const kvd_config *c, const kvd_batch *b, const char *what, int layer,
                        const float *x, size_t width, kvd_err *err)
{
    char where[48];
    (void)snprintf(where, sizeof where, "%s layer %d", what, layer);
    return kvd_batch_check_finite(c, b, where, x, width, err);
}

static int give_up(const kvd_gradient_sink *sink, kvd_err *err)
{
    return sink->give_up ? sink->give_up(sink->ctx, err) : 0;
}

/* Computes a layer forward or, if `stop`, only its steps up to the end of attention. */
static int run_layer(kvd_backward *w, const kvd_batch *b, int layer, int stop,
                     kvd_layer_weights *weights, kvd_err *err)
{
    kvd_forward *const f = w->forward;
    memcpy(f->x, entering(w, layer), b->offset[b->n_sequences] * w->d * sizeof *f->x);
    kvd_layer_load(kvd_forward_parts(f, layer), f->layer, weights);
    return kvd_forward_layer(f, b, layer, weights, &w->dense.hook, stop, err);
}

static void drop(const kvd_backward *w, int layer)
{
    kvd_layer_drop(kvd_forward_parts(w->forward, layer), true);
    kvd_layer_drop(kvd_forward_parts(w->forward, layer), false);
}

/* Computes all layers forward, and keeps each layer's input for the backward pass. */
static int go_forward(kvd_backward *w, const kvd_batch *b, const kvd_gradient_sink *sink,
                      kvd_err *err)
{
    const size_t bytes = b->offset[b->n_sequences] * w->d * sizeof *w->x;
    memcpy(entering(w, 0), w->forward->x, bytes);
    for (int l = 0; l < w->c->n_layers; l++) {
        kvd_layer_weights weights;
        if (give_up(sink, err) || run_layer(w, b, l, 0, &weights, err))
            return -1;
        memcpy(entering(w, l + 1), w->forward->x, bytes);
        drop(w, l);
    }
    return 0;
}

void kvd_backward_draw(kvd_backward *w, uint64_t seed)
{
    w->draws = true;
    w->seed = seed;
}

static uint32_t token_at(const float *logits, size_t vocab, double u)
{
    double top = -INFINITY, sum = 0, up_to = 0;
    for (size_t j = 0; j < vocab; j++)
        top = fmax(top, (double)logits[j]);
    for (size_t j = 0; j < vocab; j++)
        sum += exp((double)logits[j] - top);
    for (size_t j = 0; j + 1 < vocab; j++) {
        up_to += exp((double)logits[j] - top);
        if (up_to > u * sum)
            return (uint32_t)j;
    }
    return (uint32_t)(vocab - 1);
}

/* Returns the loss -log softmax(logits)[target], and replaces the logits by the loss's gradient. */
KVD_CLONES static double cross_entropy(float *restrict logits, size_t vocab, uint32_t target)
{
    const float of_target = logits[target];
    float top = logits[0];
#pragma omp simd reduction(max : top)
    for (size_t j = 0; j < vocab; j++)
        top = logits[j] > top ? logits[j] : top;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < vocab; j++) {
        logits[j] = kvd_expf(logits[j] - top);
        sum += (double)logits[j];
    }
    const float inverse = (float)(1 / sum);
#pragma omp simd
    for (size_t j = 0; j < vocab; j++)
        logits[j] *= inverse;
    /* The sum contains exp(0), so a sum below 1 is a rounding error. */
    const double loss = log(fmax(sum, 1)) + (double)top - (double)of_target;
    logits[target] = (float)expm1(-loss); /* p(target) - 1 without cancellation */
    return loss;
}

static void through_softcap(const float *value, size_t n, float softcap, float *dx)
{
    for (size_t i = 0; i < n; i++)
        dx[i] *= 1.0F - value[i] / softcap * (value[i] / softcap);
}

/* Computes the gradient of the output head's input from that of the logits [rows][vocab]. */
static void head_back(kvd_backward *w, size_t rows)
{
    const size_t threads = kvd_thread_count(), each = (rows + threads - 1) / threads;
    for (size_t first = 0, some; first < w->vocab; first += some) {
        const float *const head = kvd_forward_head(w->forward, first, &some);
        const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < rows; i += each)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)smaller(each, rows - i),
                        (blasint)w->d_embed, (blasint)some, 1.0F, w->logits + i * w->vocab + first,
                        (blasint)w->vocab, head, (blasint)w->d_embed, first ? 1.0F : 0.0F,
                        w->d_embedded + i * w->d_embed, (blasint)w->d_embed);
        kvd_blas_restore(saved);
    }
    kvd_tensor_drop(&w->forward->head.tensor);
}

/* Adds the losses of `rows` tokens, beginning with token `first`, to *loss. w->dx receives the
 * gradient of the last layer's output. */
static int piece_back(kvd_backward *w, size_t first, size_t rows, double *loss, kvd_err *err)
{
    const float *const x = entering(w, w->c->n_layers) + first * w->d;
    float *const hidden = w->in + first * w->d, *const dx = w->dx + first * w->d;
    const float *const gain = kvd_forward_once(w->forward, KVD_PART_NORM_FINAL, 0),
                       *const project_out = kvd_forward_once(w->forward, KVD_PART_PROJECT_OUT, 0);
    double sum = 0, loss_of[PIECE];
    if (gain)
        kvd_layer_normalise(w->c, x, gain, kvd_forward_once(w->forward, KVD_PART_NORM_FINAL, 1),
                            rows, hidden);
    else
        memcpy(hidden, x, rows * w->d * sizeof *x);
    if (kvd_forward_logits(w->forward, hidden, rows, w->logits, err))
        return -1;
    if (w->capped)
        memcpy(w->capped, w->logits, rows * w->vocab * sizeof *w->capped);
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < rows; i++) {
        float *const row = w->logits + i * w->vocab;
        loss_of[i] = 0;
        if (w->target[first + i] == UINT32_MAX)
            memset(row, 0, w->vocab * sizeof *row);
        else
            loss_of[i] = cross_entropy(row, w->vocab,
                                       w->draws ? token_at(row, w->vocab, w->drawn[first + i])
                                                : w->target[first + i]);
        if (w->capped)
            through_softcap(w->capped + i * w->vocab, w->vocab, (float)w->c->logit_softcap, row);
    }
    /* Adds losses in order, so that the sum does not depend on the number of threads. */
    for (size_t i = 0; i < rows; i++)
        sum += loss_of[i];
    *loss += sum;
    head_back(w, rows);
    float *const d_hidden = gain ? hidden : dx;
    if (project_out)
        kvd_linear_back(w->d_embedded, project_out, rows, w->d, w->d_embed, d_hidden, 0);
    else
        memcpy(d_hidden, w->d_embedded, rows * w->d * sizeof *d_hidden);
    if (gain) {
        memset(dx, 0, rows * w->d * sizeof *dx);
        kvd_layer_normalise_back(w->c, x, gain, rows, d_hidden, dx);
    }
    return 0;
}

static int loss_back(kvd_backward *w, const kvd_batch *b, double *loss, size_t *n_predicted,
                     kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences];
    kvd_batch_targets(b, w->target, w->seed, w->draws ? w->drawn : NULL);
    for (size_t first = 0; first < n; first += PIECE)
        if (piece_back(w, first, smaller(PIECE, n - first), loss, err))
            return -1;
    *n_predicted += n - b->n_sequences;
    return check_finite(w->c, b, "gradient after", w->c->n_layers - 1, w->dx, w->d, err);
}

static void attend_back(kvd_backward *w, const kvd_batch *b, int layer, const float *sinks)
{
    const kvd_forward *const f = w->forward;
    const size_t d = (size_t)w->c->d_head, kv_heads = (size_t)w->c->n_kv_heads,
                 group = (size_t)kvd_config_group(w->c), pieces = b->n_sequences * kv_heads;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < pieces; i++) {
        const size_t s = i / kv_heads, g = i % kv_heads, first = b->offset[s],
                     q = first * w->width_q + g * group * d, k = first * w->width_k + g * d;
        const kvd_attend_back_in in = {.n = b->offset[s + 1] - first,
                                       .window = kvd_config_window(w->c, layer),
                                       .group = group,
                                       .d = d,
                                       .ldq = w->width_q,
                                       .ldk = w->width_k,
                                       .score = kvd_config_scores(w->c),
                                       .sinks = sinks ? sinks + g * group : NULL,
                                       .q = f->q + q,
                                       .k = f->k + k,
                                       .v = f->v + k,
                                       .o = f->o + q,
                                       .d_o = w->d_o + q,
                                       .dq = w->dq + q,
                                       .dk = w->dk + k,
                                       .dv = w->dv + k};
        kvd_attend_back(&in, work_of_thread(w));
    }
}

/* Turns w->dx from the gradient of the layer's output into the gradient of its input. */
static int layer_back(kvd_backward *w, const kvd_batch *b, int layer, bool last, kvd_err *err)
{
    kvd_forward *const f = w->forward;
    const size_t n = b->offset[b->n_sequences], block = f->block,
                 tables =
                     kvd_batch_rope_layer(w->c, w->max_len, layer) * ((size_t)w->c->d_head / 2);
    const float *const x = entering(w, layer);
    kvd_layer_weights weights;
    if (run_layer(w, b, layer, 1, &weights, err))
        return -1;
    const bool routed = kvd_config_routed(w->c, layer);
    if (routed &&
        kvd_experts_behind_back(f->experts, &weights, layer, x, f->o, n, w->dx, w->d_o, err))
        return -1;
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic)
    for (size_t at = 0; at < (routed ? 0 : n); at += block)
        kvd_layer_behind_back(w->c, &weights, x + at * w->d, f->o + at * w->width_q,
                              smaller(block, n - at), work_of_thread(w), w->dx + at * w->d,
                              w->d_o + at * w->width_q);
    attend_back(w, b, layer, weights.w[KVD_PART_SINKS]);
#pragma omp parallel for schedule(dynamic)
    for (size_t at = 0; at < n; at += block) {
        const kvd_layer_back_qkv g = {.cosine = f->cosine ? f->cosine + tables : NULL,
                                      .minus_sine = w->minus_sine + tables,
                                      .rope_row = f->rope_row + at,
                                      .dq = w->dq + at * w->width_q,
                                      .dk = w->dk + at * w->width_k,
                                      .dv = w->dv + at * w->width_k,
                                      .dq_pre = w->dq_pre + at * w->width_q,
                                      .dk_pre = w->dk_pre + at * w->width_k,
                                      .dk_raw = w->dk_raw + at * w->width_k,
                                      .in = w->in + at * w->d};
        kvd_layer_before_back(w->c, &weights, x + at * w->d, smaller(block, n - at),
                              work_of_thread(w), &g, last ? NULL : w->dx + at * w->d);
    }
    kvd_blas_restore(saved);
    drop(w, layer);
    return kvd_status(
        check_finite(w->c, b, "gradient of K of", layer, w->dk_raw, w->width_k, err) ||
        check_finite(w->c, b, "gradient of V of", layer, w->dv, w->width_k, err) ||
        (!last && check_finite(w->c, b, "gradient of", layer, w->dx, w->d, err)));
}

static int hand_out(const kvd_backward *w, const kvd_batch *b, int layer,
                    const kvd_gradient_sink *sink, kvd_err *err)
{
    const kvd_gradients g = {.config = w->c,
                             .layer = layer,
                             .n_sequences = b->n_sequences,
                             .offset = b->offset,
                             .first_sequence = b->first_sequence,
                             .n_tokens = b->offset[b->n_sequences],
                             .k = w->dk,
                             .k_pre = w->dk_pre,
                             .k_raw = w->dk_raw,
                             .v = w->dv,
                             .q = w->forward->q,
                             .o = w->forward->o,
                             .dq = w->dq,
                             .d_o = w->d_o,
                             .in = w->in};
    return sink->take(sink->ctx, &g, err);
}

int kvd_backward_run(kvd_backward *w, const kvd_batch *b, int first_layer,
                     const kvd_gradient_sink *sink, double *loss, size_t *n_predicted, kvd_err *err)
{
    if (kvd_layer_check(w->c, first_layer, err) ||
        kvd_forward_begin(w->forward, b, &w->dense.hook, err) || reserve_work(w, b, err) ||
        go_forward(w, b, sink, err) || loss_back(w, b, loss, n_predicted, err))
        return -1;
    for (int l = w->c->n_layers - 1; l >= first_layer; l--)
        if (give_up(sink, err) || layer_back(w, b, l, l == first_layer, err) ||
            hand_out(w, b, l, sink, err))
            return -1;
    return 0;
}
