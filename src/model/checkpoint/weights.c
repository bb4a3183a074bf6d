#include "model/checkpoint/weights.h"

#include <stdint.h>
#include <string.h>

#include "common/quantise.h"

enum { CHUNK = 65536 };

static bool is_matrix_of_layers(kvd_part part)
{
    return part == KVD_PART_Q || part == KVD_PART_K || part == KVD_PART_V || part == KVD_PART_O ||
           part == KVD_PART_GATE || part == KVD_PART_UP || part == KVD_PART_DOWN ||
           part == KVD_PART_SHARED_GATE || part == KVD_PART_SHARED_UP ||
           part == KVD_PART_SHARED_DOWN || part == KVD_PART_Q_DOWN || part == KVD_PART_LATENT ||
           part == KVD_PART_LATENT_UP || part >= KVD_PART_EXPERT_GATE;
}

/* Returns true if the part is a norm's gain g that the file stores as g - 1, as in Gemma. */
static bool is_plus_one(const kvd_config *c, kvd_part part)
{
    switch (part) {
    case KVD_PART_NORM_ATTENTION:
    case KVD_PART_NORM_Q:
    case KVD_PART_NORM_K:
    case KVD_PART_NORM_O:
    case KVD_PART_NORM_FFN:
    case KVD_PART_NORM_DOWN:
    case KVD_PART_NORM_FINAL:
        return c->norm_plus_one;
    default:
        return false;
    }
}

/* Returns the factor by which weights of this part are multiplied when they are read, or 0 for
 * none. */
static float factor_of(const kvd_config *c, kvd_part part)
{
    if (part == KVD_PART_NORM_FINAL)
        return (float)c->logit_scale;
    return part == KVD_PART_O || part == KVD_PART_DOWN ? (float)c->residual_scale : 0;
}

int kvd_weight_find(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, kvd_weight *w,
                    kvd_err *err)
{
    return kvd_weight_find_expert(c, part, bias, layer, 0, w, err);
}

int kvd_weight_find_expert(const kvd_checkpoint *c, kvd_part part, bool bias, int layer, int expert,
                           kvd_weight *w, kvd_err *err)
{
    kvd_place place;
    memset(w, 0, sizeof *w);
    if (!kvd_expert_place(kvd_checkpoint_config(c), part, bias, layer, expert, &place))
        return 0;
    if (kvd_checkpoint_tensor(c, place.name, place.stored_rows, place.cols, &w->tensor, err))
        return -1;
    w->cols = place.cols ? place.cols : 1;
    w->n = place.rows * w->cols;
    w->first = place.first;
    w->block = place.block;
    w->stride = place.stride;
    /* Adds 1 to the gain of a norm if files of this model store the gain minus 1. Random weights
     * are the gain itself. */
    if (!bias && is_plus_one(kvd_checkpoint_config(c), part) && w->tensor.packing != KVD_RANDOM)
        w->plus = 1;
    w->times = factor_of(kvd_checkpoint_config(c), part);
    if (!bias && is_matrix_of_layers(part))
        w->bits = kvd_checkpoint_weight_bits(c, &w->group);
    return 0;
}

size_t kvd_weight_at(const kvd_weight *w, size_t row, size_t col)
{
    return (w->first + row / w->block * w->stride + row % w->block) * w->cols + col;
}

const void *kvd_weight_stored(const kvd_weight *w, kvd_dtype type)
{
    const kvd_tensor *t = &w->tensor;
    if (w->n == 0 || w->bits || w->plus > 0 || w->times > 0 || t->packing != KVD_PLAIN ||
        t->dtype != type || t->order != KVD_ROWS_IN_ORDER || w->n > w->block * w->cols)
        return NULL;
    return (const unsigned char *)t->data + kvd_weight_at(w, 0, 0) * kvd_dtype_bytes(type);
}

const float *kvd_weight_in_place(const kvd_weight *w)
{
    const void *p = kvd_weight_stored(w, KVD_F32);
    return (uintptr_t)p % sizeof(float) == 0 ? p : NULL;
}

/* Reads n elements of a weight, from element `first` on. */
static void read_piece(const kvd_weight *w, size_t first, size_t n, float *out)
{
    while (n > 0) {
        const size_t row = first / w->cols, col = first % w->cols;
        const size_t left = (w->block - row % w->block) * w->cols - col, now = left < n ? left : n;
        kvd_tensor_read(&w->tensor, kvd_weight_at(w, row, col), now, out);
        for (size_t i = 0; w->plus > 0 && i < now; i++)
            out[i] += w->plus;
        for (size_t i = 0; w->times > 0 && i < now; i++)
            out[i] *= w->times;
        first += now;
        out += now;
        n -= now;
    }
}

static void read_group(const kvd_weight *w, size_t first, size_t n, float *out)
{
    read_piece(w, first, n, out);
    kvd_quantise_group(out, n, 1, w->bits, out);
}

/* Reads n elements of a weight and rounds them to w->bits bits, in whole groups that share a
 * scale. */
static void read_quantised(const kvd_weight *w, size_t first, size_t n, float *out)
{
    float group[KVD_WEIGHT_GROUP];
    while (n > 0) {
        const size_t col = first % w->cols, begin = col / w->group * w->group, before = col - begin;
        const size_t size = w->cols - begin < w->group ? w->cols - begin : w->group;
        const size_t now = size - before < n ? size - before : n;
        if (now == size)
            read_group(w, first, size, out);
        else {
            read_group(w, first - before, size, group);
            memcpy(out, group + before, now * sizeof *out);
        }
        first += now;
        out += now;
        n -= now;
    }
}

void kvd_weight_read(const kvd_weight *w, size_t first, size_t n, float *out)
{
#pragma omp parallel for schedule(static) if (n > CHUNK)
    for (size_t i = 0; i < n; i += CHUNK)
        (w->bits ? read_quantised : read_piece)(w, first + i, n - i < CHUNK ? n - i : CHUNK,
                                                out + i);
}

static double bytes_of(const kvd_weight *w)
{
    if (w->bits) {
        const size_t groups = w->n / w->cols * ((w->cols + w->group - 1) / w->group);
        return ((double)w->n * w->bits + (double)groups * KVD_GROUP_SIDE_BITS) / 8;
    }
    const double scales =
        w->tensor.scales ? (double)w->n / (double)kvd_block_layout_of(w->tensor.packing)->elements
                         : 0;
    return w->tensor.packing == KVD_RANDOM ? 2.0 * (double)w->n
                                           : (double)kvd_tensor_bytes(&w->tensor, w->n) + scales;
}

int kvd_weights_bytes(const kvd_checkpoint *c, double *bytes, kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    *bytes = 0;
    for (int part = 0; part < KVD_N_ALL_PARTS; part++) {
        const int layers = part < KVD_N_PARTS && part >= KVD_N_LAYER_PARTS ? 1 : config->n_layers,
                  experts = part < KVD_N_PARTS ? 1 : config->n_experts;
        if (part == KVD_PART_HEAD && config->tied_head)
            continue;
        for (int i = 0; i < 2 * layers * experts; i++) {
            kvd_weight w;
            if (kvd_weight_find_expert(c, (kvd_part)part, i % 2, i / 2 / experts, i / 2 % experts,
                                       &w, err))
                return -1;
            *bytes += w.n ? bytes_of(&w) : 0;
        }
    }
    return 0;
}
