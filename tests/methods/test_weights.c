/* Tests quantisation of a model's weights. Weights read at once and in parts must be equal. */
#include <math.h>
#include <stdio.h>

#include "forward_case.h"
#include "model/checkpoint/weights.h"
#include "unit.h"

static kvd_weight find(const kvd_checkpoint *c, int part, bool bias, int layer)
{
    kvd_weight w;
    kvd_err err = {""};
    if (kvd_weight_find(c, (kvd_part)part, bias, layer, &w, &err))
        fail_msg("%s", err.msg);
    return w;
}

/* Checks the dequantised values y of a group x: each error is at most half a quantisation step plus
 * rounding, and at most 2^bits different values occur. */
static void check_group(const float *x, const float *y, size_t n, int bits)
{
    const double top = ldexp(1, bits) - 1;
    double lo = x[0], hi = x[0], largest = 0;
    for (size_t i = 0; i < n; i++) {
        lo = fmin(lo, (double)x[i]);
        hi = fmax(hi, (double)x[i]);
        largest = fmax(largest, fabs((double)x[i]));
    }
    const double step = (hi - lo) / top,
                 rounding = ldexp(largest + (hi - lo), -11) + ldexp(1, -23) * top;
    double levels[256];
    size_t n_levels = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        const double code = nearbyint(((double)x[i] - lo) / step);
        assert_true(fabs((double)y[i] - (double)x[i]) <= step / 2 + rounding);
        if (step > 0 && fabs(((double)x[i] - lo) / step - code) < 0.3)
            assert_true(fabs((double)y[i] - (lo + step * code)) <= rounding);
        while (k < n_levels && levels[k] != (double)y[i])
            k++;
        if (k == n_levels)
            levels[n_levels++] = (double)y[i];
        assert_true((double)n_levels <= top + 1);
    }
}

static void check_part(kvd_checkpoint *c, int part, bool bias, int layer, int bits, size_t group)
{
    const bool matrix =
        !bias && (part == KVD_PART_Q || part == KVD_PART_K || part == KVD_PART_V ||
                  part == KVD_PART_O || part == KVD_PART_GATE || part == KVD_PART_UP ||
                  part == KVD_PART_DOWN || part == KVD_PART_SHARED_GATE ||
                  part == KVD_PART_SHARED_UP || part == KVD_PART_SHARED_DOWN);
    kvd_checkpoint_quantise(c, 0, 1);
    const kvd_weight plain = find(c, part, bias, layer);
    kvd_checkpoint_quantise(c, bits, group);
    const kvd_weight few = find(c, part, bias, layer);
    if (!plain.n)
        return;
    float *const x = unit_alloc(plain.n * sizeof *x), *const y = unit_alloc(plain.n * sizeof *y),
                 *const z = unit_alloc(plain.n * sizeof *z);
    kvd_weight_read(&plain, 0, plain.n, x);
    kvd_weight_read(&few, 0, few.n, y);
    for (size_t at = 0, n = 1; at < few.n; at += n, n = n % 13 + 1) {
        n = n < few.n - at ? n : few.n - at;
        kvd_weight_read(&few, at, n, z + at);
    }
    assert_memory_equal(y, z, few.n * sizeof *y);
    assert_true(matrix == (few.bits == bits));
    if (matrix) {
        assert_null(kvd_weight_in_place(&few));
        assert_null(kvd_weight_stored(&few, few.tensor.dtype));
        for (size_t r = 0; r < few.n / few.cols; r++)
            for (size_t j = 0; j < few.cols; j += group)
                check_group(x + r * few.cols + j, y + r * few.cols + j,
                            few.cols - j < group ? few.cols - j : group, bits);
    } else
        assert_memory_equal(x, y, few.n * sizeof *x);
}

TEST(test_groups)
{
    static const struct {
        int bits;
        size_t group;
    } form[] = {{4, 128}, {3, 5}, {2, 1}, {8, KVD_WEIGHT_GROUP}};
#define NAME(x) (x)
    static const char *const name[] = {FAMILIES(NAME), ROUTED(NAME)};
    for (size_t f = 0; f < sizeof name / sizeof *name; f++) {
        kvd_checkpoint *const c = open_family(name[f]);
        const size_t k = f % (sizeof form / sizeof *form);
        for (int part = 0; part < KVD_N_PARTS; part++)
            for (int i = 0;
                 i < (part < KVD_N_LAYER_PARTS ? 2 * kvd_checkpoint_config(c)->n_layers : 2); i++)
                check_part(c, part, i % 2, i / 2, form[k].bits, form[k].group);
    }
}

TEST(test_bytes)
{
    kvd_checkpoint *const c = open_family("llama-biases");
    const kvd_config *const m = kvd_checkpoint_config(c);
    double stored, few, want = 0;
    kvd_err err = {""};
    assert_int_equal(kvd_weights_bytes(c, &stored, &err), 0);
    kvd_checkpoint_quantise(c, 3, 20);
    assert_int_equal(kvd_weights_bytes(c, &few, &err), 0);
    const size_t q = (size_t)m->n_heads * (size_t)m->d_head,
                 kv = (size_t)m->n_kv_heads * (size_t)m->d_head, d = (size_t)m->d_model;
    const size_t ffn = find(c, KVD_PART_UP, false, 0).n / d;
    const size_t shape[7][2] = {{q, d}, {kv, d}, {kv, d}, {d, q}, {ffn, d}, {ffn, d}, {d, ffn}};
    for (int i = 0; i < 7; i++) {
        const double rows = (double)shape[i][0] * m->n_layers, cols = (double)shape[i][1];
        want += rows * (cols * 3 / 8 + ceil(cols / 20) * 4) - rows * cols * 4;
    }
    assert_true(fabs(few - stored - want) < 1e-6);
    assert_true(fabs(stored - 4.0 * (double)kvd_family_elements(m)) < 1e-6);
}

TEST_MAIN(NULL, NULL)
