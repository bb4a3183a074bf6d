#include "model/forward_ref.h"

#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Written from the definitions (Touvron et al. 2023; Su et al. 2021; Zhang & Sennrich 2019;
 * Shazeer 2020) and from nothing in blocks.c, attention.c or forward.c.
 */

typedef struct {
    const kvd_checkpoint *checkpoint;
    const kvd_config *c;
    size_t n, d_model, d_ffn, d_head, heads, kv_heads;
    double *x;             /* [n][d_model]            residual stream  */
    double *y;             /* [n][d_model]            normed           */
    double *q, *k, *v, *o; /* [n][heads or kv_heads][d_head]           */
    double *gate, *up;     /* [n][d_ffn]                               */
    double *sum;           /* [n][d_model]            branch output    */
} state;

/* A tensor in float64; the caller frees it. NULL with *err. */
static double *load(const state *s, const char *name, size_t rows, size_t cols, kvd_err *err)
{
    kvd_tensor t;
    if (kvd_checkpoint_tensor(s->checkpoint, name, rows, cols, &t, err))
        return NULL;
    float *narrow = malloc(t.n * sizeof *narrow);
    double *wide = malloc(t.n * sizeof *wide);
    if (!narrow || !wide) {
        kvd_no_memory(err, name, t.n * (sizeof *narrow + sizeof *wide));
        free(narrow);
        free(wide);
        return NULL;
    }
    kvd_to_f32(t.dtype, t.data, narrow, t.n);
    for (size_t i = 0; i < t.n; i++)
        wide[i] = (double)narrow[i];
    free(narrow);
    return wide;
}

/* y = x W^T for the tensor `name`, W [out][in]. */
static int project(const state *s, const char *name, const double *x, size_t in, size_t out, double *y,
                   kvd_err *err)
{
    double *w = load(s, name, out, in, err);
    if (!w)
        return -1;
    for (size_t i = 0; i < s->n; i++)
        for (size_t r = 0; r < out; r++) {
            double sum = 0;
            for (size_t j = 0; j < in; j++)
                sum += x[i * in + j] * w[r * in + j];
            y[i * out + r] = sum;
        }
    free(w);
    return 0;
}

/* y_i = x_i / rms(x_i) * gain. */
static int norm(const state *s, const char *name, const double *x, double *y, kvd_err *err)
{
    const size_t d = s->d_model;
    double *gain = load(s, name, d, 0, err);
    if (!gain)
        return -1;
    for (size_t i = 0; i < s->n; i++) {
        double square = 0;
        for (size_t j = 0; j < d; j++)
            square += x[i * d + j] * x[i * d + j];
        const double rms = sqrt(square / (double)d + s->c->norm_eps);
        for (size_t j = 0; j < d; j++)
            y[i * d + j] = x[i * d + j] / rms * gain[j];
    }
    free(gain);
    return 0;
}

/* Angle by which pair i turns per position. */
static double turn(const kvd_config *c, size_t i)
{
    const double omega = exp(-log(c->rope_theta) * (double)i / ((double)c->d_head / 2));
    if (c->rope_scaling == KVD_ROPE_LINEAR)
        return omega / c->rope_factor;
    if (c->rope_scaling == KVD_ROPE_LLAMA3) {
        /* Full turns made within the original context: few of them are slowed down by the
         * factor, many are left alone, linear in their number between. */
        const double turns = (double)c->rope_original_positions * omega / (2 * M_PI);
        double keep =
            (turns - c->rope_low_freq_factor) / (c->rope_high_freq_factor - c->rope_low_freq_factor);
        keep = fmin(1, fmax(0, keep));
        return omega * (keep + (1 - keep) / c->rope_factor);
    }
    return omega;
}

/* Pair i of a head is a complex number; position m multiplies it by exp(j m omega_i). */
static void rope(const state *s, double *x, size_t heads)
{
    const size_t half = s->d_head / 2;
    const int interleaved = s->c->rope_layout == KVD_ROPE_INTERLEAVED;
    for (size_t m = 0; m < s->n; m++)
        for (size_t h = 0; h < heads; h++)
            for (size_t i = 0; i < half; i++) {
                double *head = x + (m * heads + h) * s->d_head;
                double *re = interleaved ? head + 2 * i : head + i;
                double *im = interleaved ? head + 2 * i + 1 : head + half + i;
                const double complex z = (*re + I * *im) * cexp(I * (double)m * turn(s->c, i));
                *re = creal(z);
                *im = cimag(z);
            }
}

/* o_i = sum over t <= i of softmax_t(q_i . k_t / sqrt(d_head)) v_t, each head with its KV head. */
static int attend(const state *s, kvd_err *err)
{
    const size_t n = s->n, d = s->d_head, group = s->heads / s->kv_heads;
    double *p = malloc(n * sizeof *p);
    if (!p)
        return kvd_no_memory(err, "attention probabilities", n * sizeof *p);
    for (size_t h = 0; h < s->heads; h++)
        for (size_t i = 0; i < n; i++) {
            double top = -INFINITY, sum = 0;
            for (size_t t = 0; t <= i; t++) {
                p[t] = 0;
                for (size_t j = 0; j < d; j++)
                    p[t] += s->q[(i * s->heads + h) * d + j] * s->k[(t * s->kv_heads + h / group) * d + j];
                p[t] /= sqrt((double)d);
                top = fmax(top, p[t]);
            }
            for (size_t t = 0; t <= i; t++) {
                p[t] = exp(p[t] - top);
                sum += p[t];
            }
            for (size_t j = 0; j < d; j++) {
                double value = 0;
                for (size_t t = 0; t <= i; t++)
                    value += p[t] / sum * s->v[(t * s->kv_heads + h / group) * d + j];
                s->o[(i * s->heads + h) * d + j] = value;
            }
        }
    free(p);
    return 0;
}

/* Copies one layer's numbers to where the caller wants all layers, if he does. */
static void hand_out(double *all, size_t layer, const double *one, size_t n)
{
    if (all)
        memcpy(all + layer * n, one, n * sizeof *one);
}

static int run_layer(const state *s, size_t layer, const kvd_forward_ref_out *out, kvd_err *err)
{
    const size_t width_q = s->heads * s->d_head, width_k = s->kv_heads * s->d_head, n = s->n;
    char name[9][96];
    static const char *const part[9] = {"input_layernorm",  "self_attn.q_proj", "self_attn.k_proj",
                                        "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
                                        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    for (size_t p = 0; p < 9; p++)
        (void)snprintf(name[p], sizeof name[p], "model.layers.%zu.%s.weight", layer, part[p]);

    if (norm(s, name[0], s->x, s->y, err) || project(s, name[1], s->y, s->d_model, width_q, s->q, err) ||
        project(s, name[2], s->y, s->d_model, width_k, s->k, err) ||
        project(s, name[3], s->y, s->d_model, width_k, s->v, err))
        return -1;
    hand_out(out->q_pre, layer, s->q, n * width_q);
    hand_out(out->k_pre, layer, s->k, n * width_k);
    rope(s, s->q, s->heads);
    rope(s, s->k, s->kv_heads);
    hand_out(out->q, layer, s->q, n * width_q);
    hand_out(out->k, layer, s->k, n * width_k);
    hand_out(out->v, layer, s->v, n * width_k);
    if (attend(s, err))
        return -1;
    hand_out(out->o, layer, s->o, n * width_q);
    if (project(s, name[4], s->o, width_q, s->d_model, s->sum, err))
        return -1;
    for (size_t i = 0; i < n * s->d_model; i++)
        s->x[i] += s->sum[i];

    if (norm(s, name[5], s->x, s->y, err) || project(s, name[6], s->y, s->d_model, s->d_ffn, s->gate, err) ||
        project(s, name[7], s->y, s->d_model, s->d_ffn, s->up, err))
        return -1;
    for (size_t i = 0; i < n * s->d_ffn; i++)
        s->gate[i] = s->gate[i] / (1 + exp(-s->gate[i])) * s->up[i];
    if (project(s, name[8], s->gate, s->d_ffn, s->d_model, s->sum, err))
        return -1;
    for (size_t i = 0; i < n * s->d_model; i++)
        s->x[i] += s->sum[i];
    return 0;
}

static int embed(const state *s, const uint32_t *id, kvd_err *err)
{
    double *table = load(s, "model.embed_tokens.weight", (size_t)s->c->vocab_size, s->d_model, err);
    if (!table)
        return -1;
    for (size_t i = 0; i < s->n; i++)
        memcpy(s->x + i * s->d_model, table + id[i] * s->d_model, s->d_model * sizeof *s->x);
    free(table);
    return 0;
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
               .d_head = (size_t)c->d_head,
               .heads = (size_t)c->n_heads,
               .kv_heads = (size_t)c->n_kv_heads};
    if (n == 0 || n > (size_t)c->max_positions)
        return kvd_fail(err, "a sequence of %zu tokens, the model was made for 1 .. %d", n, c->max_positions);
    for (size_t i = 0; i < n; i++)
        if (id[i] >= (uint32_t)c->vocab_size)
            return kvd_fail(err, "position %zu: token id %u is not below the vocabulary size %d", i,
                            (unsigned)id[i], c->vocab_size);

    const size_t width_q = s.heads * s.d_head, width_k = s.kv_heads * s.d_head;
    const size_t per_row = 3 * s.d_model + 2 * width_q + 2 * width_k + 2 * s.d_ffn;
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
    s.up = s.gate + n * s.d_ffn;

    if (embed(&s, id, err))
        goto done;
    for (size_t l = 0; l < (size_t)c->n_layers; l++)
        if (run_layer(&s, l, out, err))
            goto done;
    if (norm(&s, "model.norm.weight", s.x, s.y, err))
        goto done;
    if (out->logits && project(&s, c->tied_head ? "model.embed_tokens.weight" : "lm_head.weight", s.y,
                               s.d_model, (size_t)c->vocab_size, out->logits, err))
        goto done;
    status = 0;
done:
    free(all);
    return status;
}
