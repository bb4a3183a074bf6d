/* Tests methods that remove dimensions, and the parser of methods. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"
#include "common/rng.h"
#include "dims_fixture.h"
#include "methods/account.h"
#include "methods/method.h"
#include "model/pass/forward.h"
#include "unit.h"

static kvd_config config;
static kvd_spectrum spectrum;
static kvd_widths widths;

static int setup(void **state)
{
    (void)state;
    kvd_err err;
    config = fixture_config(2, 4, 2, 8);
    return fixture_spectrum(&spectrum, &config, 3, &err) ||
           kvd_widths_alloc(&widths, 2, 2, 8, &err);
}

static int teardown(void **state)
{
    (void)state;
    kvd_spectrum_release(&spectrum);
    kvd_widths_release(&widths);
    return 0;
}

static void ragged_widths(void)
{
    const int32_t qk[4] = {1, 8, 3, 5}, v[4] = {7, 2, 8, 1};
    memcpy(widths.kept[0], qk, sizeof qk);
    memcpy(widths.kept[1], v, sizeof v);
}

TEST(test_orthogonal_cut)
{
    kvd_err err;
    kvd_dims d;
    ragged_widths();
    const kvd_dims_method *const both[] = {&kvd_dims_zack, &kvd_dims_fdc, &kvd_dims_matryoshka};
    const kvd_pair of_qk[] = {KVD_PAIR_QK, KVD_PAIR_QK, KVD_PAIR_K},
                   of_v[] = {KVD_PAIR_VW, KVD_PAIR_WV, KVD_PAIR_V};
    for (int m = 0; m < 3; m++) {
        assert_int_equal(kvd_dims_build(&d, both[m], &spectrum, &widths, &err), 0);
        assert_string_equal(d.method, both[m]->info.name);
        for (int i = 0; i < 4; i++) {
            const kvd_dims_head *h = &d.head[i];
            const double *R = kvd_spectrum_R(&spectrum, of_qk[m], i / 2, i % 2);
            const double *RV = kvd_spectrum_R(&spectrum, of_v[m], i / 2, i % 2);
            assert_int_equal(h->d_qk, widths.kept[0][i]);
            assert_int_equal(h->d_v, widths.kept[1][i]);
            assert_ptr_equal(h->a_q, h->a_k);
            for (int row = 0; row < 8; row++) {
                for (int j = 0; j < h->d_qk; j++)
                    assert_true(h->a_q[row * h->d_qk + j] == (float)R[row * 8 + j]);
                for (int j = 0; j < h->d_v; j++) {
                    assert_true(h->a_v[row * h->d_v + j] == (float)RV[row * 8 + j]);
                    assert_true(h->b_v[j * 8 + row] == h->a_v[row * h->d_v + j]);
                }
            }
        }
        kvd_dims_release(&d);
    }
}

/* Checks that the matrix product x y is the n x n identity. Element [i][k] of x is x[i * row + k *
 * column]; y is [8][n]. */
static void identity(const float *x, int row, int column, const float *y, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < 8; k++)
                sum += (double)x[i * row + k * column] * (double)y[k * n + j];
            assert_true(fabs(sum - (i == j)) < 1e-6);
        }
}

TEST(test_biorthogonal_cut)
{
    kvd_err err;
    kvd_dims d;
    ragged_widths();
    assert_int_equal(kvd_dims_build(&d, &kvd_dims_balanced, &spectrum, &widths, &err), 0);
    for (int i = 0; i < 4; i++) {
        const kvd_dims_head *h = &d.head[i];
        assert_ptr_not_equal(h->a_q, h->a_k);
        /* The projections must satisfy B_v A_v = I and A_k^T A_q = I. */
        identity(h->b_v, 8, 1, h->a_v, h->d_v);
        identity(h->a_k, 1, h->d_qk, h->a_q, h->d_qk);
    }
    kvd_dims_release(&d);
}

TEST(test_only_one_head)
{
    kvd_err err;
    kvd_dims d, all;
    kvd_widths w;
    ragged_widths();
    assert_int_equal(kvd_widths_alloc(&w, 2, 2, 8, &err), 0);
    for (int side = 0; side < 2; side++) {
        const int width = widths.kept[side][2];
        OK(kvd_dims_one(&d, &kvd_dims_balanced, &spectrum, 1, 0, side, width, &err));
        assert_int_equal(kvd_dims_build(&all, &kvd_dims_balanced, &spectrum, &widths, &err), 0);
        const size_t bytes = (size_t)(8 * width) * sizeof(float);
        if (side == 0) {
            assert_memory_equal(d.head[2].a_q, all.head[2].a_q, bytes);
            assert_memory_equal(d.head[2].a_k, all.head[2].a_k, bytes);
        } else {
            assert_memory_equal(d.head[2].a_v, all.head[2].a_v, bytes);
            assert_memory_equal(d.head[2].b_v, all.head[2].b_v, bytes);
        }
        kvd_dims_release(&all);
        kvd_dims_widths(&d, &w);
        for (int s = 0; s < 2; s++)
            for (int i = 0; i < 4; i++)
                assert_int_equal(w.kept[s][i], s == side && i == 2 ? widths.kept[s][i] : 8);
        assert_true((d.head[2].a_q != NULL) == (side == 0) &&
                    (d.head[2].b_v != NULL) == (side == 1));
        assert_null(d.head[0].a_q);
        kvd_dims_release(&d);
    }
    kvd_widths_release(&w);
}

TEST(test_leave_a_side)
{
    kvd_err err;
    kvd_dims d;
    ragged_widths();
    for (int side = 0; side < 2; side++) {
        assert_int_equal(kvd_dims_build(&d, &kvd_dims_balanced, &spectrum, &widths, &err), 0);
        kvd_dims_leave(&d, side);
        for (int i = 0; i < 4; i++) {
            const kvd_dims_head *const h = &d.head[i];
            assert_int_equal(h->d_qk, side == 0 ? 8 : widths.kept[0][i]);
            assert_int_equal(h->d_v, side == 1 ? 8 : widths.kept[1][i]);
            assert_true((h->a_q == NULL) == (side == 0) && (h->a_k == NULL) == (side == 0));
            assert_true((h->a_v == NULL) == (side == 1) && (h->b_v == NULL) == (side == 1));
        }
        kvd_dims_release(&d);
    }
}

TEST(test_uniform_widths)
{
    const struct {
        double p;
        int32_t kept;
    } want[] = {{0, 8}, {0.5, 4}, {0.99, 1}, {0.0624, 8}, {0.07, 7}, {0.999999, 1}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(kvd_widths_uniform(&widths, want[i].p), 0);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(widths.kept[0][k], want[i].kept);
            assert_int_equal(widths.kept[1][k], want[i].kept);
        }
    }
    assert_int_equal(kvd_widths_uniform(&widths, 1), -1);
    assert_int_equal(kvd_widths_uniform(&widths, -0.1), -1);
    assert_int_equal(kvd_widths_uniform(&widths, NAN), -1);
    kvd_err err;
    kvd_dims d;
    assert_int_equal(kvd_widths_uniform(&widths, 0.5), 0);
    widths.kept[1][3] = 5;
    FAILS(kvd_dims_build(&d, &kvd_dims_uniform, &spectrum, &widths, &err),
          "method 'uniform' has the same width for every head, but layer 1 head 1 has 5 and "
          "the first head 4");
}

static void refused(const kvd_dims_method *m, const char *why)
{
    kvd_err err = {""};
    kvd_dims d;
    FAILS(kvd_dims_build(&d, m, &spectrum, &widths, &err), why);
    kvd_dims_release(&d); /* a failed build may be released too */
}

TEST(test_refuses)
{
    ragged_widths();
    spectrum.pair[KVD_PAIR_VW].present = false;
    refused(&kvd_dims_zack, "method 'zack' needs pair 'vw', which the spectrum lacks");
    spectrum.pair[KVD_PAIR_VW].present = true;
    spectrum.pairing = KVD_PER_QUERY;
    spectrum.pair[KVD_PAIR_QK].n_h = 4;
    refused(&kvd_dims_zack,
            "method 'zack' needs pairing 'shared', the spectrum has 'per-query': a cache "
            "holds one K per KV head");
    spectrum.pairing = KVD_SHARED;
    refused(&kvd_dims_zack, "method 'zack': pair 'qk' has 4 bases per layer, the model 2 KV heads");
    spectrum.pair[KVD_PAIR_QK].n_h = 2;
    strcpy(spectrum.rope, "before");
    refused(&kvd_dims_fdc,
            "method 'fdc' cuts Q and K after RoPE, the spectrum was taken 'before' RoPE");
    strcpy(spectrum.rope, "after");
    spectrum.first_layer = 1;
    spectrum.n_layers = 1;
    refused(&kvd_dims_zack, "method 'zack' needs layers 0-1, the spectrum has layers 1-1");
    spectrum.first_layer = 0;
    spectrum.n_layers = 2;
    widths.kept[0][2] = 9;
    refused(&kvd_dims_zack, "method 'zack': layer 1 head 0 keeps 9 of 8 dimensions");
    widths.kept[0][2] = 0;
    refused(&kvd_dims_zack, "method 'zack': layer 1 head 0 keeps 0 of 8 dimensions");
    widths.kept[0][2] = 3;
    double *R = kvd_spectrum_R(&spectrum, KVD_PAIR_QK, 0, 1);
    const double saved = R[8];
    for (int i = 0; i < 2; i++) {
        R[8] = i ? 1e300 : NAN;
        refused(&kvd_dims_zack,
                "method 'zack', layer 0, KV head 1: basis of pair 'qk': entry [1][0] is not finite "
                "as float32");
    }
    R[8] = saved;
    kvd_widths other, mine = widths;
    kvd_err err;
    assert_int_equal(kvd_widths_alloc(&other, 2, 1, 8, &err), 0);
    widths = other;
    refused(
        &kvd_dims_zack,
        "method 'zack': widths are for 2 layers, 1 KV heads, d_head 8; the spectrum has 2, 2, 8");
    widths = mine;
    kvd_widths_release(&other);
}

TEST(test_bytes)
{
    kvd_err err;
    kvd_dims d;
    kvd_cache_bytes b;
    /* The 4 KV heads of 8 dimensions keep 17 dimensions of Q and K in total, and 18 of V. */
    ragged_widths();
    assert_int_equal(kvd_dims_build(&d, &kvd_dims_zack, &spectrum, &widths, &err), 0);
    kvd_cache_count_bytes(&config, &d, 2, &b);
    assert_true(b.dense == 128 && b.nominal == 70 && b.padded == 128);
    assert_true(b.basis == 2 * 8 * 17);
    assert_true(fabs(b.overall_p - (1 - 35.0 / 64)) < 1e-15 && b.overall_p16 == 0);
    assert_true(fabs(b.overall_p - kvd_widths_p(&widths, 0)) < 1e-15);
    kvd_dims_release(&d);
    assert_int_equal(kvd_dims_build(&d, &kvd_dims_balanced, &spectrum, &widths, &err), 0);
    kvd_cache_count_bytes(&config, &d, 2, &b);
    assert_true(b.basis == 2 * 2 * 8 * 17);
    kvd_dims_release(&d);
    kvd_cache_count_bytes(&config, NULL, 4, &b);
    assert_true(b.dense == 256 && b.nominal == 256 && b.padded == 256 && b.basis == 0 &&
                b.overall_p == 0);
}

TEST(test_method_text)
{
    kvd_err err;
    kvd_method m;
    assert_int_equal(kvd_method_parse("none", &m, &err), 0);
    assert_null(m.dims);
    assert_string_equal(kvd_method_name(&m), "none");
    assert_int_equal(kvd_method_parse("zack,p=0.5,ranks=error", &m, &err), 0);
    assert_ptr_equal(m.dims, &kvd_dims_zack);
    assert_true(m.p == 0.5 && isnan(m.r) && m.ranks == KVD_WIDTH_RULE_ERROR);
    assert_int_equal(kvd_method_parse("fdc,r=0.1", &m, &err), 0);
    assert_true(isnan(m.p) && m.r == 0.1 && m.ranks == KVD_WIDTH_RULE_EQ6);
    assert_int_equal(m.cut, KVD_CUT_BOTH);
    assert_int_equal(kvd_method_parse("uniform,p=0.5,cut=v", &m, &err), 0);
    assert_int_equal(m.cut, KVD_CUT_V);
    assert_string_equal(m.settings, "cut=v");
    assert_int_equal(kvd_method_parse("zack+kivi,cut=qk,p=0.5,bits=4", &m, &err), 0);
    assert_string_equal(m.settings, "cut=qk,kivi.bits=4,kivi.group=32,kivi.residual=128");
    assert_int_equal(kvd_method_parse("h2o+zack+kivi,heavy=0.2,p=0.5,kivi.bits=4", &m, &err), 0);
    assert_true(m.plan.tokens == &kvd_tokens_h2o && m.dims == &kvd_dims_zack &&
                m.plan.bits == &kvd_bits_kivi && m.p == 0.5);
    assert_string_equal(m.settings,
                        "h2o.heavy=0.2,h2o.recent=0.1,kivi.bits=4,kivi.group=32,kivi.residual=128");
    assert_string_equal(kvd_method_name(&m), "h2o+zack+kivi");
    assert_int_equal(kvd_method_parse("leankv,th=0.1,lv=1", &m, &err), 0);
    assert_true(m.plan.tokens == &kvd_tokens_leankv && m.plan.bits == &kvd_bits_hetero && !m.dims);
    assert_int_equal(kvd_method_parse("zdc,p_i=0.2,p_u=0.5,g=0.3", &m, &err), 0);
    assert_true(m.plan.tokens == &kvd_tokens_importance && m.dims == &kvd_dims_zack && m.p == 0.2 &&
                m.p_low == 0.5);
    assert_string_equal(m.settings,
                        "zack.p_u=0.5,importance.g=0.3,importance.rise=0,importance.overlap=0.95,"
                        "importance.mean=0,importance.layers=0");
    /* The method has one removed fraction for Q, K and V, and another one for unimportant
     * tokens. */
    assert_true(kvd_method_has_point(&m) && !kvd_method_has_sides(&m) && kvd_method_has_low(&m));
    OK(kvd_method_parse("zdc,p_i.qk=0.5,p.v=0.2,zack.p_u.qk=0.75,p_u.v=0.6", &m, &err));
    assert_true(isnan(m.p) && isnan(m.p_low) && m.p_side[0] == 0.5 && m.p_side[1] == 0.2 &&
                m.p_low_side[0] == 0.75 && m.p_low_side[1] == 0.6);
    assert_true(kvd_method_has_point(&m) && kvd_method_has_sides(&m) && kvd_method_has_low(&m));
    assert_string_equal(
        m.settings,
        "zack.p.qk=0.5,zack.p.v=0.2,zack.p_u.qk=0.75,zack.p_u.v=0.6,importance.g=0.5,"
        "importance.rise=0,importance.overlap=0.95,importance.mean=0,importance.layers=0");
    assert_int_equal(kvd_method_parse("balanced,p.qk=0,p.v=0.5,ranks=error", &m, &err), 0);
    assert_true(m.p_side[0] == 0 && m.p_side[1] == 0.5);
    assert_int_equal(kvd_method_parse("mikv,lk=4", &m, &err), 0);
    assert_string_equal(
        m.settings,
        "lower.heavy=0.1,lower.recent=0.1,hetero.k=8,hetero.v=8,hetero.lk=4,hetero.lv=2,"
        "hetero.balance=1");
    assert_int_equal(kvd_method_parse("think,p=0.5", &m, &err), 0);
    assert_true(m.plan.channels == &kvd_channels_think && m.plan.channels_values.value[0] == 0.5 &&
                isnan(m.p));
    kvd_method_entry entry;
    for (int i = 0; kvd_method_entry_at(i, &entry); i++) {
        assert_int_equal(kvd_method_parse(entry.info->name, &m, &err), 0);
        assert_true(!entry.dims || m.dims == entry.dims);
    }
    const char *const bad[][2] = {
        {"zac", "unknown method 'zac', nearest: zack; --list-methods lists all"},
        {"", "unknown method ''; --list-methods lists all"},
        {"zack,p", "method 'zack': 'p' is not key=value"},
        {"zack,", "method 'zack': '' is not key=value"},
        {"zack,q=1",
         "method 'zack': unknown key 'q', known are p, p.qk, p.v, r, ranks, cut, online, explicit, "
         "keep_layers"},
        {"zack,p=0.1,p=0.2", "method 'zack': key 'p' is given twice"},
        {"zack,p=1", "method 'zack': p = 1 removes everything, it must be below 1"},
        {"zack,p=0.1,r=0.1", "method 'zack': p and r exclude each other"},
        {"zack,ranks=best", "method 'zack': ranks 'best' is none of eq6, eq6-energy, error, loss"},
        {"zack,cut=k", "method 'zack': cut 'k' is none of both, qk, v"},
        {"zack,cut=v,cut=v", "method 'zack': key 'cut' is given twice"},
        {"kivi,cut=v",
         "method 'kivi': unknown key 'cut', known are bits, group, residual, keep_layers"},
        {"zack,r=0.1,ranks=error",
         "method 'zack': ranks=error takes p: a removal rate r is defined for Eq. 6 only"},
        {"none,p=0.5", "method 'none': it takes no keys"},
        {"zack+fdc", "method 'zack+fdc': 'zack' and 'fdc' both choose dims"},
        {"none+kivi", "method 'none+kivi': 'none' cannot be combined"},
        {"leankv+kivi", "method 'leankv+kivi': 'hetero' and 'kivi' both choose bits"},
        {"kivi,p=0.5",
         "method 'kivi': unknown key 'p', known are bits, group, residual, keep_layers"},
        {"zack,p=0.5,p_u=0.7",
         "method 'zack': p_u sets entries at the low level, but no member lowers entries"},
        {"zack+think", "method 'zack+think': 'zack' and 'think' both choose dims"},
        {"zdc,p=0.1,p_i=0.2", "method 'zdc': key 'p_i' is given twice"},
        {"zdc,q=1",
         "method 'zdc': unknown key 'q', known are p, p.qk, p.v, r, ranks, cut, online, explicit, "
         "p_u, p_u.qk, p_u.v, g, rise, overlap, mean, layers, keep_layers"},
        {"zack,p.qk=0.5", "method 'zack': give both p.qk and p.v: 0 leaves a pair whole"},
        {"zack,p.qk=0.5,p.v=0.5,p=0.5",
         "method 'zack': p.qk and p.v exclude p, which sets both pairs"},
        {"zack,p.qk=0.5,p.v=0.5,r=0.5",
         "method 'zack': p.qk and p.v exclude r, which sets both pairs"},
        {"zack,p.qk=0.5,p_i.qk=0.5", "method 'zack': key 'p_i.qk' is given twice"},
        {"zack,p.qk=1,p.v=0.5", "method 'zack': p.qk = 1 removes everything, it must be below 1"},
        {"zack,p.qk=0.5,p.v=0.5,cut=v",
         "method 'zack': cut=v requires p or r: p.qk = 0 or p.v = 0 leaves that pair whole"},
        {"uniform,p.qk=0.5,p.v=0.5", "method 'uniform': it has one width for both pairs: give p"},
        {"zack,p=0.5,p_u.qk=0.7,p_u.v=0.7",
         "method 'zack': p_u sets entries at the low level, but no member lowers entries"},
        {"zdc,p=0.1,p_u.v=0.2", "method 'zdc': give both p_u.qk and p_u.v"},
        {"zdc,p=0.1,p_u.v=0.2,p_u.qk=0.2,p_u=0.2",
         "method 'zdc': p_u.qk and p_u.v exclude p_u, which sets both pairs"},
        {"kivi,p.qk=0.5",
         "method 'kivi': unknown key 'p.qk', known are bits, group, residual, keep_layers"},
        {"kivi,bits=2.5", "method 'kivi': bits = 2.5 is not a whole number"},
        {"kivi,bits=9", "method 'kivi': bits: '9' is not within 1 .. 8"},
        {"h2o,recent=0.1,recent=0.1", "method 'h2o': key 'recent' is given twice"},
        {"zack+kivi,zack.bits=4",
         "method 'zack+kivi': unknown key 'zack.bits', known are p, p.qk, p.v, r, ranks, cut, online, "
         "explicit, bits, group, residual, keep_layers"},
        {"zack,zack.zack.p=0.5",
         "method 'zack': unknown key 'zack.zack.p', known are p, p.qk, p.v, r, ranks, cut, online, "
         "explicit, keep_layers"},
        {"zack+h2o,q=1",
         "method 'zack+h2o': unknown key 'q', known are p, p.qk, p.v, r, ranks, cut, online, "
         "explicit, heavy, recent, keep_layers"},
        {"fp8,rows=100", "method 'fp8': rows = 100 has no effect with scale = 0: leave it out"},
        {"kvtc,block=32,lanes=1",
         "method 'kvtc': block = 32 has no effect with lanes = 1: leave it out"},
        {"importance+hetero,layers=2,overlap=0.5",
         "method 'importance+hetero': overlap = 0.5 has no effect with layers = 2: leave it out"},
        {"uniform,r=0.5",
         "method 'uniform': it takes p, neither r nor ranks: its widths do not depend on the "
         "spectrum"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FAILS(kvd_method_parse(bad[i][0], &m, &err), bad[i][1]);
    }
    assert_int_equal(kvd_method_parse("zack,p=nan", &m, &err), -1);
    assert_int_equal(kvd_method_parse("fp8,fp8.scale=0,fp8.rows=4096", &m, &err), 0);
    assert_int_equal(kvd_method_parse("fp8,scale=1,rows=100", &m, &err), 0);
    assert_int_equal(kvd_method_parse("zack,p=0.5,online=1", &m, &err), 0);
    assert_true(m.dims == &kvd_dims_zack && m.plan.channels == &kvd_channels_online);
    assert_string_equal(m.settings, "online=1");
    assert_int_equal(kvd_method_parse("fdc,p=0.5,online=1", &m, &err), -1);
    assert_int_equal(kvd_method_parse("zack,p=0.5,online=1,cut=v", &m, &err), -1);
    assert_int_equal(kvd_method_parse("h2o+zack,p=0.5,online=1", &m, &err), -1);
    assert_int_equal(kvd_method_parse("zdc,p_i=0.3,p_u=0.5,online=1", &m, &err), 0);
    assert_int_equal(kvd_method_parse("zack,p=0.5,online=1,explicit=1", &m, &err), -1);
    assert_int_equal(kvd_method_parse("balanced,p=0.5,explicit=1", &m, &err), -1);
    assert_int_equal(kvd_method_parse("fdc,p=0.5,explicit=1", &m, &err), 0);
    assert_true(m.plan.channels == &kvd_channels_explicit);
}

/* Tests projections that are computed from a prompt. They must be the right singular vectors of all
 * keys, queries and random rows, stacked in one matrix. */
TEST(test_online_stack)
{
    enum { D = 6, N = 20, Q = 15, GROUP = 2, LDQ = 14, W = 30, ROWS = N + Q * GROUP + W, KEPT = 3 };
    float x[N * D], q[Q * LDQ], a[D * KEPT];
    double stack[ROWS * D], moment[D * D] = {0}, sigma[D], R[D * D], off = 0;
    size_t at = 0;
    kvd_rng r;
    kvd_err err;
    kvd_rng_seed(&r, 3, 0);
    for (size_t i = 0; i < N * D; i++)
        stack[at++] = (double)(x[i] = (float)(kvd_rng_normal(&r) * (double)(1 + i % D)));
    for (size_t i = 0; i < Q * LDQ; i++)
        q[i] = (float)(kvd_rng_normal(&r) * (double)(1 + 2 * (i % 3)));
    for (size_t i = 0; i < Q * GROUP * D; i++)
        stack[at++] = (double)q[i / (GROUP * D) * LDQ + i % (GROUP * D)];
    for (size_t i = 0; i < W * D; i++)
        stack[at++] = 2 * kvd_rng_normal(&r);
    for (size_t k = 0; k < W; k++)
        for (size_t i = 0; i < D * D; i++)
            moment[i] +=
                stack[(N + Q * GROUP + k) * D + i / D] * stack[(N + Q * GROUP + k) * D + i % D];
    const kvd_channels_rows rows = {
        .n = N, .d = D, .x = x, .n_q = Q, .group = GROUP, .ldq = LDQ, .q = q, .moment = moment};
    assert_int_equal(kvd_channels_online.project(&rows, KEPT, a, &err), 0);
    assert_int_equal(kvd_svd_right(stack, ROWS, D, sigma, R, &err), 0);
    for (size_t i = 0; i < D; i++)
        for (size_t j = 0; j < D; j++) {
            double own = 0, wanted = 0;
            for (size_t k = 0; k < KEPT; k++) {
                own += (double)a[i * KEPT + k] * (double)a[j * KEPT + k];
                wanted += R[i * D + k] * R[j * D + k];
            }
            off = fmax(off, fabs(own - wanted));
        }
    assert_true(off < 1e-5);
}

TEST(test_online_moments)
{
    kvd_err err;
    kvd_checkpoint *const c = kvd_checkpoint_open("data/models/kvdim-6m", &err);
    assert_non_null(c);
    const kvd_config *const m = kvd_checkpoint_config(c);
    const size_t d = (size_t)m->d_head, model = (size_t)m->d_model, heads = (size_t)m->n_heads,
                 kv = (size_t)m->n_kv_heads, group = heads / kv, layer = (size_t)m->n_layers - 1;
    kvd_forward *const f = kvd_forward_new(c, 8, 8, &err);
    float *const w = unit_alloc(heads * d * model * sizeof *w);
    double *const got = kvd_channels_moments(c, &err);
    assert_non_null(f);
    assert_non_null(got);
    assert_int_equal(kvd_forward_weights_o(f, (int)layer, w, &err), 0);
    for (size_t g = 0; g < kv; g++)
        for (size_t i = 0; i < d * d; i++) {
            double sum = 0;
            for (size_t h = g * group; h < (g + 1) * group; h++)
                for (size_t k = 0; k < model; k++)
                    sum += (double)w[(h * d + i / d) * model + k] *
                           (double)w[(h * d + i % d) * model + k];
            assert_true(fabs(sum - got[(layer * kv + g) * d * d + i]) < 1e-9 * (1 + fabs(sum)));
        }
    free(got);
    kvd_forward_free(f);
    kvd_checkpoint_close(c);
}

TEST_MAIN(setup, teardown)
