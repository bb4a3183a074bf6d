#include "model/pass/forward.h"

#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint/weights.h"
#include "model/pass/routing.h"

/*
 * State of the reference pass of one sequence of n tokens, from the papers' definitions (Touvron et
 * al. 2023; Su et al. 2021; Zhang & Sennrich 2019; Shazeer 2017, 2020; Ba et al. 2016; Hendrycks &
 * Gimpel 2016; Ding et al. 2024; Peng et al. 2023; Gemma Team 2024, 2025; DeepSeek-AI 2024, 2025).
 * No code is shared with blocks.c, attention.c or forward.c.
 */

typedef struct {
    const kvd_checkpoint *checkpoint;
    const kvd_config *c;
    int expert;
    size_t wide;
    size_t n, d_model, d_ffn, d_embed, d_head, heads, kv_heads;
    double *x;
    double *y;
    /* of one layer: [n][heads or kv_heads][d_head] */
    double *q, *k, *v, *o;
    double *gate, *up;
    double *sum;
    double *e;
} state;

/* Reads a weight as float64 into *out, which the caller frees; NULL if there is none. */
static int load(const state *s, kvd_part part, bool bias, size_t layer, double **out, kvd_err *err)
{
    kvd_weight w;
    *out = NULL;
    if (kvd_weight_find_expert(s->checkpoint, part, bias, (int)layer, s->expert, &w, err))
        return -1;
    if (w.n == 0)
        return 0;
    float *narrow = malloc(w.n * sizeof *narrow);
    double *wide = malloc(w.n * sizeof *wide);
    if (!narrow || !wide) {
        kvd_no_memory(err, "a weight", w.n * (sizeof *narrow + sizeof *wide));
        free(narrow);
        free(wide);
        return -1;
    }
    kvd_weight_read(&w, 0, w.n, narrow);
    for (size_t i = 0; i < w.n; i++)
        wide[i] = (double)narrow[i];
    free(narrow);
    *out = wide;
    return 0;
}

/* Computes y [n][out] = x [n][in] W^T + b with the weight `part`; y must not be x. */
static int project(const state *s, kvd_part part, size_t layer, const double *x, size_t in,
                   size_t out, double *y, kvd_err *err)
{
    double *w = NULL, *b = NULL;
    const int status =
        load(s, part, false, layer, &w, err) || load(s, part, true, layer, &b, err) ? -1 : 0;
    for (size_t i = 0; !status && i < s->n; i++)
        for (size_t r = 0; r < out; r++) {
            double sum = b ? b[r] : 0;
            for (size_t j = 0; j < in; j++)
                sum += x[i * in + j] * w[r * in + j];
            y[i * out + r] = sum;
        }
    free(w);
    free(b);
    return status;
}

static double cap(double x, double softcap)
{
    return softcap > 0 ? softcap * tanh(x / softcap) : x;
}

/* Computes y = x / sqrt(mean(x^2) + eps) * gain + bias. Unless `rms`, first subtracts mean(x). */
static int norm_eps(const state *s, kvd_part part, size_t layer, bool rms, double eps,
                    const double *x, size_t rows, size_t d, double *y, kvd_err *err)
{
    double *gain = NULL, *bias = NULL;
    const int status =
        load(s, part, false, layer, &gain, err) || load(s, part, true, layer, &bias, err) ? -1 : 0;
    for (size_t i = 0; !status && i < rows; i++) {
        double mean = 0, square = 0;
        for (size_t j = 0; j < d; j++)
            mean += rms ? 0 : x[i * d + j] / (double)d;
        for (size_t j = 0; j < d; j++)
            square += (x[i * d + j] - mean) * (x[i * d + j] - mean);
        const double length = sqrt(square / (double)d + eps);
        for (size_t j = 0; j < d; j++)
            y[i * d + j] = gain ? (x[i * d + j] - mean) / length * gain[j] + (bias ? bias[j] : 0)
                                : x[i * d + j];
    }
    free(gain);
    free(bias);
    return status;
}

static int norm(const state *s, kvd_part part, size_t layer, bool rms, const double *x, size_t rows,
                size_t d, double *y, kvd_err *err)
{
    return norm_eps(s, part, layer, rms, s->c->norm_eps, x, rows, d, y, err);
}

static int model_norm(const state *s, kvd_part part, size_t layer, const double *x, double *y,
                      kvd_err *err)
{
    return norm(s, part, layer, s->c->norm == KVD_NORM_RMS, x, s->n, s->d_model, y, err);
}

/* Returns the (real) index of the RoPE frequency with `turns` turns in the original context. */
static double yarn_pair(const kvd_config *c, double dims, double turns)
{
    return dims / 2 * log((double)c->rope_original_positions / (2 * M_PI * turns)) /
           log(c->rope_theta);
}

static double yarn(const kvd_config *c, double dims, double omega, size_t i)
{
    double from = yarn_pair(c, dims, c->rope_beta_fast), to = yarn_pair(c, dims, c->rope_beta_slow);
    from = fmax(0, c->rope_truncate ? floor(from) : from);
    to = fmin(dims - 1, c->rope_truncate ? ceil(to) : to);
    const double width = to > from ? to - from : to - from + 0.001;
    const double slow = fmin(1, fmax(0, ((double)i - from) / width));
    return omega * (slow / c->rope_factor + (1 - slow));
}

/* Returns the angle per position of RoPE frequency i in a sequence of n tokens. */
static double turn(const kvd_config *c, bool local, size_t n, size_t i)
{
    const double dims = c->rope_dims ? c->rope_dims : c->d_head;
    const bool other = local && c->rope_local_theta > 0;
    const double omega =
        exp(-log(other ? c->rope_local_theta : c->rope_theta) * (double)i / (dims / 2));
    if (other)
        return omega;
    if (c->rope_scaling == KVD_ROPE_YARN)
        return yarn(c, dims, omega, i);
    if (c->rope_scaling == KVD_ROPE_LINEAR)
        return omega / c->rope_factor;
    if (c->rope_scaling == KVD_ROPE_LLAMA3) {
        /* Frequencies with few turns are divided by rope_factor, with many turns unchanged. */
        const double turns = (double)c->rope_original_positions * omega / (2 * M_PI);
        double keep = (turns - c->rope_low_freq_factor) /
                      (c->rope_high_freq_factor - c->rope_low_freq_factor);
        keep = fmin(1, fmax(0, keep));
        return omega * (keep + (1 - keep) / c->rope_factor);
    }
    if (c->rope_scaling == KVD_ROPE_LONGROPE)
        return omega /
               (n <= (size_t)c->rope_original_positions ? c->rope_short[i] : c->rope_long[i]);
    return omega;
}

/* Applies RoPE: pair i, a complex number, times exp(j m omega_i) at position m. */
static void rope(const state *s, size_t layer, double *x, size_t heads)
{
    const size_t half = (s->c->rope_dims ? (size_t)s->c->rope_dims : s->d_head) / 2;
    const bool local = !isinf(s->c->rope_local_theta) && kvd_config_window(s->c, (int)layer) > 0;
    const int interleaved = s->c->rope_layout == KVD_ROPE_INTERLEAVED;
    const double stretch =
        (s->c->rope_scaling == KVD_ROPE_LONGROPE || s->c->rope_scaling == KVD_ROPE_YARN) &&
                !(local && s->c->rope_local_theta > 0)
            ? s->c->rope_attention_factor
            : 1;
    if (s->c->positions != KVD_POSITIONS_ROPE || kvd_config_unrotated(s->c, (int)layer))
        return;
    for (size_t m = 0; m < s->n; m++)
        for (size_t h = 0; h < heads; h++)
            for (size_t i = 0; i < half; i++) {
                double *head = x + (m * heads + h) * s->d_head;
                double *re = interleaved ? head + 2 * i : head + i;
                double *im = interleaved ? head + 2 * i + 1 : head + half + i;
                const double complex z =
                    (*re + I * *im) * stretch * cexp(I * (double)m * turn(s->c, local, s->n, i));
                *re = creal(z);
                *im = cimag(z);
            }
}

/*
 * Computes o_i = sum over t of softmax_t(s_it) v_t, with s_it = q_i . k_t / sqrt(d_head), over t <=
 * i or, with a window, i - window < t <= i. A softcap c replaces s by c tanh(s / c).
 */
static int attend(const state *s, size_t layer, kvd_err *err)
{
    const size_t window = kvd_config_window(s->c, (int)layer);
    const size_t n = s->n, d = s->d_head, group = s->heads / s->kv_heads;
    double *sink = NULL, *p = malloc(n * sizeof *p);
    if (!p)
        return kvd_no_memory(err, "attention probabilities", n * sizeof *p);
    if (load(s, KVD_PART_SINKS, false, layer, &sink, err)) {
        free(p);
        return -1;
    }
    for (size_t h = 0; h < s->heads; h++)
        for (size_t i = 0; i < n; i++) {
            const size_t start = window > 0 && i >= window ? i - window + 1 : 0;
            double top = sink ? sink[h] : -INFINITY, sum = 0;
            for (size_t t = start; t <= i; t++) {
                p[t] = 0;
                for (size_t j = 0; j < d; j++)
                    p[t] += s->q[(i * s->heads + h) * d + j] *
                            s->k[(t * s->kv_heads + h / group) * d + j];
                p[t] *= s->c->score_scale > 0 ? s->c->score_scale : 1 / sqrt((double)d);
                p[t] = cap(p[t], s->c->score_softcap);
                top = fmax(top, p[t]);
            }
            sum = sink ? exp(sink[h] - top) : 0;
            for (size_t t = start; t <= i; t++) {
                p[t] = exp(p[t] - top);
                sum += p[t];
            }
            for (size_t j = 0; j < d; j++) {
                double value = 0;
                for (size_t t = start; t <= i; t++)
                    value += p[t] / sum * s->v[(t * s->kv_heads + h / group) * d + j];
                s->o[(i * s->heads + h) * d + j] = value;
            }
        }
    free(sink);
    free(p);
    return 0;
}

static void hand_out(double *all, size_t layer, const double *one, size_t n)
{
    if (all)
        memcpy(all + layer * n, one, n * sizeof *one);
}

/* Returns W_UK, from the latent to the key, or W_UV, to the value, of head h. */
static const double *expand(const state *s, const double *up, size_t h, bool values)
{
    const size_t nope = (size_t)s->c->d_nope, wide = (size_t)s->c->d_value;
    return up + (h * (nope + wide) + (values ? nope : 0)) * (size_t)s->c->latent;
}

/* Computes queries: the rotated dimensions, then W_UK^T times the other dimensions. */
static int latent_queries(const state *s, size_t layer, const double *y, const double *up,
                          double *raw, double *low, kvd_err *err)
{
    const size_t rope = (size_t)s->c->rope_dims, nope = (size_t)s->c->d_nope,
                 rank = (size_t)s->c->q_rank, latent = (size_t)s->c->latent, each = nope + rope;
    if (rank && (project(s, KVD_PART_Q_DOWN, layer, y, s->d_model, rank, low, err) ||
                 norm_eps(s, KVD_PART_NORM_Q_DOWN, layer, true, 1e-6, low, s->n, rank, low, err)))
        return -1;
    if (project(s, KVD_PART_Q, layer, rank ? low : y, rank ? rank : s->d_model, s->heads * each,
                raw, err))
        return -1;
    for (size_t i = 0; i < s->n * s->heads; i++)
        for (size_t j = 0; j < s->d_head; j++) {
            double sum = j < rope ? raw[i * each + nope + j] : 0;
            for (size_t m = 0; j >= rope && m < nope; m++)
                sum +=
                    raw[i * each + m] * expand(s, up, i % s->heads, false)[m * latent + j - rope];
            s->q[i * s->d_head + j] = sum;
        }
    return 0;
}

/* Computes keys (rotated dimensions, then the latent) and values (zeros, then the latent). */
static int latent_keys(const state *s, size_t layer, const double *y, double *raw, kvd_err *err)
{
    const size_t rope = (size_t)s->c->rope_dims, latent = (size_t)s->c->latent;
    if (project(s, KVD_PART_LATENT, layer, y, s->d_model, s->d_head, raw, err))
        return -1;
    for (size_t i = 0; i < s->n; i++) {
        double *const k = s->k + i * s->d_head, *const v = s->v + i * s->d_head;
        if (norm_eps(s, KVD_PART_NORM_LATENT, layer, true, 1e-6, raw + i * s->d_head, 1, latent,
                     k + rope, err))
            return -1;
        for (size_t j = 0; j < s->d_head; j++) {
            k[j] = j < rope ? raw[i * s->d_head + latent + j] : k[j];
            v[j] = j < rope ? 0 : k[j];
        }
    }
    return 0;
}

static int latent_queries_keys_values(const state *s, size_t layer, const double *y, kvd_err *err)
{
    const size_t each = (size_t)(s->c->d_nope + s->c->rope_dims);
    const size_t size = s->n * (s->heads * each + (size_t)s->c->q_rank + s->d_head);
    double *up = NULL, *raw = malloc(size * sizeof *raw);
    int status = raw ? 0 : kvd_no_memory(err, "latents", size * sizeof *raw);
    if (!status)
        status = load(s, KVD_PART_LATENT_UP, false, layer, &up, err) ||
                         latent_queries(s, layer, y, up, raw, raw + s->n * s->heads * each, err) ||
                         latent_keys(s, layer, y, raw, err)
                     ? -1
                     : 0;
    free(up);
    free(raw);
    return status;
}

/* Computes s->sum [n][d_model], the sum over heads of W_O W_UV o. */
static int latent_output(const state *s, size_t layer, kvd_err *err)
{
    const size_t wide = (size_t)s->c->d_value, latent = (size_t)s->c->latent;
    double *up = NULL, *values = malloc(s->n * s->heads * wide * sizeof *values);
    int status = values ? 0 : kvd_no_memory(err, "values", s->n * s->heads * wide * sizeof *values);
    if (!status)
        status = load(s, KVD_PART_LATENT_UP, false, layer, &up, err);
    for (size_t i = 0; !status && i < s->n * s->heads; i++)
        for (size_t j = 0; j < wide; j++) {
            values[i * wide + j] = 0;
            for (size_t m = 0; m < latent; m++)
                values[i * wide + j] += expand(s, up, i % s->heads, true)[j * latent + m] *
                                        s->o[i * s->d_head + (size_t)s->c->rope_dims + m];
        }
    if (!status)
        status = project(s, KVD_PART_O, layer, values, s->heads * wide, s->d_model, s->sum, err);
    free(up);
    free(values);
    return status;
}

static int queries_keys_values(const state *s, size_t layer, const double *y, kvd_err *err)
{
    const size_t width_q = s->heads * s->d_head, width_k = s->kv_heads * s->d_head, n = s->n;
    /* Number of heads of Q, or K, that one norm covers. */
    const size_t at_once_q = s->c->qk_norm_whole ? s->heads : 1,
                 at_once_k = s->c->qk_norm_whole ? s->kv_heads : 1;
    if (s->c->latent)
        return latent_queries_keys_values(s, layer, y, err);
    if (project(s, KVD_PART_Q, layer, y, s->d_model, width_q, s->q, err) ||
        project(s, KVD_PART_K, layer, y, s->d_model, width_k, s->k, err) ||
        project(s, KVD_PART_V, layer, y, s->d_model, width_k, s->v, err) ||
        norm(s, KVD_PART_NORM_Q, layer, true, s->q, n * s->heads / at_once_q, at_once_q * s->d_head,
             s->q, err) ||
        norm(s, KVD_PART_NORM_K, layer, true, s->k, n * s->kv_heads / at_once_k,
             at_once_k * s->d_head, s->k, err))
        return -1;
    return 0;
}

static int attention(const state *s, size_t layer, const double *y, const kvd_forward_ref_out *out,
                     kvd_err *err)
{
    const size_t width_q = s->heads * s->d_head, width_k = s->kv_heads * s->d_head, n = s->n;
    if (queries_keys_values(s, layer, y, err))
        return -1;
    if (out->nudge)
        out->nudge(out->ctx, layer, s->k, s->v);
    hand_out(out->q_pre, layer, s->q, n * width_q);
    hand_out(out->k_pre, layer, s->k, n * width_k);
    rope(s, layer, s->q, s->heads);
    rope(s, layer, s->k, s->kv_heads);
    hand_out(out->q, layer, s->q, n * width_q);
    hand_out(out->k, layer, s->k, n * width_k);
    hand_out(out->v, layer, s->v, n * width_k);
    if (attend(s, layer, err))
        return -1;
    hand_out(out->o, layer, s->o, n * width_q);
    return 0;
}

static double activate(kvd_activation a, double gate, double up)
{
    switch (a) {
    case KVD_SWIGLU:
        return gate / (1 + exp(-gate)) * up;
    case KVD_GEGLU_TANH:
        return gate * (1 + tanh(sqrt(2 / M_PI) * (gate + 0.044715 * pow(gate, 3)))) / 2 * up;
    case KVD_GELU:
        return up * (1 + erf(up / sqrt(2))) / 2;
    case KVD_GELU_TANH:
        return up * (1 + tanh(sqrt(2 / M_PI) * (up + 0.044715 * pow(up, 3)))) / 2;
    case KVD_RELU:
        return fmax(up, 0);
    case KVD_RELU2:
        return pow(fmax(up, 0), 2);
    }
    return NAN;
}

static int branch_norm(const state *s, kvd_part part, size_t layer, kvd_err *err)
{
    return s->c->order == KVD_ORDER_AROUND || s->c->order == KVD_ORDER_BRANCH
               ? model_norm(s, part, layer, s->sum, s->sum, err)
               : 0;
}

/* Computes x += W_O o + b, or x += norm(W_O o + b) in models that norm the outputs of blocks. */
static int add_attention(const state *s, size_t layer, kvd_err *err)
{
    if ((s->c->latent ? latent_output(s, layer, err)
                      : project(s, KVD_PART_O, layer, s->o, s->heads * s->d_head, s->d_model,
                                s->sum, err)) ||
        branch_norm(s, KVD_PART_NORM_O, layer, err))
        return -1;
    for (size_t i = 0; i < s->n * s->d_model; i++)
        s->x[i] += s->sum[i];
    return 0;
}

static double clamped(const kvd_config *c, double gate, double up)
{
    const double g = fmin(gate, c->expert_limit),
                 u = fmax(-c->expert_limit, fmin(up, c->expert_limit));
    return g / (1 + exp(-c->expert_alpha * g)) * (u + 1);
}

/* Computes s->sum [n][d_model], the output of a feed-forward block with a gate. */
static int gated(const state *s, size_t layer, kvd_part gate, const double *y, size_t width,
                 kvd_err *err)
{
    const kvd_part up = (kvd_part)(gate + 1), down = (kvd_part)(gate + 2);
    if (project(s, gate, layer, y, s->d_model, width, s->gate, err) ||
        project(s, up, layer, y, s->d_model, width, s->up, err))
        return -1;
    for (size_t i = 0; i < s->n * width; i++)
        s->up[i] = s->c->expert_limit > 0 ? clamped(s->c, s->gate[i], s->up[i])
                                          : activate(s->c->activation, s->gate[i], s->up[i]);
    return project(s, down, layer, s->up, width, s->d_model, s->sum, err);
}

/* Computes the factors p [n][n_experts] on outputs of experts, 0 if not chosen. */
static int route(const state *s, size_t layer, const double *y, double *p, kvd_err *err)
{
    const size_t experts = (size_t)s->c->n_experts;
    double *bias = NULL, *z = malloc(s->n * experts * sizeof *z);
    int status = z ? 0 : kvd_no_memory(err, "logits of experts", s->n * experts * sizeof *z);
    if (!status)
        status = project(s, KVD_PART_ROUTER, layer, y, s->d_model, experts, z, err) ||
                         load(s, KVD_PART_ROUTER_BIAS, false, layer, &bias, err)
                     ? -1
                     : 0;
    for (size_t i = 0; !status && i < s->n; i++) {
        if (s->c->expert_groups) {
            kvd_route_groups_ref(s->c, z + i * experts, bias, p + i * experts);
            continue;
        }
        double all = 0, chosen = 0;
        for (size_t e = 0; e < experts; e++) {
            size_t larger = 0;
            for (size_t k = 0; k < experts; k++)
                larger += z[i * experts + k] > z[i * experts + e];
            const double x = exp(z[i * experts + e] - z[i * experts]);
            p[i * experts + e] = larger < (size_t)s->c->n_chosen ? x : 0;
            all += x;
            chosen += p[i * experts + e];
        }
        for (size_t e = 0; e < experts; e++)
            p[i * experts + e] /= s->c->chosen_add_up ? chosen : all;
    }
    free(z);
    free(bias);
    return status;
}

static int add_experts(const state *s, size_t layer, const double *y, kvd_err *err)
{
    const size_t experts = (size_t)s->c->n_experts, d = s->d_model;
    state of = *s;
    double *scale = NULL, *p = malloc(s->n * experts * sizeof *p);
    int status = p ? 0 : kvd_no_memory(err, "factors of experts", s->n * experts * sizeof *p);
    if (!status)
        status = route(s, layer, y, p, err);
    for (; !status && of.expert < s->c->n_experts; of.expert++) {
        status = gated(&of, layer, KVD_PART_EXPERT_GATE, y, (size_t)s->c->d_expert, err);
        for (size_t i = 0; !status && i < s->n * d; i++)
            s->x[i] += p[i / d * experts + (size_t)of.expert] * s->sum[i];
    }
    if (!status && s->c->d_shared)
        status = load(s, KVD_PART_SHARED_SCALE, false, layer, &scale, err) ||
                         gated(s, layer, KVD_PART_SHARED_GATE, y, (size_t)s->c->d_shared, err)
                     ? -1
                     : 0;
    for (size_t i = 0; !status && s->c->d_shared && i < s->n; i++) {
        double z = 0;
        for (size_t j = 0; scale && j < d; j++)
            z += scale[j] * y[i * d + j];
        for (size_t j = 0; j < d; j++)
            s->x[i * d + j] += s->sum[i * d + j] * (scale ? 1 / (1 + exp(-z)) : 1);
    }
    free(scale);
    free(p);
    return status;
}

static int add_feed_forward(const state *s, size_t layer, const double *y, kvd_err *err)
{
    if (kvd_config_routed(s->c, (int)layer))
        return add_experts(s, layer, y, err);
    const kvd_activation a = s->c->activation;
    if (((a == KVD_SWIGLU || a == KVD_GEGLU_TANH) &&
         project(s, KVD_PART_GATE, layer, y, s->d_model, s->d_ffn, s->gate, err)) ||
        project(s, KVD_PART_UP, layer, y, s->d_model, s->d_ffn, s->up, err))
        return -1;
    for (size_t i = 0; i < s->n * s->d_ffn; i++)
        s->up[i] = activate(a, s->gate[i], s->up[i]);
    if (project(s, KVD_PART_DOWN, layer, s->up, s->d_ffn, s->d_model, s->sum, err) ||
        branch_norm(s, KVD_PART_NORM_DOWN, layer, err))
        return -1;
    for (size_t i = 0; i < s->n * s->d_model; i++)
        s->x[i] += s->sum[i];
    return 0;
}

static int run_layer(const state *s, size_t layer, const kvd_forward_ref_out *out, kvd_err *err)
{
    const kvd_part first = KVD_PART_NORM_ATTENTION,
                   second = s->c->shared_norm ? first : KVD_PART_NORM_FFN;
    switch (s->c->order) {
    case KVD_ORDER_BRANCH:
        return attention(s, layer, s->x, out, err) || add_attention(s, layer, err) ||
                       add_feed_forward(s, layer, s->x, err)
                   ? -1
                   : 0;
    case KVD_ORDER_AROUND:
    case KVD_ORDER_BEFORE:
        return model_norm(s, first, layer, s->x, s->y, err) ||
                       attention(s, layer, s->y, out, err) || add_attention(s, layer, err) ||
                       model_norm(s, second, layer, s->x, s->y, err) ||
                       add_feed_forward(s, layer, s->y, err)
                   ? -1
                   : 0;
    case KVD_ORDER_AFTER:
        return attention(s, layer, s->x, out, err) || add_attention(s, layer, err) ||
                       model_norm(s, first, layer, s->x, s->x, err) ||
                       add_feed_forward(s, layer, s->x, err) ||
                       model_norm(s, second, layer, s->x, s->x, err)
                   ? -1
                   : 0;
    case KVD_ORDER_PARALLEL:
        return model_norm(s, first, layer, s->x, s->y, err) ||
                       attention(s, layer, s->y, out, err) ||
                       model_norm(s, second, layer, s->x, s->y, err) ||
                       add_attention(s, layer, err) || add_feed_forward(s, layer, s->y, err)
                   ? -1
                   : 0;
    }
    return -1;
}

/* Computes x = W_in e(id) + p(position + 2), with embeddings e and learned positions p. */
static int embed(const state *s, const uint32_t *id, kvd_err *err)
{
    double *table = NULL, *positions = NULL;
    int status = -1;
    if (load(s, KVD_PART_EMBEDDING, false, 0, &table, err) ||
        load(s, KVD_PART_POSITIONS, false, 0, &positions, err))
        goto done;
    for (size_t i = 0; i < s->n; i++)
        memcpy(s->e + i * s->d_embed, table + id[i] * s->d_embed, s->d_embed * sizeof *s->e);
    if (s->d_embed == s->d_model)
        memcpy(s->x, s->e, s->n * s->d_model * sizeof *s->x);
    else if (project(s, KVD_PART_PROJECT_IN, 0, s->e, s->d_embed, s->d_model, s->x, err))
        goto done;
    for (size_t i = 0; s->c->embed_scale > 0 && i < s->n * s->d_model; i++)
        s->x[i] *= (double)(float)s->c->embed_scale;
    for (size_t i = 0; positions && i < s->n * s->d_model; i++)
        s->x[i] += positions[2 * s->d_model + i];
    status = 0;
done:
    free(table);
    free(positions);
    return status;
}

static int head(const state *s, const double *y, double *logits, kvd_err *err)
{
    if (s->d_embed == s->d_model)
        memcpy(s->e, y, s->n * s->d_model * sizeof *s->e);
    else if (project(s, KVD_PART_PROJECT_OUT, 0, y, s->d_model, s->d_embed, s->e, err))
        return -1;
    if (project(s, s->c->tied_head ? KVD_PART_EMBEDDING : KVD_PART_HEAD, 0, s->e, s->d_embed,
                (size_t)s->c->vocab_size, logits, err))
        return -1;
    for (size_t i = 0; i < s->n * (size_t)s->c->vocab_size; i++)
        logits[i] = cap(logits[i], s->c->logit_softcap);
    return 0;
}

static size_t widest(const kvd_config *c)
{
    const int expert = c->d_expert > c->d_shared ? c->d_expert : c->d_shared;
    return (size_t)(c->d_ffn > expert ? c->d_ffn : expert);
}

int kvd_forward_ref(const kvd_checkpoint *checkpoint, const uint32_t *id, size_t n,
                    const kvd_forward_ref_out *out, kvd_err *err)
{
    const kvd_config *c = kvd_checkpoint_config(checkpoint);
    state s = {.checkpoint = checkpoint,
               .c = c,
               .n = n,
               .d_model = (size_t)c->d_model,
               .d_ffn = (size_t)c->d_ffn,
               .wide = widest(c),
               .d_embed = (size_t)kvd_config_d_embed(c),
               .d_head = (size_t)c->d_head,
               .heads = (size_t)c->n_heads,
               .kv_heads = (size_t)c->n_kv_heads};
    if (n == 0 || n > (size_t)c->max_positions)
        return kvd_fail(err, "a sequence of %zu tokens, the model was made for 1 .. %d", n,
                        c->max_positions);
    for (size_t i = 0; i < n; i++)
        if (id[i] >= (uint32_t)c->vocab_size)
            return kvd_fail(err, "position %zu: token id %u is not below the vocabulary size %d", i,
                            (unsigned)id[i], c->vocab_size);

    const size_t width_q = s.heads * s.d_head, width_k = s.kv_heads * s.d_head;
    const size_t per_row = 3 * s.d_model + 2 * width_q + 2 * width_k + 2 * s.wide + s.d_embed;
    int status = -1;
    double *all = calloc(n, per_row * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "the reference forward pass", n * per_row * sizeof *all);
    s.x = all;
    s.y = s.x + n * s.d_model;
    s.sum = s.y + n * s.d_model;
    s.q = s.sum + n * s.d_model;
    s.o = s.q + n * width_q;
    s.k = s.o + n * width_q;
    s.v = s.k + n * width_k;
    s.gate = s.v + n * width_k;
    s.up = s.gate + n * s.wide;
    s.e = s.up + n * s.wide;

    if (embed(&s, id, err))
        goto done;
    for (size_t l = 0; l < (size_t)c->n_layers; l++)
        if (run_layer(&s, l, out, err))
            goto done;
    if (model_norm(&s, KVD_PART_NORM_FINAL, 0, s.x, s.y, err))
        goto done;
    if (out->logits && head(&s, s.y, out->logits, err))
        goto done;
    status = 0;
done:
    free(all);
    return status;
}
