#include "model/pass/layer_back.h"

#include <string.h>

#include "model/pass/blocks.h"

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

static void project(const float *x, const kvd_layer_weights *w, kvd_part part, size_t rows,
                    size_t in, size_t out, float *y)
{
    kvd_linear(x, w->w[part], rows, in, out, y, 0);
    if (w->b[part])
        kvd_add_bias(y, w->b[part], rows, out);
}

/* Recomputes gate, up and the output of the activation, [rows][d_ffn] each. */
static void activate(const kvd_config *c, const kvd_layer_weights *w, const float *in, size_t rows,
                     float *gate, float *up)
{
    const size_t d = (size_t)c->d_model, ffn = (size_t)c->d_ffn;
    if (kvd_config_gated(c))
        project(in, w, KVD_PART_GATE, rows, d, ffn, gate);
    project(in, w, KVD_PART_UP, rows, d, ffn, up);
}

/*
 * Computes din [rows][d_model], the gradient of F(in) with respect to `in`, from dy, the gradient
 * with respect to F(in); scratch [rows][3 d_ffn].
 */
static void feed_forward_back(const kvd_config *c, const kvd_layer_weights *w, const float *in,
                              size_t rows, const float *dy, float *scratch, float *din)
{
    const size_t d = (size_t)c->d_model, ffn = (size_t)c->d_ffn;
    float *const gate = scratch, *const up = gate + rows * ffn, *const da = up + rows * ffn;
    activate(c, w, in, rows, gate, up);
    kvd_linear_back(dy, w->w[KVD_PART_DOWN], rows, ffn, d, da, 0);
    if (kvd_config_gated(c)) {
        (c->activation == KVD_SWIGLU ? kvd_swiglu_back : kvd_geglu_tanh_back)(gate, up, rows * ffn,
                                                                              da);
        kvd_linear_back(gate, w->w[KVD_PART_GATE], rows, d, ffn, din, 0);
    } else {
        kvd_activation_back(c->activation, up, rows * ffn, da);
    }
    kvd_linear_back(da, w->w[KVD_PART_UP], rows, d, ffn, din, kvd_config_gated(c));
}

/* Computes y [rows][d_model] = F(in); scratch [rows][2 d_ffn]. */
static void feed_forward(const kvd_config *c, const kvd_layer_weights *w, const float *in,
                         size_t rows, float *scratch, float *y)
{
    const size_t d = (size_t)c->d_model, ffn = (size_t)c->d_ffn;
    float *const gate = scratch, *up = gate + rows * ffn;
    activate(c, w, in, rows, gate, up);
    if (kvd_config_gated(c)) {
        (c->activation == KVD_SWIGLU ? kvd_swiglu : kvd_geglu_tanh)(gate, up, rows * ffn);
        up = gate;
    } else if (c->activation == KVD_GELU) {
        kvd_gelu(up, rows * ffn);
    } else if (c->activation == KVD_GELU_TANH) {
        kvd_gelu_tanh(up, rows * ffn);
    } else {
        kvd_relu(up, rows * ffn);
    }
    project(up, w, KVD_PART_DOWN, rows, ffn, d, y);
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

/* Computes x1 [rows][d_model] = x + O(o). */
static void add_attention(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                          const float *o, size_t rows, float *x1)
{
    const size_t d = (size_t)c->d_model;
    project(o, w, KVD_PART_O, rows, (size_t)c->n_heads * (size_t)c->d_head, d, x1);
    add(x1, x, rows * d);
}

/*
 * Computes kvd_layer_behind_back for the orders that have a norm after each branch: x1 = x +
 * out(O(o)), y = norm'(x1) or x1, and the layer's output is x1 + out'(F(y)).
 */
static void behind_branch_norms_back(const kvd_config *c, const kvd_layer_weights *w,
                                     const float *x, const float *o, size_t rows, float *scratch,
                                     float *dx, float *d_o)
{
    const size_t d = (size_t)c->d_model, n = rows * d,
                 width_q = (size_t)c->n_heads * (size_t)c->d_head;
    const bool around = c->order == KVD_ORDER_AROUND;
    float *const branch = scratch, *const x1 = branch + n, *const y = x1 + n, *const dy = y + n,
                 *const d_branch = dy + n, *const ffn = d_branch + n;
    project(o, w, KVD_PART_O, rows, width_q, d, branch);
    normalise(c, w, KVD_PART_NORM_O, branch, rows, x1);
    add(x1, x, n);
    if (around)
        normalise(c, w, KVD_PART_NORM_FFN, x1, rows, y);
    else
        memcpy(y, x1, n * sizeof *y);
    feed_forward(c, w, y, rows, ffn, branch);
    clear(d_branch, n);
    kvd_layer_normalise_back(c, branch, w->w[KVD_PART_NORM_DOWN], rows, dx, d_branch);
    feed_forward_back(c, w, y, rows, d_branch, ffn, dy);
    if (around)
        kvd_layer_normalise_back(c, x1, w->w[KVD_PART_NORM_FFN], rows, dy, dx);
    else
        add(dx, dy, n);
    project(o, w, KVD_PART_O, rows, width_q, d, branch);
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
    case KVD_ORDER_BEFORE: /* x1 = x + O(o); out = x1 + F(norm'(x1)) */
        add_attention(c, w, x, o, rows, x1);
        normalise(c, w, second, x1, rows, y);
        feed_forward_back(c, w, y, rows, dx, ffn, dy);
        kvd_layer_normalise_back(c, x1, w->w[second], rows, dy, dx);
        kvd_linear_back(dx, w->w[KVD_PART_O], rows, width_q, d, d_o, 0);
        break;
    case KVD_ORDER_PARALLEL: /* out = x + O(o) + F(norm'(x)) */
        kvd_linear_back(dx, w->w[KVD_PART_O], rows, width_q, d, d_o, 0);
        normalise(c, w, second, x, rows, y);
        feed_forward_back(c, w, y, rows, dx, ffn, dy);
        kvd_layer_normalise_back(c, x, w->w[second], rows, dy, dx);
        break;
    case KVD_ORDER_AFTER: /* y = norm(x1), x1 = x + O(o); out = norm'(s), s = y + F(y) */
        add_attention(c, w, x, o, rows, x1);
        normalise(c, w, first, x1, rows, y);
        feed_forward(c, w, y, rows, ffn, s);
        add(s, y, n);
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

/*
 * Computes raw [rows][heads][d_head], the projection of `in`, and d_raw, the gradient with respect
 * to it. dy is the gradient with respect to the output of the norm that follows.
 */
static void norm_of_heads_back(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                               kvd_part gain, const float *in, size_t rows, size_t heads,
                               const float *dy, float *raw, float *d_raw)
{
    const size_t d_head = (size_t)c->d_head, at_once = c->qk_norm_whole ? heads : 1;
    project(in, w, part, rows, (size_t)c->d_model, heads * d_head, raw);
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
