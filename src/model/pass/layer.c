#include "model/pass/layer.h"

#include <string.h>

#include "model/checkpoint/streaming.h"
#include "model/pass/blocks.h"
#include "model/pass/latent.h"

enum { CONVERT_CHUNK = 65536 };

int kvd_layer_find(const kvd_checkpoint *c, int layer, kvd_weight *part, kvd_err *err)
{
    for (int p = 0; p < KVD_LAYER_WEIGHTS; p++)
        if (kvd_weight_find(c, (kvd_part)(p / 2), p % 2, layer, &part[p], err))
            return -1;
    return 0;
}

size_t kvd_layer_buffer_size(const kvd_weight *part)
{
    size_t n = 0;
    for (int p = 0; p < KVD_LAYER_WEIGHTS; p++)
        n += kvd_weight_in_place(&part[p]) ? 0 : part[p].n;
    return n;
}

void kvd_layer_load(const kvd_weight *part, float *buffer, kvd_layer_weights *w)
{
    float *to[KVD_LAYER_WEIGHTS];
    for (int p = 0; p < KVD_LAYER_WEIGHTS; p++) {
        const float *in_place = kvd_weight_in_place(&part[p]);
        to[p] = in_place || part[p].n == 0 ? NULL : buffer;
        (p % 2 ? w->b : w->w)[p / 2] = to[p] ? to[p] : in_place;
        buffer += to[p] ? part[p].n : 0;
    }
#pragma omp parallel
    for (int p = 0; p < KVD_LAYER_WEIGHTS; p++) {
        if (!to[p])
            continue;
        const size_t n = part[p].n;
#pragma omp for schedule(dynamic) nowait
        for (size_t i = 0; i < n; i += CONVERT_CHUNK)
            kvd_weight_read(&part[p], i, n - i < CONVERT_CHUNK ? n - i : CONVERT_CHUNK, to[p] + i);
    }
}

void kvd_layer_drop(const kvd_weight *part, bool in_place)
{
    for (int p = 0; p < KVD_LAYER_WEIGHTS; p++)
        if ((kvd_weight_in_place(&part[p]) != NULL) == in_place)
            kvd_tensor_drop(&part[p].tensor);
}

void kvd_layer_normalise(const kvd_config *c, const float *x, const float *gain, const float *bias,
                         size_t rows, float *y)
{
    if (c->norm == KVD_NORM_LAYER)
        kvd_layer_norm(x, gain, bias, c->norm_eps, rows, (size_t)c->d_model, y);
    else
        kvd_rms_norm(x, gain, c->norm_eps, rows, (size_t)c->d_model, y);
}

static void normalise(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                      const float *x, size_t rows, float *y)
{
    kvd_layer_normalise(c, x, w->w[part], w->b[part], rows, y);
}

void kvd_layer_project(const float *x, const kvd_layer_weights *w, kvd_part part, size_t rows,
                       size_t in, size_t out, float *y, int add)
{
    kvd_linear(x, w->w[part], rows, in, out, y, add);
    if (w->b[part])
        kvd_add_bias(y, w->b[part], rows, out);
}

void kvd_layer_rope(const kvd_config *c, const kvd_layer_weights *w, size_t rows,
                    const kvd_layer_qkv *out)
{
    const size_t heads = (size_t)c->n_heads, kv_heads = (size_t)c->n_kv_heads,
                 d_head = (size_t)c->d_head;
    if (c->qk_norm) {
        const size_t q = c->qk_norm_whole ? heads : 1, k = c->qk_norm_whole ? kv_heads : 1;
        kvd_rms_norm(out->q, w->w[KVD_PART_NORM_Q], c->norm_eps, rows * heads / q, q * d_head,
                     out->q);
        kvd_rms_norm(out->k, w->w[KVD_PART_NORM_K], c->norm_eps, rows * kv_heads / k, k * d_head,
                     out->k);
    }
    if (out->q_pre)
        memcpy(out->q_pre, out->q, rows * heads * d_head * sizeof *out->q);
    if (out->k_pre)
        memcpy(out->k_pre, out->k, rows * kv_heads * d_head * sizeof *out->k);
    if (c->positions == KVD_POSITIONS_ROPE) {
        kvd_rope_apply(c, out->cosine, out->sine, out->rope_row, rows, heads, out->q);
        kvd_rope_apply(c, out->cosine, out->sine, out->rope_row, rows, kv_heads, out->k);
    }
}

void kvd_layer_before_attention(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                                size_t rows, float *scratch, const kvd_layer_qkv *out)
{
    const size_t d = (size_t)c->d_model, width_q = (size_t)c->n_heads * (size_t)c->d_head,
                 width_k = (size_t)c->n_kv_heads * (size_t)c->d_head;

    if (kvd_config_norms_inputs(c)) {
        normalise(c, w, KVD_PART_NORM_ATTENTION, x, rows, scratch);
        x = scratch;
    }
    if (out->input)
        memcpy(out->input, x, rows * d * sizeof *x);
    if (c->latent) {
        kvd_latent_project(c, w, x, rows, scratch + rows * d, out);
    } else {
        kvd_layer_project(x, w, KVD_PART_Q, rows, d, width_q, out->q, 0);
        kvd_layer_project(x, w, KVD_PART_K, rows, d, width_k, out->k, 0);
        kvd_layer_project(x, w, KVD_PART_V, rows, d, width_k, out->v, 0);
    }
    kvd_layer_rope(c, w, rows, out);
}

void kvd_layer_feed_forward(const kvd_config *c, const kvd_layer_weights *w, const float *in,
                            size_t rows, float *gate, float *up, float *x)
{
    const size_t d = (size_t)c->d_model, ffn = (size_t)c->d_ffn;
    float *const hidden = kvd_config_gated(c) ? gate : up;
    if (kvd_config_gated(c))
        kvd_layer_project(in, w, KVD_PART_GATE, rows, d, ffn, gate, 0);
    kvd_layer_project(in, w, KVD_PART_UP, rows, d, ffn, up, 0);
    kvd_activate(c->activation, hidden, up, rows * ffn);
    kvd_layer_project(hidden, w, KVD_PART_DOWN, rows, ffn, d, x, 1);
}

size_t kvd_layer_scratch(const kvd_config *c)
{
    const size_t d = (size_t)c->d_model, before = d + kvd_latent_scratch(c),
                 after = (kvd_config_norms_branches(c) ? 2 * d : d) + 2 * (size_t)c->d_ffn,
                 values = (size_t)c->n_heads * (size_t)c->d_value;
    const size_t widest = before > after ? before : after;
    return widest > values ? widest : values;
}

void kvd_layer_output(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                      float *scratch, float *y, int add)
{
    size_t width = (size_t)c->n_heads * (size_t)c->d_head;
    if (c->latent) {
        kvd_latent_values(c, w, o, rows, scratch);
        width = (size_t)c->n_heads * (size_t)c->d_value;
        o = scratch;
    }
    kvd_layer_project(o, w, KVD_PART_O, rows, width, (size_t)c->d_model, y, add);
}

void kvd_layer_add_branch(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                          size_t rows, float *out, float *x)
{
    normalise(c, w, part, out, rows, out);
    for (size_t i = 0; i < rows * (size_t)c->d_model; i++)
        x[i] += out[i];
}

static void behind_with_branch_norms(const kvd_config *c, const kvd_layer_weights *w,
                                     const float *o, size_t rows, float *scratch, float *x)
{
    const size_t d = (size_t)c->d_model, width_q = (size_t)c->n_heads * (size_t)c->d_head;
    float *const normed = scratch, *const out = normed + rows * d, *const gate = out + rows * d,
                 *const up = gate + rows * (size_t)c->d_ffn;
    kvd_layer_project(o, w, KVD_PART_O, rows, width_q, d, out, 0);
    kvd_layer_add_branch(c, w, KVD_PART_NORM_O, rows, out, x);
    if (c->order == KVD_ORDER_AROUND)
        normalise(c, w, KVD_PART_NORM_FFN, x, rows, normed);
    memset(out, 0, rows * d * sizeof *out);
    kvd_layer_feed_forward(c, w, c->order == KVD_ORDER_AROUND ? normed : x, rows, gate, up, out);
    kvd_layer_add_branch(c, w, KVD_PART_NORM_DOWN, rows, out, x);
}

void kvd_layer_behind_attention(const kvd_config *c, const kvd_layer_weights *w, const float *o,
                                size_t rows, float *scratch, float *x)
{
    const size_t d = (size_t)c->d_model;
    const kvd_part second = c->shared_norm ? KVD_PART_NORM_ATTENTION : KVD_PART_NORM_FFN;
    float *const normed = scratch, *const gate = normed + rows * d,
                 *const up = gate + rows * (size_t)c->d_ffn;

    if (kvd_config_norms_branches(c)) {
        behind_with_branch_norms(c, w, o, rows, scratch, x);
        return;
    }
    if (c->order == KVD_ORDER_PARALLEL)
        normalise(c, w, second, x, rows, normed);
    kvd_layer_output(c, w, o, rows, scratch, x, 1);
    if (c->order == KVD_ORDER_BEFORE)
        normalise(c, w, second, x, rows, normed);
    if (c->order == KVD_ORDER_AFTER)
        normalise(c, w, KVD_PART_NORM_ATTENTION, x, rows, x);
    kvd_layer_feed_forward(c, w, c->order == KVD_ORDER_AFTER ? x : normed, rows, gate, up, x);
    if (c->order == KVD_ORDER_AFTER)
        normalise(c, w, second, x, rows, x);
}
