/* Reference forward pass in double precision, written from the papers that describe the models.
 * Shares no code with src/model/pass. */
#ifndef KVD_TESTS_FORWARD_REF_H
#define KVD_TESTS_FORWARD_REF_H

#include <complex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint/weights.h"
#include "unit.h"

/* Outputs for n tokens: logits [n][vocab_size] and, if not NULL:
 *
 * q_pre, q     queries before and after RoPE, [n_layers][n][n_heads][d_head]
 * k_pre, k, v  keys before and after RoPE, values, [n_layers][n][n_kv_heads][d_head]
 * o            attention output before W_O, [n_layers][n][n_heads][d_head] */
typedef struct {
    double *logits, *q_pre, *k_pre, *q, *k, *v, *o;
    /* function that may change a layer's keys before RoPE and its values, or NULL for none */
    void (*nudge)(void *ctx, size_t layer, double *k_pre, double *v);
    void *ctx;
} forward_ref_out;

typedef struct {
    const kvd_checkpoint *checkpoint;
    const kvd_config *c;
    int expert;
    size_t n, d_model, d_ffn, d_embed, d_head, heads, kv_heads;
    double *x;
    double *y;
    /* Q, K, V and outputs of one layer, [n][heads or kv_heads][d_head] */
    double *q, *k, *v, *o;
    double *gate, *up;
    double *sum;
    double *e;
} ref_state;

static inline double *ref_doubles(size_t n)
{
    return unit_alloc(n * sizeof(double));
}

/* Returns a weight (or bias) of the model in float64, which the caller frees. Returns NULL if the
 * model has no such weight. */
static inline double *ref_load(const ref_state *s, kvd_part part, bool bias, size_t layer)
{
    kvd_weight w;
    kvd_err err = {""};
    OK(kvd_weight_find_expert(s->checkpoint, part, bias, (int)layer, s->expert, &w, &err));
    if (w.n == 0)
        return NULL;
    float *narrow = malloc(w.n * sizeof *narrow);
    double *wide = malloc(w.n * sizeof *wide);
    assert_true(narrow && wide);
    kvd_weight_read(&w, 0, w.n, narrow);
    for (size_t i = 0; i < w.n; i++)
        wide[i] = (double)narrow[i];
    free(narrow);
    return wide;
}

/* Computes y [n][out] = x [n][in] W^T + b; y must not be x. */
static inline void ref_project(const ref_state *s, kvd_part part, size_t layer, const double *x,
                               size_t in, size_t out, double *y)
{
    double *const w = ref_load(s, part, false, layer), *const b = ref_load(s, part, true, layer);
    for (size_t i = 0; i < s->n; i++)
        for (size_t r = 0; r < out; r++) {
            double sum = b ? b[r] : 0;
            for (size_t j = 0; j < in; j++)
                sum += x[i * in + j] * w[r * in + j];
            y[i * out + r] = sum;
        }
    free(w);
    free(b);
}

static inline double ref_cap(double x, double softcap)
{
    return softcap > 0 ? softcap * tanh(x / softcap) : x;
}

/* Computes y = x / sqrt(mean(x^2) + eps) * gain + bias. Unless `rms`, first subtracts mean(x). */
static inline void ref_norm_eps(const ref_state *s, kvd_part part, size_t layer, bool rms,
                                double eps, const double *x, size_t rows, size_t d, double *y)
{
    double *const gain = ref_load(s, part, false, layer), *const bias =
                                                              ref_load(s, part, true, layer);
    for (size_t i = 0; i < rows; i++) {
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
}

static inline void ref_norm(const ref_state *s, kvd_part part, size_t layer, bool rms,
                            const double *x, size_t rows, size_t d, double *y)
{
    ref_norm_eps(s, part, layer, rms, s->c->norm_eps, x, rows, d, y);
}

static inline void ref_model_norm(const ref_state *s, kvd_part part, size_t layer, const double *x,
                                  double *y)
{
    ref_norm(s, part, layer, s->c->norm == KVD_NORM_RMS, x, s->n, s->d_model, y);
}

/* Returns the index of the RoPE pair that makes `turns` full turns over the original context
 * length. The index may be fractional. */
static inline double ref_yarn_pair(const kvd_config *c, double dims, double turns)
{
    return dims / 2 * log((double)c->rope_original_positions / (2 * M_PI * turns)) /
           log(c->rope_theta);
}

static inline double ref_yarn(const kvd_config *c, double dims, double omega, size_t i)
{
    double from = ref_yarn_pair(c, dims, c->rope_beta_fast),
           to = ref_yarn_pair(c, dims, c->rope_beta_slow);
    from = fmax(0, c->rope_truncate ? floor(from) : from);
    to = fmin(dims - 1, c->rope_truncate ? ceil(to) : to);
    const double width = to > from ? to - from : to - from + 0.001;
    const double slow = fmin(1, fmax(0, ((double)i - from) / width));
    return omega * (slow / c->rope_factor + (1 - slow));
}

/* Returns omega_i, the angle by which RoPE rotates pair i per position. It can depend on the
 * sequence length n. */
static inline double ref_turn(const kvd_config *c, bool local, size_t n, size_t i)
{
    const double dims = c->rope_dims ? c->rope_dims : c->d_head;
    const bool other = local && c->rope_local_theta > 0;
    const double omega =
        exp(-log(other ? c->rope_local_theta : c->rope_theta) * (double)i / (dims / 2));
    if (other)
        return omega;
    if (c->rope_scaling == KVD_ROPE_YARN)
        return ref_yarn(c, dims, omega, i);
    if (c->rope_scaling == KVD_ROPE_LINEAR)
        return omega / c->rope_factor;
    if (c->rope_scaling == KVD_ROPE_LLAMA3) {
        /* RoPE pairs that make few turns over the original context get slower by rope_factor. Pairs
         * that make many turns keep their frequency. */
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

/* Applies RoPE at position m: rotates pair i of a head's dimensions by the angle m omega_i. */
static inline void ref_rope(const ref_state *s, size_t layer, double *x, size_t heads)
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
                const double complex z = (*re + I * *im) * stretch *
                                         cexp(I * (double)m * ref_turn(s->c, local, s->n, i));
                *re = creal(z);
                *im = cimag(z);
            }
}

/* Computes o_i = sum over t <= i of softmax_t(s_it) v_t, with s_it = q_i . k_t / sqrt(d_head).
 *
 * With a window, t > i - window. A softcap c replaces s by c tanh(s / c). */
static inline void ref_attend(const ref_state *s, size_t layer)
{
    const size_t window = kvd_config_window(s->c, (int)layer);
    const size_t n = s->n, d = s->d_head, group = s->heads / s->kv_heads;
    double *const sink = ref_load(s, KVD_PART_SINKS, false, layer), *const p = ref_doubles(n);
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
                p[t] = ref_cap(p[t], s->c->score_softcap);
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
}

static inline void ref_hand_out(double *all, size_t layer, const double *one, size_t n)
{
    if (all)
        memcpy(all + layer * n, one, n * sizeof *one);
}

/* Returns the matrix of head h from latent to keys (W_UK) or, if `values`, values (W_UV). */
static inline const double *ref_expand(const ref_state *s, const double *up, size_t h, bool values)
{
    const size_t nope = (size_t)s->c->d_nope, wide = (size_t)s->c->d_value;
    return up + (h * (nope + wide) + (values ? nope : 0)) * (size_t)s->c->latent;
}

/* Computes queries of latent attention: per head first the dimensions that RoPE rotates, then
 * W_UK^T times the other dimensions. */
static inline void ref_latent_queries(const ref_state *s, size_t layer, const double *y,
                                      const double *up)
{
    const size_t rope = (size_t)s->c->rope_dims, nope = (size_t)s->c->d_nope,
                 rank = (size_t)s->c->q_rank, latent = (size_t)s->c->latent, each = nope + rope;
    double *const raw = ref_doubles(s->n * s->heads * each), *const low = ref_doubles(s->n * rank);
    if (rank) {
        ref_project(s, KVD_PART_Q_DOWN, layer, y, s->d_model, rank, low);
        ref_norm_eps(s, KVD_PART_NORM_Q_DOWN, layer, true, 1e-6, low, s->n, rank, low);
    }
    ref_project(s, KVD_PART_Q, layer, rank ? low : y, rank ? rank : s->d_model, s->heads * each,
                raw);
    for (size_t i = 0; i < s->n * s->heads; i++)
        for (size_t j = 0; j < s->d_head; j++) {
            double sum = j < rope ? raw[i * each + nope + j] : 0;
            for (size_t m = 0; j >= rope && m < nope; m++)
                sum += raw[i * each + m] *
                       ref_expand(s, up, i % s->heads, false)[m * latent + j - rope];
            s->q[i * s->d_head + j] = sum;
        }
}

/* Computes the cached K and V of latent attention. V is a copy of K with 0 in the dimensions that
 * RoPE rotates. */
static inline void ref_latent_keys(const ref_state *s, size_t layer, const double *y)
{
    const size_t rope = (size_t)s->c->rope_dims, latent = (size_t)s->c->latent;
    double *const raw = ref_doubles(s->n * s->d_head);
    ref_project(s, KVD_PART_LATENT, layer, y, s->d_model, s->d_head, raw);
    for (size_t i = 0; i < s->n; i++) {
        double *const k = s->k + i * s->d_head, *const v = s->v + i * s->d_head;
        ref_norm_eps(s, KVD_PART_NORM_LATENT, layer, true, 1e-6, raw + i * s->d_head, 1, latent,
                     k + rope);
        for (size_t j = 0; j < s->d_head; j++) {
            k[j] = j < rope ? raw[i * s->d_head + latent + j] : k[j];
            v[j] = j < rope ? 0 : k[j];
        }
    }
}

/* Computes s->sum [n][d_model], the sum over heads of W_O W_UV o, with attention output o. */
static inline void ref_latent_output(const ref_state *s, size_t layer)
{
    const size_t wide = (size_t)s->c->d_value, latent = (size_t)s->c->latent;
    double *const up = ref_load(s, KVD_PART_LATENT_UP, false, layer), *const values = ref_doubles(
                                                                          s->n * s->heads * wide);
    for (size_t i = 0; i < s->n * s->heads; i++)
        for (size_t j = 0; j < wide; j++) {
            values[i * wide + j] = 0;
            for (size_t m = 0; m < latent; m++)
                values[i * wide + j] += ref_expand(s, up, i % s->heads, true)[j * latent + m] *
                                        s->o[i * s->d_head + (size_t)s->c->rope_dims + m];
        }
    free(up);
    ref_project(s, KVD_PART_O, layer, values, s->heads * wide, s->d_model, s->sum);
}

static inline void ref_queries_keys_values(const ref_state *s, size_t layer, const double *y)
{
    const size_t width_q = s->heads * s->d_head, width_k = s->kv_heads * s->d_head, n = s->n;
    /* number of heads that are normalised together in Q and in K: all of them, or 1 */
    const size_t at_once_q = s->c->qk_norm_whole ? s->heads : 1,
                 at_once_k = s->c->qk_norm_whole ? s->kv_heads : 1;
    if (s->c->latent) {
        double *const up = ref_load(s, KVD_PART_LATENT_UP, false, layer);
        ref_latent_queries(s, layer, y, up);
        ref_latent_keys(s, layer, y);
        free(up);
        return;
    }
    ref_project(s, KVD_PART_Q, layer, y, s->d_model, width_q, s->q);
    ref_project(s, KVD_PART_K, layer, y, s->d_model, width_k, s->k);
    ref_project(s, KVD_PART_V, layer, y, s->d_model, width_k, s->v);
    ref_norm(s, KVD_PART_NORM_Q, layer, true, s->q, n * s->heads / at_once_q, at_once_q * s->d_head,
             s->q);
    ref_norm(s, KVD_PART_NORM_K, layer, true, s->k, n * s->kv_heads / at_once_k,
             at_once_k * s->d_head, s->k);
}

static inline void ref_attention(const ref_state *s, size_t layer, const double *y,
                                 const forward_ref_out *out)
{
    const size_t width_q = s->heads * s->d_head, width_k = s->kv_heads * s->d_head, n = s->n;
    ref_queries_keys_values(s, layer, y);
    if (out->nudge)
        out->nudge(out->ctx, layer, s->k, s->v);
    ref_hand_out(out->q_pre, layer, s->q, n * width_q);
    ref_hand_out(out->k_pre, layer, s->k, n * width_k);
    ref_rope(s, layer, s->q, s->heads);
    ref_rope(s, layer, s->k, s->kv_heads);
    ref_hand_out(out->q, layer, s->q, n * width_q);
    ref_hand_out(out->k, layer, s->k, n * width_k);
    ref_hand_out(out->v, layer, s->v, n * width_k);
    ref_attend(s, layer);
    ref_hand_out(out->o, layer, s->o, n * width_q);
}

static inline double ref_activate(kvd_activation a, double gate, double up)
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

/* Adds the output s->sum of an attention or feed-forward block to the residual stream s->x. In some
 * model families, the output is first normalised by the norm `part`. */
static inline void ref_add_block(const ref_state *s, kvd_part part, size_t layer)
{
    if (s->c->order == KVD_ORDER_AROUND || s->c->order == KVD_ORDER_BRANCH)
        ref_model_norm(s, part, layer, s->sum, s->sum);
    for (size_t i = 0; i < s->n * s->d_model; i++)
        s->x[i] += s->sum[i];
}

static inline void ref_add_attention(const ref_state *s, size_t layer)
{
    if (s->c->latent)
        ref_latent_output(s, layer);
    else
        ref_project(s, KVD_PART_O, layer, s->o, s->heads * s->d_head, s->d_model, s->sum);
    ref_add_block(s, KVD_PART_NORM_O, layer);
}

static inline double ref_clamped(const kvd_config *c, double gate, double up)
{
    const double g = fmin(gate, c->expert_limit),
                 u = fmax(-c->expert_limit, fmin(up, c->expert_limit));
    return g / (1 + exp(-c->expert_alpha * g)) * (u + 1);
}

/* Computes the output s->sum [n][d_model] of a feed-forward block. `gate` names its gate weight;
 * the up and down weights follow it in the enum. */
static inline void ref_feed_forward(const ref_state *s, size_t layer, kvd_part gate,
                                    const double *y, size_t width)
{
    const kvd_part up = (kvd_part)(gate + 1), down = (kvd_part)(gate + 2);
    if (kvd_config_gated(s->c))
        ref_project(s, gate, layer, y, s->d_model, width, s->gate);
    ref_project(s, up, layer, y, s->d_model, width, s->up);
    for (size_t i = 0; i < s->n * width; i++)
        s->up[i] = s->c->expert_limit > 0 && gate != KVD_PART_GATE
                       ? ref_clamped(s->c, s->gate[i], s->up[i])
                       : ref_activate(s->c->activation, s->gate[i], s->up[i]);
    ref_project(s, down, layer, s->up, width, s->d_model, s->sum);
}

/* Returns the rank of x[i] when x is sorted in descending order: 0 for the largest. Equal values
 * keep their order. */
static inline size_t ref_rank_of(const double *x, size_t n, size_t i)
{
    size_t before = 0;
    for (size_t j = 0; j < n; j++)
        before += x[j] > x[i] || (j < i && x[j] >= x[i]);
    return before;
}

/* Computes the weights p [n_experts] of a token's experts from router logits z and biases b. Only
 * the best experts in the best groups of experts get nonzero weights. */
static inline void ref_route_groups(const kvd_config *c, const double *z, const double *b,
                                    double *p)
{
    const size_t n = (size_t)c->n_experts, groups = (size_t)c->expert_groups, each = n / groups;
    double value[KVD_CONFIG_EXPERTS], group[KVD_CONFIG_EXPERTS] = {0}, all = 0, sum = 0;
    for (size_t e = 0; e < n; e++)
        all += exp(z[e] - z[0]);
    for (size_t e = 0; e < n; e++) {
        p[e] = c->route_sigmoid ? 1 / (1 + exp(-z[e])) : exp(z[e] - z[0]) / all;
        value[e] = p[e] + (b ? b[e] : 0);
    }
    for (size_t e = 0; e < n; e++)
        if (ref_rank_of(value + e / each * each, each, e % each) < (c->route_sigmoid ? 2 : 1))
            group[e / each] += value[e];
    for (size_t e = 0; e < n; e++)
        if (ref_rank_of(group, groups, e / each) >= (size_t)c->groups_chosen)
            value[e] = -INFINITY;
    for (size_t e = 0; e < n; e++) {
        p[e] = ref_rank_of(value, n, e) < (size_t)c->n_chosen ? p[e] : 0;
        sum += p[e];
    }
    for (size_t e = 0; e < n; e++)
        p[e] *= c->expert_scale / (c->chosen_add_up ? sum : 1);
}

/* Computes for each token the factors p [n][n_experts] of its routed experts, 0 for experts not
 * chosen. */
static inline void ref_route(const ref_state *s, size_t layer, const double *y, double *p)
{
    const size_t experts = (size_t)s->c->n_experts;
    double *const z = ref_doubles(s->n * experts), *const bias = ref_load(s, KVD_PART_ROUTER_BIAS,
                                                                          false, layer);
    ref_project(s, KVD_PART_ROUTER, layer, y, s->d_model, experts, z);
    for (size_t i = 0; i < s->n; i++) {
        if (s->c->expert_groups) {
            ref_route_groups(s->c, z + i * experts, bias, p + i * experts);
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
    free(bias);
}

static inline void ref_add_experts(const ref_state *s, size_t layer, const double *y)
{
    const size_t experts = (size_t)s->c->n_experts, d = s->d_model;
    ref_state of = *s;
    double *const p = ref_doubles(s->n * experts);
    ref_route(s, layer, y, p);
    for (; of.expert < s->c->n_experts; of.expert++) {
        ref_feed_forward(&of, layer, KVD_PART_EXPERT_GATE, y, (size_t)s->c->d_expert);
        for (size_t i = 0; i < s->n * d; i++)
            s->x[i] += p[i / d * experts + (size_t)of.expert] * s->sum[i];
    }
    if (!s->c->d_shared)
        return;
    double *const scale = ref_load(s, KVD_PART_SHARED_SCALE, false, layer);
    ref_feed_forward(s, layer, KVD_PART_SHARED_GATE, y, (size_t)s->c->d_shared);
    for (size_t i = 0; i < s->n; i++) {
        double z = 0;
        for (size_t j = 0; scale && j < d; j++)
            z += scale[j] * y[i * d + j];
        for (size_t j = 0; j < d; j++)
            s->x[i * d + j] += s->sum[i * d + j] * (scale ? 1 / (1 + exp(-z)) : 1);
    }
    free(scale);
}

static inline void ref_add_feed_forward(const ref_state *s, size_t layer, const double *y)
{
    if (kvd_config_routed(s->c, (int)layer)) {
        ref_add_experts(s, layer, y);
        return;
    }
    ref_feed_forward(s, layer, KVD_PART_GATE, y, s->d_ffn);
    ref_add_block(s, KVD_PART_NORM_DOWN, layer);
}

static inline void ref_run_layer(const ref_state *s, size_t layer, const forward_ref_out *out)
{
    const kvd_part first = KVD_PART_NORM_ATTENTION,
                   second = s->c->shared_norm ? first : KVD_PART_NORM_FFN;
    switch (s->c->order) {
    case KVD_ORDER_BRANCH:
        ref_attention(s, layer, s->x, out);
        ref_add_attention(s, layer);
        ref_add_feed_forward(s, layer, s->x);
        break;
    case KVD_ORDER_AROUND:
    case KVD_ORDER_BEFORE:
        ref_model_norm(s, first, layer, s->x, s->y);
        ref_attention(s, layer, s->y, out);
        ref_add_attention(s, layer);
        ref_model_norm(s, second, layer, s->x, s->y);
        ref_add_feed_forward(s, layer, s->y);
        break;
    case KVD_ORDER_AFTER:
        ref_attention(s, layer, s->x, out);
        ref_add_attention(s, layer);
        ref_model_norm(s, first, layer, s->x, s->x);
        ref_add_feed_forward(s, layer, s->x);
        ref_model_norm(s, second, layer, s->x, s->x);
        break;
    case KVD_ORDER_PARALLEL:
        ref_model_norm(s, first, layer, s->x, s->y);
        ref_attention(s, layer, s->y, out);
        ref_model_norm(s, second, layer, s->x, s->y);
        ref_add_attention(s, layer);
        ref_add_feed_forward(s, layer, s->y);
        break;
    }
}

/* Computes the residual stream before the first layer: token embeddings, projected if they are
 * narrower, plus learned position embeddings if the model has these. */
static inline void ref_embed(const ref_state *s, const uint32_t *id)
{
    double *const table = ref_load(s, KVD_PART_EMBEDDING, false, 0), *const positions = ref_load(
                                                                         s, KVD_PART_POSITIONS,
                                                                         false, 0);
    for (size_t i = 0; i < s->n; i++)
        memcpy(s->e + i * s->d_embed, table + id[i] * s->d_embed, s->d_embed * sizeof *s->e);
    if (s->d_embed == s->d_model)
        memcpy(s->x, s->e, s->n * s->d_model * sizeof *s->x);
    else
        ref_project(s, KVD_PART_PROJECT_IN, 0, s->e, s->d_embed, s->d_model, s->x);
    for (size_t i = 0; s->c->embed_scale > 0 && i < s->n * s->d_model; i++)
        s->x[i] *= (double)(float)s->c->embed_scale;
    for (size_t i = 0; positions && i < s->n * s->d_model; i++)
        s->x[i] += positions[2 * s->d_model + i];
    free(table);
    free(positions);
}

static inline void ref_head(const ref_state *s, const double *y, double *logits)
{
    const size_t vocab = (size_t)s->c->vocab_size;
    if (s->d_embed == s->d_model)
        memcpy(s->e, y, s->n * s->d_model * sizeof *s->e);
    else
        ref_project(s, KVD_PART_PROJECT_OUT, 0, y, s->d_model, s->d_embed, s->e);
    ref_project(s, s->c->tied_head ? KVD_PART_EMBEDDING : KVD_PART_HEAD, 0, s->e, s->d_embed, vocab,
                logits);
    for (size_t i = 0; i < s->n * vocab; i++)
        logits[i] = ref_cap(logits[i], s->c->logit_softcap);
}

static inline void forward_ref(const kvd_checkpoint *checkpoint, const uint32_t *id, size_t n,
                               const forward_ref_out *out)
{
    const kvd_config *const c = kvd_checkpoint_config(checkpoint);
    const int expert = c->d_expert > c->d_shared ? c->d_expert : c->d_shared;
    const size_t wide = n * (size_t)(c->d_ffn > expert ? c->d_ffn : expert),
                 d = n * (size_t)c->d_model, d_embed = (size_t)kvd_config_d_embed(c),
                 width_q = n * (size_t)c->n_heads * (size_t)c->d_head,
                 width_k = n * (size_t)c->n_kv_heads * (size_t)c->d_head;
    const ref_state s = {.checkpoint = checkpoint,
                         .c = c,
                         .n = n,
                         .d_model = (size_t)c->d_model,
                         .d_ffn = (size_t)c->d_ffn,
                         .d_embed = d_embed,
                         .d_head = (size_t)c->d_head,
                         .heads = (size_t)c->n_heads,
                         .kv_heads = (size_t)c->n_kv_heads,
                         .x = ref_doubles(d),
                         .y = ref_doubles(d),
                         .sum = ref_doubles(d),
                         .q = ref_doubles(width_q),
                         .o = ref_doubles(width_q),
                         .k = ref_doubles(width_k),
                         .v = ref_doubles(width_k),
                         .gate = ref_doubles(wide),
                         .up = ref_doubles(wide),
                         .e = ref_doubles(n * d_embed)};
    ref_embed(&s, id);
    for (size_t l = 0; l < (size_t)c->n_layers; l++)
        ref_run_layer(&s, l, out);
    ref_model_norm(&s, KVD_PART_NORM_FINAL, 0, s.x, s.y);
    if (out->logits)
        ref_head(&s, s.y, out->logits);
}

#endif
