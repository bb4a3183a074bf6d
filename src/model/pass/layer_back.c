#include "model/pass/layer_back.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "model/pass/attention.h"
#include "model/pass/blocks.h"
#include "model/pass/vector.h"

/* Adds the gradient of an RMS norm's input x: dx += s (g dy - x s^2 mean(g dy x)) with s = 1 /
 * rms(x). */
KVD_CLONES static void rms_row(const float *restrict x, const float *restrict gain, double eps,
                               size_t d, const float *restrict dy, float *restrict dx)
{
    double square = 0, along = 0;
#pragma omp simd reduction(+ : square, along)
    for (size_t j = 0; j < d; j++) {
        square += (double)x[j] * (double)x[j];
        along += (double)gain[j] * (double)dy[j] * (double)x[j];
    }
    const double inverse = 1 / (square / (double)d + eps);
    const float s = (float)sqrt(inverse), back = (float)(along / (double)d * inverse);
#pragma omp simd
    for (size_t j = 0; j < d; j++)
        dx[j] += s * (gain[j] * dy[j] - x[j] * back);
}

void kvd_rms_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                       const float *dy, float *dx)
{
    for (size_t i = 0; i < n; i++)
        rms_row(x + i * d, gain, eps, d, dy + i * d, dx + i * d);
}

/* Adds the gradient of a layer norm's input x: dx += s (g dy - mean(g dy) - z mean(g dy z)) with s
 * = 1 / std(x), z = (x - mean(x)) s. */
KVD_CLONES static void layer_row(const float *restrict x, const float *restrict gain, double eps,
                                 size_t d, const float *restrict dy, float *restrict dx)
{
    double sum = 0, square = 0, mean_dy = 0, along = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < d; j++)
        sum += (double)x[j];
    const double mean = sum / (double)d;
#pragma omp simd reduction(+ : square, mean_dy, along)
    for (size_t j = 0; j < d; j++) {
        const double away = (double)x[j] - mean, g = (double)gain[j] * (double)dy[j];
        square += away * away;
        mean_dy += g;
        along += g * away;
    }
    const double inverse = 1 / (square / (double)d + eps);
    const float s = (float)sqrt(inverse), middle = (float)mean,
                level = (float)(mean_dy / (double)d), back = (float)(along / (double)d * inverse);
#pragma omp simd
    for (size_t j = 0; j < d; j++)
        dx[j] += s * (gain[j] * dy[j] - level - (x[j] - middle) * back);
}

void kvd_layer_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                         const float *dy, float *dx)
{
    for (size_t i = 0; i < n; i++)
        layer_row(x + i * d, gain, eps, d, dy + i * d, dx + i * d);
}

void kvd_linear_back(const float *dy, const float *w, size_t n, size_t in, size_t out, float *dx,
                     int add)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)in, (blasint)out,
                1.0F, dy, (blasint)out, w, (blasint)in, add ? 1.0F : 0.0F, dx, (blasint)in);
}

KVD_CLONES static void swiglu_back(float *restrict gate, const float *restrict up, size_t n,
                                   float *restrict dy)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float s = 1.0F / (1.0F + kvd_expf(-gate[i])), silu = gate[i] * s;
        gate[i] = dy[i] * up[i] * (s + silu * (1.0F - s));
        dy[i] *= silu;
    }
}

/* Backward pass of kvd_swiglu_clamped. The gradient is 0 where the forward pass has clamped gate or
 * up. */
KVD_CLONES static void swiglu_clamped_back(float *restrict gate, const float *restrict up, size_t n,
                                           float alpha, float limit, float *restrict dy)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float g = gate[i] > limit ? limit : gate[i];
        float u = up[i] > limit ? limit : up[i];
        u = u < -limit ? -limit : u;
        const float s = 1.0F / (1.0F + kvd_expf(-alpha * g));
        gate[i] = gate[i] > limit ? 0.0F : dy[i] * (1.0F + u) * s * (1.0F + alpha * g * (1.0F - s));
        dy[i] *= up[i] > limit || up[i] < -limit ? 0.0F : g * s;
    }
}

void kvd_swiglu_clamped_back(float *gate, const float *up, size_t n, float alpha, float limit,
                             float *dy)
{
    swiglu_clamped_back(gate, up, n, alpha, limit, dy);
}

/* Backward pass of GELU(gate) * up (tanh form): gate and dy become the gradients of gate and up. */
KVD_CLONES static void geglu_tanh_back(float *restrict gate, const float *restrict up, size_t n,
                                       float *restrict dy)
{
    const float twice = 1.59576912F, a = 0.044715F;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float x = gate[i], s = 1.0F / (1.0F + kvd_expf(-twice * (x + a * x * x * x)));
        gate[i] = dy[i] * up[i] * (s + x * s * (1.0F - s) * twice * (1.0F + 3.0F * a * x * x));
        dy[i] *= x * s;
    }
}

/* (x Phi(x))' = Phi(x) + x phi(x), for the normal distribution Phi and its density phi. */
static void gelu_back(const float *x, size_t n, float *dy)
{
    for (size_t i = 0; i < n; i++)
        dy[i] *= 0.5F * (1.0F + erff(x[i] * 0.70710678F)) +
                 x[i] * 0.39894228F * expf(-0.5F * x[i] * x[i]);
}

/* Multiplies dy by the derivative of GELU (tanh form) at x. */
KVD_CLONES static void gelu_tanh_back(const float *restrict x, size_t n, float *restrict dy)
{
    const float twice = 1.59576912F, a = 0.044715F;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float s = 1.0F / (1.0F + kvd_expf(-twice * (x[i] + a * x[i] * x[i] * x[i])));
        dy[i] *= s + x[i] * s * (1.0F - s) * twice * (1.0F + 3.0F * a * x[i] * x[i]);
    }
}

static void relu_back(float *x, size_t n, bool squared, float *dy)
{
    for (size_t i = 0; i < n; i++)
        dy[i] *= !(x[i] > 0) ? 0 : squared ? 2 * x[i] : 1;
}

void kvd_activate_back(kvd_activation a, float *x, const float *up, size_t n, float *dy)
{
    switch (a) {
    case KVD_SWIGLU:
        swiglu_back(x, up, n, dy);
        break;
    case KVD_GEGLU_TANH:
        geglu_tanh_back(x, up, n, dy);
        break;
    case KVD_GELU:
        gelu_back(x, n, dy);
        break;
    case KVD_GELU_TANH:
        gelu_tanh_back(x, n, dy);
        break;
    case KVD_RELU:
    case KVD_RELU2:
        relu_back(x, n, a == KVD_RELU2, dy);
    }
}

/* Multiplies the gradients dscore by 1 - (s / softcap)^2, for scores s after the softcap. `product`
 * has the products q . k. */
static void softcap_row(const float *product, size_t keys, kvd_scores score, float *dscore)
{
    for (size_t t = 0; t < keys; t++) {
        const float y = tanhf(product[t] * score.scale / score.softcap);
        dscore[t] *= 1.0F - y * y;
    }
}

/* Backward pass of the softmax for one query. o, d_o: attention output and its gradient.
 *
 * - dprob: on entry, gradients of the probabilities; on return, gradients of the products q . k (if
 *   there is no softcap) */
KVD_CLONES static void scores_row(const float *restrict prob, size_t keys, const float *o,
                                  const float *d_o, size_t d, float scale, float *restrict dprob)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < d; j++)
        sum += (double)o[j] * (double)d_o[j];
    const float mean = (float)sum;
#pragma omp simd
    for (size_t t = 0; t < keys; t++)
        dprob[t] = prob[t] * (dprob[t] - mean) * scale;
}

/* Computes attention backward for one query head and `rows` queries. Adds to dk and dv. */
static void block_back(const kvd_attend_back_in *in, size_t head, size_t first, size_t rows,
                       float *scratch)
{
    const size_t from = in->window && first + 1 > in->window ? first + 1 - in->window : 0,
                 keys = first + rows - from, at = first * in->ldq + head * in->d;
    const blasint m = (blasint)rows, t = (blasint)keys, d = (blasint)in->d, ldq = (blasint)in->ldq,
                  ldk = (blasint)in->ldk;
    const float *const q = in->q + at, *const d_o = in->d_o + at, *const k = in->k + from * in->ldk,
                       *const v = in->v + from * in->ldk;
    kvd_scores score = in->score;
    score.sink = in->sinks ? in->sinks + head : NULL;
    float *const prob = scratch, *const dprob = prob + rows * keys,
                 *const product = dprob + rows * keys;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, t, d, 1.0F, q, ldq, k, ldk, 0.0F, prob,
                t);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, t, d, 1.0F, d_o, ldq, v, ldk, 0.0F,
                dprob, t);
    if (in->score.softcap > 0)
        memcpy(product, prob, rows * keys * sizeof *prob);
    for (size_t i = 0; i < rows; i++) {
        const size_t end = first + i + 1,
                     start = in->window && end > in->window ? end - in->window : 0;
        kvd_softmax_row(prob + i * keys, start > from ? start - from : 0, end - from, keys, score);
        scores_row(prob + i * keys, keys, in->o + at + i * in->ldq, d_o + i * in->ldq, in->d,
                   in->score.scale, dprob + i * keys);
        if (in->score.softcap > 0)
            softcap_row(product + i * keys, keys, in->score, dprob + i * keys);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, d, t, 1.0F, dprob, t, k, ldk, 0.0F,
                in->dq + at, ldq);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, t, d, m, 1.0F, dprob, t, q, ldq, 1.0F,
                in->dk + from * in->ldk, ldk);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, t, d, m, 1.0F, prob, t, d_o, ldq, 1.0F,
                in->dv + from * in->ldk, ldk);
}

void kvd_attend_back(const kvd_attend_back_in *in, float *scratch)
{
    for (size_t i = 0; i < in->n; i++) {
        memset(in->dk + i * in->ldk, 0, in->d * sizeof *in->dk);
        memset(in->dv + i * in->ldk, 0, in->d * sizeof *in->dv);
    }
    for (size_t head = 0; head < in->group; head++)
        for (size_t first = 0; first < in->n; first += KVD_ATTEND_ROWS)
            block_back(in, head, first,
                       in->n - first < KVD_ATTEND_ROWS ? in->n - first : KVD_ATTEND_ROWS, scratch);
}

size_t kvd_layer_back_scratch(const kvd_config *c)
{
    const size_t d = (size_t)c->d_model, ffn = (size_t)c->d_ffn,
                 width_q = (size_t)c->n_heads * (size_t)c->d_head;
    const size_t behind = 5 * d + 3 * ffn, before = d + 2 * width_q;
    return behind > before ? behind : before;
}

void kvd_layer_normalise_back(const kvd_config *c, const float *x, const float *gain, size_t rows,
                              const float *dy, float *dx)
{
    if (c->norm == KVD_NORM_LAYER)
        kvd_layer_norm_back(x, gain, c->norm_eps, rows, (size_t)c->d_model, dy, dx);
    else
        kvd_rms_norm_back(x, gain, c->norm_eps, rows, (size_t)c->d_model, dy, dx);
}

static void normalise(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                      const float *x, size_t rows, float *y)
{
    kvd_layer_normalise(c, x, w->w[part], w->b[part], rows, y);
}

static void feed_forward_back(const kvd_config *c, const kvd_layer_weights *w, const float *in,
                              size_t rows, const float *dy, float *scratch, float *din)
{
    const size_t d = (size_t)c->d_model, ffn = (size_t)c->d_ffn;
    const bool gated = kvd_config_gated(c);
    float *const gate = scratch, *const up = gate + rows * ffn, *const da = up + rows * ffn;
    if (gated)
        kvd_layer_project(in, w, KVD_PART_GATE, rows, d, ffn, gate, 0);
    kvd_layer_project(in, w, KVD_PART_UP, rows, d, ffn, up, 0);
    kvd_linear_back(dy, w->w[KVD_PART_DOWN], rows, ffn, d, da, 0);
    kvd_activate_back(c->activation, gated ? gate : up, up, rows * ffn, da);
    if (gated)
        kvd_linear_back(gate, w->w[KVD_PART_GATE], rows, d, ffn, din, 0);
    kvd_linear_back(da, w->w[KVD_PART_UP], rows, d, ffn, din, gated);
}

static void clear(float *x, size_t n)
{
    memset(x, 0, n * sizeof *x);
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void add_attention(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                          const float *o, size_t rows, float *x1)
{
    const size_t d = (size_t)c->d_model;
    kvd_layer_project(o, w, KVD_PART_O, rows, (size_t)c->n_heads * (size_t)c->d_head, d, x1, 0);
    add(x1, x, rows * d);
}

/* Backward pass of the layer z = x1 + norm_down(ffn(y)), x1 = x + norm_o(W_O o). Depending on the
 * model, y is norm_ffn(x1) or x1.
 *
 * Turns dx from the gradient of z into the gradient of x for constant o. Writes the gradient of o
 * to d_o. */
static void behind_branch_norms_back(const kvd_config *c, const kvd_layer_weights *w,
                                     const float *x, const float *o, size_t rows, float *scratch,
                                     float *dx, float *d_o)
{
    const size_t d = (size_t)c->d_model, n = rows * d,
                 width_q = (size_t)c->n_heads * (size_t)c->d_head;
    const bool around = c->order == KVD_ORDER_AROUND;
    float *const branch = scratch, *const x1 = branch + n, *const y = x1 + n, *const dy = y + n,
                 *const d_branch = dy + n, *const ffn = d_branch + n;
    kvd_layer_project(o, w, KVD_PART_O, rows, width_q, d, branch, 0);
    normalise(c, w, KVD_PART_NORM_O, branch, rows, x1);
    add(x1, x, n);
    if (around)
        normalise(c, w, KVD_PART_NORM_FFN, x1, rows, y);
    else
        memcpy(y, x1, n * sizeof *y);
    clear(branch, n);
    kvd_layer_feed_forward(c, w, y, rows, ffn, ffn + rows * (size_t)c->d_ffn, branch);
    clear(d_branch, n);
    kvd_layer_normalise_back(c, branch, w->w[KVD_PART_NORM_DOWN], rows, dx, d_branch);
    feed_forward_back(c, w, y, rows, d_branch, ffn, dy);
    if (around)
        kvd_layer_normalise_back(c, x1, w->w[KVD_PART_NORM_FFN], rows, dy, dx);
    else
        add(dx, dy, n);
    kvd_layer_project(o, w, KVD_PART_O, rows, width_q, d, branch, 0);
    clear(d_branch, n);
    kvd_layer_normalise_back(c, branch, w->w[KVD_PART_NORM_O], rows, dx, d_branch);
    kvd_linear_back(d_branch, w->w[KVD_PART_O], rows, width_q, d, d_o, 0);
}

void kvd_layer_behind_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           const float *o, size_t rows, float *scratch, float *dx, float *d_o)
{
    const size_t d = (size_t)c->d_model, n = rows * d,
                 width_q = (size_t)c->n_heads * (size_t)c->d_head;
    const kvd_part first = KVD_PART_NORM_ATTENTION,
                   second = c->shared_norm ? first : KVD_PART_NORM_FFN;
    float *const x1 = scratch, *const y = x1 + n, *const dy = y + n, *const s = dy + n,
                 *const ffn = s + n;

    switch (c->order) {
    case KVD_ORDER_AROUND:
    case KVD_ORDER_BRANCH:
        behind_branch_norms_back(c, w, x, o, rows, scratch, dx, d_o);
        break;
    /* Backward pass of x1 + ffn(norm(x1)), where x1 = x + W_O o and o is the attention output. */
    case KVD_ORDER_BEFORE:
        add_attention(c, w, x, o, rows, x1);
        normalise(c, w, second, x1, rows, y);
        feed_forward_back(c, w, y, rows, dx, ffn, dy);
        kvd_layer_normalise_back(c, x1, w->w[second], rows, dy, dx);
        kvd_linear_back(dx, w->w[KVD_PART_O], rows, width_q, d, d_o, 0);
        break;
    /* Backward pass of x + W_O o + ffn(norm(x)), where o is the attention output. */
    case KVD_ORDER_PARALLEL:
        kvd_linear_back(dx, w->w[KVD_PART_O], rows, width_q, d, d_o, 0);
        normalise(c, w, second, x, rows, y);
        feed_forward_back(c, w, y, rows, dx, ffn, dy);
        kvd_layer_normalise_back(c, x, w->w[second], rows, dy, dx);
        break;
    /* Backward pass of norm_2(y + ffn(y)), where y = norm_1(x + W_O o) and o is the attention
     * output. */
    case KVD_ORDER_AFTER:
        add_attention(c, w, x, o, rows, x1);
        normalise(c, w, first, x1, rows, y);
        memcpy(s, y, n * sizeof *s);
        kvd_layer_feed_forward(c, w, y, rows, ffn, ffn + rows * (size_t)c->d_ffn, s);
        clear(dy, n);
        kvd_layer_normalise_back(c, s, w->w[second], rows, dx, dy);
        feed_forward_back(c, w, y, rows, dy, ffn, dx);
        add(dy, dx, n);
        clear(dx, n);
        kvd_layer_normalise_back(c, x1, w->w[first], rows, dy, dx);
        kvd_linear_back(dx, w->w[KVD_PART_O], rows, width_q, d, d_o, 0);
        break;
    }
}

/* Computes `raw` again, the projection of `in` to Q or K before the norm, and d_raw, the gradient
 * of `raw`. dy is the gradient of the normed Q or K. */
static void norm_of_heads_back(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                               kvd_part gain, const float *in, size_t rows, size_t heads,
                               const float *dy, float *raw, float *d_raw)
{
    const size_t d_head = (size_t)c->d_head, at_once = c->qk_norm_whole ? heads : 1;
    kvd_layer_project(in, w, part, rows, (size_t)c->d_model, heads * d_head, raw, 0);
    clear(d_raw, rows * heads * d_head);
    kvd_rms_norm_back(raw, w->w[gain], c->norm_eps, rows * heads / at_once, at_once * d_head, dy,
                      d_raw);
}

void kvd_layer_before_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           size_t rows, float *scratch, const kvd_layer_back_qkv *g, float *dx)
{
    const size_t heads = (size_t)c->n_heads, kv_heads = (size_t)c->n_kv_heads,
                 d_head = (size_t)c->d_head;
    const size_t d = (size_t)c->d_model, width_q = heads * d_head, width_k = kv_heads * d_head;
    float *const din = scratch, *const raw = din + rows * d, *const d_raw = raw + rows * width_q;
    const float *dq = g->dq_pre;

    memcpy(g->dq_pre, g->dq, rows * width_q * sizeof *g->dq);
    memcpy(g->dk_pre, g->dk, rows * width_k * sizeof *g->dk);
    if (c->positions == KVD_POSITIONS_ROPE) {
        kvd_rope_apply(c, g->cosine, g->minus_sine, g->rope_row, rows, heads, g->dq_pre);
        kvd_rope_apply(c, g->cosine, g->minus_sine, g->rope_row, rows, kv_heads, g->dk_pre);
    }
    if (kvd_config_norms_inputs(c))
        normalise(c, w, KVD_PART_NORM_ATTENTION, x, rows, g->in);
    else
        memcpy(g->in, x, rows * d * sizeof *x);
    if (c->qk_norm)
        norm_of_heads_back(c, w, KVD_PART_K, KVD_PART_NORM_K, g->in, rows, kv_heads, g->dk_pre, raw,
                           g->dk_raw);
    else
        memcpy(g->dk_raw, g->dk_pre, rows * width_k * sizeof *g->dk_raw);
    if (!dx)
        return;

    if (c->qk_norm) {
        norm_of_heads_back(c, w, KVD_PART_Q, KVD_PART_NORM_Q, g->in, rows, heads, g->dq_pre, raw,
                           d_raw);
        dq = d_raw;
    }
    kvd_linear_back(dq, w->w[KVD_PART_Q], rows, d, width_q, din, 0);
    kvd_linear_back(g->dk_raw, w->w[KVD_PART_K], rows, d, width_k, din, 1);
    kvd_linear_back(g->dv, w->w[KVD_PART_V], rows, d, width_k, din, 1);
    if (kvd_config_norms_inputs(c))
        kvd_layer_normalise_back(c, x, w->w[KVD_PART_NORM_ATTENTION], rows, din, dx);
    else
        add(dx, din, rows * d);
}
