#include "model/pass/layer_back.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "model/pass/attention.h"
#include "model/pass/blocks.h"
#include "model/pass/vector.h"

/* ---- norms ----------------------------------------------------------------------------------- */

/* For y = x s g with s = (mean(x^2) + eps)^-1/2, adds dx = s (g dy - x s^2 mean(g dy x)). */
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

/* For y = z g + b with z = (x - mean(x)) s, adds dx = s (g dy - mean(g dy) - z mean(g dy z)). */
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

/* ---- products and activations ---------------------------------------------------------------- */

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

void kvd_swiglu_back(float *gate, const float *up, size_t n, float *dy)
{
    swiglu_back(gate, up, n, dy);
}

/* A clamped gate or up branch has no gradient. */
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

/* f' = s + x s (1 - s) u', where f = x s(u) is the GELU of kvd_gelu_tanh, as below. */
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

void kvd_geglu_tanh_back(float *gate, const float *up, size_t n, float *dy)
{
    geglu_tanh_back(gate, up, n, dy);
}

/* Multiplies dy by the derivative of GELU: (x Phi(x))' = Phi(x) + x phi(x). */
static void gelu_back(const float *x, size_t n, float *dy)
{
    for (size_t i = 0; i < n; i++)
        dy[i] *= 0.5F * (1.0F + erff(x[i] * 0.70710678F)) +
                 x[i] * 0.39894228F * expf(-0.5F * x[i] * x[i]);
}

/* Multiplies dy by f' = s + x s (1 - s) u', where f = x s(u) and u = 2 c (x + a x^3). */
KVD_CLONES static void gelu_tanh_back(const float *restrict x, size_t n, float *restrict dy)
{
    const float twice = 1.59576912F, a = 0.044715F;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float s = 1.0F / (1.0F + kvd_expf(-twice * (x[i] + a * x[i] * x[i] * x[i])));
        dy[i] *= s + x[i] * s * (1.0F - s) * twice * (1.0F + 3.0F * a * x[i] * x[i]);
    }
}

void kvd_activation_back(kvd_activation a, const float *x, size_t n, float *dy)
{
    assert(a != KVD_SWIGLU && a != KVD_GEGLU_TANH);
    if (a == KVD_GELU)
        gelu_back(x, n, dy);
    else if (a == KVD_GELU_TANH)
        gelu_tanh_back(x, n, dy);
    else
        for (size_t i = 0; i < n; i++)
            dy[i] = x[i] > 0 ? dy[i] : 0;
}

/* ---- attention ------------------------------------------------------------------------------- */

/*
 * Multiplies dscore [keys] by the derivative of kvd_softcap, 1 - (s / softcap)^2 for the score s,
 * from the products q . k of the row.
 */
static void softcap_row(const float *product, size_t keys, kvd_scores score, float *dscore)
{
    for (size_t t = 0; t < keys; t++) {
        const float y = tanhf(product[t] * score.scale / score.softcap);
        dscore[t] *= 1.0F - y * y;
    }
}

/*
 * Turns dprob [keys] of one row, the gradient with respect to prob [keys], into the gradient with
 * respect to the unscaled scores: p (dp - p . dp), where p . dp = o . d_o.
 */
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

/* Computes the gradients of rows first .. first + rows - 1 of one query head. Adds to dk and dv. */
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
