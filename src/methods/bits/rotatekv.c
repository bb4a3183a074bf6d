/* Method rotatekv: rotates keys across several KV heads before RoPE, and values within each KV
 * head, then quantises them (Su et al. 2025, RotateKV, section 4). The first `sink` tokens stay
 * exact. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/rng.h"
#include "common/stats.h"
#include "methods/bits/bits.h"
#include "methods/bits/calibration.h"
#include "methods/bits/levels.h"

enum { BITS, GROUP, HEADS, CLIP, SINK, ROWS };
static const kvd_parameter parameters[] = {
    {"bits", 2, 1, 8, true, "bits per number"},
    {"group", 128, 1, 4096, true, "numbers of a token per scale"},
    {"heads", 4, 1, 128, true,
     "number of adjacent KV heads whose keys are rotated together, at most those of the model"},
    {"clip", 0, 0, 1, false,
     "factor by which the range shrinks; 0: 0.8 with 2 bits or fewer, else 1"},
    {"sink", 20, 0, 1024, true, "number of first tokens kept exact"},
    {"rows", 4096, 64, 1 << 20, true, "number of calibration tokens read"},
    {NULL, 0, 0, 0, false, NULL},
};

typedef struct {
    kvd_pool pool; /* must be first */
    const kvd_parameter_values *v;
    size_t n_kv_heads, d, heads;
    uint32_t *order; /* [n_layers][n_kv_heads * d] channels of keys in sorted order */
} rotatekv;

/* Multiplies x [n] by the normalised Walsh-Hadamard matrix, which is its own inverse. */
static void rotate(float *x, size_t n)
{
    for (size_t half = 1; half < n; half *= 2)
        for (size_t i = 0; i < n; i += 2 * half)
            for (size_t j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    const float scale = 1 / sqrtf((float)n);
    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
}

static void rotate_all(float *x, size_t n, size_t each)
{
    for (size_t i = 0; i < n; i += each)
        rotate(x + i, each);
}

/* Sorts the channels of a layer's rotated keys by the sum of each channel's values over calibration
 * tokens. */
static int find_order(const rotatekv *r, kvd_activations *a, kvd_x x, int layer, size_t n,
                      float *rows, float *sum, kvd_ranked *sorted, kvd_err *err)
{
    const size_t wide = r->n_kv_heads * r->d;
    for (size_t g = 0; g < r->n_kv_heads; g++) {
        if (kvd_activations_rows(a, x, layer, (int)g, 0, n, rows, rows + n * r->d, err))
            return -1;
        for (size_t j = 0; j < r->d; j++) {
            double total = 0;
            for (size_t i = 0; i < n; i++)
                total += (double)rows[i * r->d + j];
            sum[g * r->d + j] = (float)total;
        }
    }
    rotate_all(sum, wide, r->heads * r->d);
    for (size_t i = 0; i < wide; i++)
        sorted[i] = (kvd_ranked){(double)sum[i], i};
    qsort(sorted, wide, sizeof *sorted, kvd_by_rising_value);
    for (size_t i = 0; i < wide; i++)
        r->order[(size_t)layer * wide + i] = (uint32_t)sorted[i].index;
    return 0;
}

static int calibrate(const rotatekv *r, const kvd_method_setup *s, kvd_err *err)
{
    const kvd_x x = s->config->positions == KVD_POSITIONS_ROPE ? KVD_X_K_PRE : KVD_X_K;
    const size_t wide = r->n_kv_heads * r->d, n = kvd_calibration_tokens(s, r->v->value[ROWS]);
    float *const rows = malloc((2 * n * r->d + wide) * sizeof *rows);
    kvd_ranked *const sorted = malloc(wide * sizeof *sorted);
    int status =
        rows && sorted ? 0 : kvd_no_memory(err, "calibration rows", 2 * n * r->d * sizeof *rows);
    for (int l = 0; !status && l < s->config->n_layers; l++)
        status = find_order(r, s->calibration, x, l, n, rows, rows + 2 * n * r->d, sorted, err);
    free(sorted);
    free(rows);
    return status ? -1 : 0;
}

static void draw_orders(const rotatekv *r, int n_layers)
{
    const size_t wide = r->n_kv_heads * r->d;
    for (int l = 0; l < n_layers; l++) {
        uint32_t *const order = r->order + (size_t)l * wide;
        kvd_rng rng;
        kvd_rng_seed(&rng, 1, (uint64_t)l);
        for (size_t i = 0; i < wide; i++) {
            const size_t j = kvd_rng_below(&rng, i + 1);
            order[i] = order[j];
            order[j] = (uint32_t)i;
        }
    }
}

static float clip_of(const kvd_parameter_values *v)
{
    const float given = (float)v->value[CLIP];
    return given > 0 ? given : v->value[BITS] <= 2 ? 0.8f : 1;
}

void kvd_rotatekv_tables_of(const void *self, kvd_rotatekv_tables *t)
{
    const rotatekv *const r = self;
    *t = (kvd_rotatekv_tables){
        .wide = r->n_kv_heads * r->d, .heads = r->heads, .clip = clip_of(r->v), .order = r->order};
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    const kvd_config *const c = s->config;
    if (c->d_head & (c->d_head - 1))
        return kvd_fail(err, "d_head %d is not a power of two, as a Walsh-Hadamard matrix requires",
                        c->d_head);
    if (s->calibration && kvd_calibration_fits(s, c->positions == KVD_POSITIONS_ROPE, err))
        return -1;
    const int asked = (int)v->value[HEADS];
    if (v->given[HEADS] && (c->n_kv_heads % asked || asked & (asked - 1)))
        return kvd_fail(err,
                        "heads = %d is not a power of two that divides the %d KV heads of the "
                        "model",
                        asked, c->n_kv_heads);
    return 0;
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_config *const c = s->config;
    const kvd_activations *const a = s->calibration;
    const int asked = (int)v->value[HEADS];
    int heads = asked < c->n_kv_heads ? asked : c->n_kv_heads;
    while (c->n_kv_heads % heads || heads & (heads - 1))
        heads--;
    rotatekv *const r = kvd_pool_open(sizeof *r);
    const size_t n = (size_t)c->n_layers * (size_t)c->n_kv_heads * (size_t)c->d_head;
    if (!r)
        return kvd_no_memory(err, "a method", sizeof *r);
    r->v = v;
    r->n_kv_heads = (size_t)c->n_kv_heads;
    r->d = (size_t)c->d_head;
    r->heads = (size_t)heads;
    r->order = kvd_pool_new(&r->pool, n * sizeof *r->order);
    const bool failed =
        kvd_pool_check(&r->pool, "orders of channels", err) || (a && calibrate(r, s, err));
    if (!failed && !a)
        draw_orders(r, c->n_layers);
    return kvd_pool_give(r, failed, self);
}

static void quantise(float *x, size_t n, int bits, float clip)
{
    float lo = x[0], hi = x[0];
    for (size_t i = 1; i < n; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    const float top = (float)((1u << bits) - 1), step = kvd_round_f16(clip * (hi - lo) / top);
    if (!(step > 0)) {
        for (size_t i = 0; i < n; i++)
            x[i] = kvd_round_f16(lo);
        return;
    }
    /* The zero point is clamped, because it is stored in 16 bits. */
    const float zero = fminf(fmaxf(rintf(-clip * lo / step), -32767), 32767);
    for (size_t i = 0; i < n; i++)
        x[i] = step * (fminf(fmaxf(rintf(x[i] / step) + zero, 0), top) - zero);
}

static void quantise_groups(const rotatekv *r, float *x, size_t n, kvd_bits_count *count)
{
    const int bits = (int)r->v->value[BITS];
    const float clip = clip_of(r->v);
    const size_t group = (size_t)r->v->value[GROUP];
    for (size_t at = 0; at < n; at += group) {
        quantise(x + at, n - at < group ? n - at : group, bits, clip);
        count->side += 32;
    }
    count->payload += (double)bits * (double)n;
}

static void code_key(const rotatekv *r, const uint32_t *order, const float *x, float *ordered,
                     float *y, kvd_bits_count *count)
{
    const size_t wide = r->n_kv_heads * r->d;
    memcpy(y, x, wide * sizeof *y);
    rotate_all(y, wide, r->heads * r->d);
    for (size_t i = 0; i < wide; i++)
        ordered[i] = y[order[i]];
    quantise_groups(r, ordered, wide, count);
    for (size_t i = 0; i < wide; i++)
        y[order[i]] = ordered[i];
    rotate_all(y, wide, r->heads * r->d);
}

static void code_value(const rotatekv *r, const float *x, float *y, kvd_bits_count *count)
{
    const size_t wide = r->n_kv_heads * r->d;
    memcpy(y, x, wide * sizeof *y);
    rotate_all(y, wide, r->d);
    for (size_t g = 0; g < r->n_kv_heads; g++)
        quantise_groups(r, y + g * r->d, r->d, count);
    rotate_all(y, wide, r->d);
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const rotatekv *const r = self;
    const size_t wide = b->d;
    float *const ordered = malloc(wide * sizeof *ordered);
    if (!ordered)
        return kvd_no_memory(err, "a token's keys", wide * sizeof *ordered);
    *count = (kvd_bits_count){0, 0};
    for (size_t i = 0; i < b->n; i++) {
        const float *const x = b->x + i * wide;
        float *const y = decoded + i * wide;
        if (b->position[i] < (uint32_t)r->v->value[SINK]) {
            for (size_t j = 0; j < wide; j++)
                y[j] = kvd_round_f16(x[j]);
            count->payload += 16.0 * (double)wide;
        } else if (b->side == KVD_KEYS) {
            code_key(r, r->order + (size_t)b->layer * wide, x, ordered, y, count);
        } else {
            code_value(r, x, y, count);
        }
    }
    free(ordered);
    return 0;
}

const kvd_bits_method kvd_bits_rotatekv = {
    .info = {.name = "rotatekv",
             .summary =
                 "Hadamard rotation over heads before RoPE, calibrated channel order, exact sinks",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"bits", 8, 1, false, NULL, 0, 0},
             .needs = KVD_NEEDS_ACTIVATIONS | KVD_NEEDS_PRE_ROPE,
             .gpu = &kvd_gpu_packed},
    .exact_key = "sink",
    .drawn = true,
    .keys_before_rope = true,
    .all_heads = true,
    .fits = fits,
    .open = open,
    .close = kvd_pool_close,
    .code = code,
};
