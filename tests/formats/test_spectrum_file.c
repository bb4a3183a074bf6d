/* Tests files of singular values and rotation matrices, of kept dimensions, and of the KL
 * divergence after one head loses dimensions. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "analysis/similarity.h"
#include "formats/error_table.h"
#include "formats/rates.h"
#include "methods/widths.h"
#include "temp_folder.h"
#include "unit.h"

enum { L = 2, H = 2, D = 4 };

static char path[128];

static int set_up(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "%s/x.h5", temp_folder());
    return 0;
}

static kvd_model_info model(void)
{
    kvd_model_info m = {.n_layers = L,
                        .n_heads = 2 * H,
                        .n_kv_heads = H,
                        .d_head = D,
                        .d_model = 8,
                        .vocab_size = 10,
                        .max_positions = 16,
                        .rope_theta = 1e4};
    snprintf(m.name, sizeof m.name, "tiny");
    snprintf(m.hash, sizeof m.hash, "xxh3:0");
    snprintf(m.family, sizeof m.family, "llama");
    snprintf(m.rope_layout, sizeof m.rope_layout, "half");
    snprintf(m.dtype, sizeof m.dtype, "f32");
    return m;
}

static void make(kvd_spectrum *s, kvd_pairing pairing)
{
    kvd_err err;
    *s = (kvd_spectrum){.model = model(),
                        .pairing = pairing,
                        .n_tokens = 100,
                        .seq_len = 16,
                        .first_layer = 0,
                        .n_layers = L};
    snprintf(s->label, sizeof s->label, "texts");
    snprintf(s->corpus_hash, sizeof s->corpus_hash, "xxh3:1");
    snprintf(s->method, sizeof s->method, "tsqr");
    snprintf(s->rope, sizeof s->rope, "after");
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        if (p == KVD_PAIR_Q || (pairing == KVD_PER_QUERY && kvd_pair_balanced((kvd_pair)p)))
            continue;
        OK(kvd_spectrum_alloc(s, (kvd_pair)p, &err));
        s->pair[p].n_rows = 25;
        for (int l = 0; l < L; l++)
            for (int h = 0; h < s->pair[p].n_h; h++) {
                for (size_t i = 0; i < D; i++)
                    kvd_spectrum_sigma(s, (kvd_pair)p, l, h)[i] = (double)(D - i) * (1 + l + h);
                OK(kvd_random_basis(D, 1, (uint64_t)(p * 64 + l * 8 + h),
                                    kvd_spectrum_R(s, (kvd_pair)p, l, h), &err));
                /* Makes a pair of matrices whose product left right^T is 1: left = 2 O, right =
                 * O / 2 with an orthogonal O. */
                for (size_t i = 0; s->pair[p].right && i < D * D; i++) {
                    kvd_spectrum_right(s, (kvd_pair)p, l, h)[i] =
                        kvd_spectrum_R(s, (kvd_pair)p, l, h)[i] / 2;
                    kvd_spectrum_R(s, (kvd_pair)p, l, h)[i] *= 2;
                }
            }
    }
}

static int save(const kvd_spectrum *s, kvd_err *err)
{
    kvd_h5 f;
    return kvd_h5_create(&f, path, &kvd_schema_spectrum, test_run(), err) ||
           kvd_spectrum_write(&f, s, err) || kvd_h5_finish(&f, err);
}

TEST(test_round_trip)
{
    kvd_err err;
    for (int pairing = 0; pairing < 2; pairing++) {
        kvd_spectrum s, t;
        make(&s, (kvd_pairing)pairing);
        OK(save(&s, &err));
        OK(kvd_spectrum_load(&t, path, &err));
        assert_string_equal(t.label, "texts");
        assert_string_equal(t.corpus_hash, "xxh3:1");
        assert_string_equal(t.method, "tsqr");
        assert_string_equal(t.rope, "after");
        assert_true(t.pairing == s.pairing && t.n_tokens == 100 && t.seq_len == 16 &&
                    t.n_layers == L);
        for (int p = 0; p < KVD_N_PAIRS; p++) {
            const kvd_pair_spectrum *x = &s.pair[p], *y = &t.pair[p];
            assert_true(x->present == y->present);
            if (!x->present)
                continue;
            const size_t heads = (size_t)(L * x->n_h);
            assert_true(y->n_h == x->n_h && y->n_rows == 25);
            assert_memory_equal(y->sigma, x->sigma, heads * D * sizeof(double));
            assert_memory_equal(y->R, x->R, heads * D * D * sizeof(double));
            assert_true(!x->right == !y->right);
            if (x->right)
                assert_memory_equal(y->right, x->right, heads * D * D * sizeof(double));
        }
        kvd_spectrum_release(&s);
        kvd_spectrum_release(&t);
    }
}

TEST(test_derived)
{
    kvd_spectrum s;
    kvd_err err;
    kvd_h5 f;
    make(&s, KVD_SHARED);
    OK(save(&s, &err));
    OK(kvd_h5_open(&f, path, &kvd_schema_spectrum, &err));
    double rank[L * H], mean[D], normalised[D], cv;
    const hsize_t heads[2] = {L, H}, dim = D;
    OK(kvd_h5_read_finite(&f, "/qk/effective_rank", 2, heads, rank, &err));
    OK(kvd_h5_read_finite(&f, "/qk/mean_sigma", 1, &dim, mean, &err));
    OK(kvd_h5_read_finite(&f, "/qk/mean_sigma_normalised", 1, &dim, normalised, &err));
    OK(kvd_h5_get_double(&f, "/qk", "cv_max_sigma", &cv, &err));
    /* The four heads' largest singular values, 4, 8, 8 and 12, have the mean 8 and the standard
     * deviation sqrt(32 / 3). */
    assert_true(fabs(cv - sqrt(32.0 / 3) / 8) < 1e-14);
    for (size_t i = 0; i < D; i++) {
        assert_true(fabs(mean[i] - 2.0 * (double)(D - i)) < 1e-14);
        /* Normalisation divides the mean by 5, the square root of the number of rows. */
        assert_true(fabs(normalised[i] - mean[i] / 5) < 1e-14);
    }
    /* Squared singular values have the ratio 16 : 9 : 4 : 1. */
    double entropy = 0;
    for (int i = 1; i <= 4; i++)
        entropy -= i * i / 30.0 * log(i * i / 30.0);
    for (size_t i = 0; i < L * H; i++)
        assert_true(fabs(rank[i] - exp(entropy)) < 1e-12);
    kvd_h5_close(&f, false);
    kvd_spectrum_release(&s);
}

TEST(test_ranks)
{
    const double flat[4] = {3, 3, 3, 3}, one[4] = {2, 0, 0, 0}, none[4] = {0, 0, 0, 0},
                 fall[4] = {3, 1, 0, 0};
    assert_true(fabs(kvd_effective_rank(flat, 4) - 4) < 1e-14);
    assert_true(fabs(kvd_effective_rank(one, 4) - 1) < 1e-14);
    assert_true(kvd_effective_rank(none, 4) == 0);
    assert_int_equal(kvd_energy_rank(flat, 4, 0.5), 2);
    assert_int_equal(kvd_energy_rank(flat, 4, 0.51), 3);
    assert_int_equal(kvd_energy_rank(fall, 4, 0.9), 1);
    assert_int_equal(kvd_energy_rank(fall, 4, 0.91), 2);
    assert_int_equal(kvd_energy_rank(none, 4, 0.9), 0);
}

static void refused(const kvd_spectrum *s, const char *why)
{
    kvd_err err;
    kvd_spectrum back;
    OK(save(s, &err));
    FAILS_WITH(kvd_spectrum_load(&back, path, &err), why);
}

TEST(test_lies_are_refused)
{
    kvd_err err;
    kvd_spectrum s, t;
    make(&s, KVD_SHARED);
    double *sigma = kvd_spectrum_sigma(&s, KVD_PAIR_VW, 1, 0),
           *R = kvd_spectrum_R(&s, KVD_PAIR_VW, 1, 0);

    sigma[2] = 7;
    refused(&s, "/vw/sigma layer 1 head 0 rises at dim 2, from 6 to 7");
    sigma[2] = 4;
    sigma[3] = -1;
    refused(&s, "/vw/sigma layer 1 head 0 dim 3 is -1, negative");
    sigma[3] = NAN;
    refused(&s, "/vw/sigma");
    sigma[3] = 2;
    R[0] += 1e-6;
    refused(&s, "/vw/R layer 1 head 0 is not orthogonal");
    refused(&s, "at most 1e-8 is allowed (compute it in float64)");
    R[0] -= 1e-6;
    kvd_spectrum_right(&s, KVD_PAIR_BVW, 0, 1)[5] += 1e-3;
    refused(&s, "/bvw layer 0 head 1: left right^T is off by 0.00");
    kvd_spectrum_right(&s, KVD_PAIR_BVW, 0, 1)[5] -= 1e-3;
    for (size_t i = 0; i < D; i++)
        sigma[i] = 1e200;
    refused(&s, "/vw/sigma layer 1 head 0: the squares of up to 1e+200 overflow");
    for (size_t i = 0; i < D; i++)
        sigma[i] = (double)(D - i);
    kvd_h5 f;
    OK(kvd_h5_create(&f, path, &kvd_schema_spectrum, test_run(), &err));
    assert_int_equal(kvd_spectrum_write(&f, &s, &err) ||
                         kvd_h5_put_int(&f, "/wv", "n_tokens", 7, &err) || kvd_h5_finish(&f, &err),
                     0);
    FAILS_WITH(kvd_spectrum_load(&t, path, &err), "n_tokens is 7 in /wv, 100 at the root");
    strcpy(s.rope, "afteR");
    refused(&s, "rope is 'afteR', none of after, before, none");
    strcpy(s.rope, "after");
    strcpy(s.method, "qr");
    refused(&s, "method is 'qr', none of svd, tsqr, gram");
    strcpy(s.method, "tsqr");
    s.calibration.prune = 1.5;
    refused(&s, "/calibration has prune 1.5, not 0 <= prune < 1");
    s.calibration.prune = 0;
    s.model.d_head = 5;
    kvd_spectrum small = s;
    memset(small.pair, 0, sizeof small.pair);
    refused(&small, "holds no pair");
    s.model.d_head = D;
    kvd_spectrum_release(&s);
    kvd_spectrum_release(&t);
    FAILS_WITH(kvd_spectrum_load(&t, "/nonexistent/x.h5", &err), "/nonexistent/x.h5");
}

TEST(test_shape_must_fit_the_model)
{
    kvd_err err;
    kvd_spectrum s, t;
    kvd_h5 f;
    make(&s, KVD_SHARED);
    OK(kvd_h5_create(&f, path, &kvd_schema_spectrum, test_run(), &err));
    OK(kvd_spectrum_write(&f, &s, &err));
    s.model.n_kv_heads = 4;
    assert_int_equal(H5Ldelete(f.id, "/model", H5P_DEFAULT) >= 0, 1);
    OK(kvd_model_info_write(&f, &s.model, &err));
    OK(kvd_h5_finish(&f, &err));
    FAILS_WITH(kvd_spectrum_load(&t, path, &err),
               "/qk/sigma has length 2 on axis 1, should have 4");
    s.model.n_kv_heads = H;
    kvd_spectrum_release(&s);
}

/* A calibration file must load even if its matrices lack full rank, because they come from few
 * tokens. */
TEST(test_balanced_bases_of_few_tokens)
{
    kvd_err err;
    kvd_spectrum s, t;
    make(&s, KVD_SHARED);
    double *left = kvd_spectrum_R(&s, KVD_PAIR_BQK, 1, 0);
    double *right = kvd_spectrum_right(&s, KVD_PAIR_BQK, 1, 0);
    for (size_t i = 0; i < D; i++)
        left[i * D + D - 1] = right[i * D + D - 1] = 0;
    OK(save(&s, &err));
    OK(kvd_spectrum_load(&t, path, &err));
    kvd_spectrum_release(&t);
    kvd_spectrum_release(&s);
}

TEST(test_bases_hash)
{
    kvd_err err;
    kvd_spectrum s;
    char first[KVD_BASES_HASH], other[KVD_BASES_HASH];
    const kvd_pair pair[2] = {KVD_PAIR_BQK, KVD_PAIR_WV};
    make(&s, KVD_SHARED);
    OK(kvd_spectrum_bases_hash(&s, pair, first, &err));
    assert_int_equal(strlen(first), 37);
    s.label[0] = 'X';
    kvd_spectrum_sigma(&s, KVD_PAIR_WV, 0, 0)[0] += 1;
    kvd_spectrum_R(&s, KVD_PAIR_QK, 0, 0)[0] += 1;
    OK(kvd_spectrum_bases_hash(&s, pair, other, &err));
    assert_string_equal(first, other);
    double *const entry[3] = {&kvd_spectrum_R(&s, KVD_PAIR_BQK, L - 1, H - 1)[D * D - 1],
                              &kvd_spectrum_right(&s, KVD_PAIR_BQK, 0, 0)[0],
                              &kvd_spectrum_R(&s, KVD_PAIR_WV, L - 1, H - 1)[D * D - 1]};
    for (int i = 0; i < 3; i++) {
        const double was = *entry[i];
        *entry[i] = nextafter(was, 9);
        OK(kvd_spectrum_bases_hash(&s, pair, other, &err));
        assert_string_not_equal(first, other);
        *entry[i] = was;
    }
    kvd_spectrum_release(&s);
}

static void assert_rates_refused(const kvd_rates *r, const char *why)
{
    kvd_err err;
    kvd_h5 f;
    kvd_rates back;
    OK(kvd_h5_create(&f, path, &kvd_schema_rates, test_run(), &err));
    OK(kvd_rates_write(&f, r, &err));
    OK(kvd_h5_finish(&f, &err));
    FAILS_WITH(kvd_rates_load(&back, path, &err), why);
}

TEST(test_rates)
{
    kvd_err err;
    kvd_spectrum s;
    kvd_rates r = {.model = model(),
                   .label = "texts",
                   .rule = "eq6",
                   .pair = {KVD_PAIR_QK, KVD_PAIR_BVW},
                   .n_points = 3};
    kvd_rates back;
    double rate[3] = {0, 0.15, 0.7}, p[3], p16[3];
    kvd_widths w[3];
    kvd_h5 f;
    make(&s, KVD_SHARED);
    for (int i = 0; i < 3; i++) {
        OK(kvd_widths_eq6(&s, r.pair, rate[i], false, &w[i], &err));
        p[i] = kvd_widths_p(&w[i], 0);
        p16[i] = kvd_widths_p(&w[i], 1);
    }
    r.removal_rate = rate;
    r.overall_p = p;
    r.overall_p16 = p16;
    r.widths = w;
    OK(kvd_rate_table(&s, r.pair, false, &r.table_r, &r.table_p, &r.n_table, &err));
    OK(kvd_h5_create(&f, path, &kvd_schema_rates, test_run(), &err));
    OK(kvd_rates_write(&f, &r, &err));
    OK(kvd_h5_finish(&f, &err));
    OK(kvd_rates_load(&back, path, &err));
    assert_true(back.n_points == 3 && back.pair[1] == KVD_PAIR_BVW && back.n_table == r.n_table);
    assert_string_equal(back.rule, "eq6");
    assert_memory_equal(back.removal_rate, rate, sizeof rate);
    assert_memory_equal(back.overall_p, p, sizeof p);
    assert_memory_equal(back.overall_p16, p16, sizeof p16);
    assert_memory_equal(back.table_r, r.table_r, r.n_table * sizeof(double));
    assert_memory_equal(back.table_p, r.table_p, r.n_table * sizeof(double));
    for (int i = 0; i < 3; i++)
        for (int side = 0; side < 2; side++)
            assert_memory_equal(back.widths[i].kept[side], w[i].kept[side],
                                L * H * sizeof(int32_t));
    kvd_rates_release(&back);

    w[1].kept[1][2] = 5;
    assert_rates_refused(&r, "/bvw/kept[1][1][0] is 5, not in 1 .. 4");
    w[1].kept[1][2] = 4;
    p[2] = 0.5001;
    assert_rates_refused(&r, "/overall_p[");
    for (int i = 0; i < 3; i++) {
        p[i] = kvd_widths_p(&w[i], 0);
        p16[i] = kvd_widths_p(&w[i], 1);
    }
    p16[1] += 0.25;
    assert_rates_refused(&r, "/overall_p16[1] is ");
    p16[1] -= 0.25;
    rate[2] = NAN;
    assert_rates_refused(&r, "/removal_rate[2] is nan, rule eq6 has 0 <= r < 1");
    rate[2] = INFINITY;
    assert_rates_refused(&r, "/removal_rate[2] is inf");
    rate[2] = 0.7;
    strcpy(r.rule, "error");
    assert_rates_refused(&r, "/removal_rate[0] is 0, rule error has none");
    strcpy(r.rule, "eq7");
    assert_rates_refused(&r, "rule is 'eq7', none of eq6, eq6-energy, eq6-by-pair, error, loss");
    strcpy(r.rule, "eq6");
    r.table_p[r.n_table - 1] = 1.5;
    assert_rates_refused(&r, "/f_p step ");
    r.pair[0] = KVD_PAIR_WV;
    assert_rates_refused(&r, "attribute pair_qk is 'wv', a pair of the other side");
    r.pair[0] = KVD_PAIR_QK;

    r.table_p[r.n_table - 1] = 1;
    OK(kvd_h5_create(&f, path, &kvd_schema_rates, test_run(), &err));
    OK(kvd_rates_write(&f, &r, &err));
    int32_t kept16[3][L][H] = {{{0}}};
    const hid_t d = H5Dopen2(f.id, "/qk/kept16", H5P_DEFAULT);
    assert_true(H5Dread(d, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, kept16) >= 0);
    kept16[2][1][0]--;
    assert_true(H5Dwrite(d, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, kept16) >= 0);
    H5Dclose(d);
    OK(kvd_h5_finish(&f, &err));
    FAILS_WITH(kvd_rates_load(&back, path, &err), "/qk/kept16[2][1][0] is ");

    for (int i = 0; i < 3; i++)
        kvd_widths_release(&w[i]);
    free(r.table_r);
    free(r.table_p);
    kvd_spectrum_release(&s);
}

static int save_table(const kvd_error_table *t, kvd_err *err)
{
    kvd_h5 f;
    return kvd_h5_create(&f, path, &kvd_schema_error_table, test_run(), err) ||
           kvd_error_table_write(&f, t, err) || kvd_h5_finish(&f, err);
}

TEST(test_error_table)
{
    kvd_err err;
    int32_t width[3] = {1, 2, 4};
    double error[2 * L * H * 3];
    for (size_t i = 0; i < sizeof error / sizeof *error; i++)
        error[i] = (double)(2 - i % 3);
    kvd_error_table t = {.model = model(),
                         .method = "balanced",
                         .pair = {KVD_PAIR_BQK, KVD_PAIR_BVW},
                         .bases_hash = "xxh3:22",
                         .n_layers = L,
                         .n_kv_heads = H,
                         .d_head = D,
                         .n_widths = 3,
                         .width = width,
                         .error = error},
                    back;
    OK(save_table(&t, &err));
    OK(kvd_error_table_load(&back, path, &err));
    assert_string_equal(back.method, "balanced");
    assert_string_equal(back.bases_hash, "xxh3:22");
    assert_true(back.pair[0] == KVD_PAIR_BQK && back.n_widths == 3 && back.n_layers == L &&
                back.d_head == D);
    assert_memory_equal(back.width, width, sizeof width);
    assert_memory_equal(back.error, error, sizeof error);
    kvd_error_table_release(&back);

    width[2] = 3;
    OK(save_table(&t, &err));
    FAILS_WITH(kvd_error_table_load(&back, path, &err), "the last width is 3, not d_head = 4");
    width[1] = 1;
    OK(save_table(&t, &err));
    FAILS_WITH(kvd_error_table_load(&back, path, &err),
               "/width[1] is 1: widths must rise from at least 1");
    width[1] = 2, width[2] = 4;
    error[5] = INFINITY;
    OK(save_table(&t, &err));
    FAILS_WITH(kvd_error_table_load(&back, path, &err), "/bqk/error");
    error[5] = 1e-3;
    OK(save_table(&t, &err));
    FAILS_WITH(kvd_error_table_load(&back, path, &err),
               "/bqk/error[0][1][2] is 0.001, not 0 at the whole width");
    error[5] = 0;
    error[L * H * 3 + 4] = -1e-3;
    OK(save_table(&t, &err));
    FAILS_WITH(kvd_error_table_load(&back, path, &err), "/bvw/error[0][1][1] is -0.001, below 0");

    error[L * H * 3 + 4] = -1e-9;
    kvd_h5 f;
    OK(kvd_h5_create(&f, path, &kvd_schema_error_table, test_run(), &err));
    OK(kvd_error_table_write(&f, &t, &err));
    assert_true(H5Adelete(f.id, "bases_hash") >= 0);
    OK(kvd_h5_finish(&f, &err));
    OK(kvd_error_table_load(&back, path, &err));
    assert_string_equal(back.bases_hash, "");
    kvd_error_table_release(&back);
}

TEST(test_foreign_file)
{
    kvd_err err;
    kvd_spectrum s, t;
    kvd_rates r;
    make(&s, KVD_SHARED);
    OK(save(&s, &err));
    FAILS_WITH(kvd_rates_load(&r, path, &err), "x.h5");
    assert_non_null(strstr(err.msg, "rates"));
    for (int i = 1; i < 4; i++) {
        OK(save(&s, &err));
        size_t size;
        const void *const bytes = unit_read(path, &size);
        unit_write(path, bytes, size * (size_t)i / 4);
        FAILS_WITH(kvd_spectrum_load(&t, path, &err), "x.h5");
    }
    kvd_spectrum_release(&s);
}

TEST_MAIN(set_up, NULL)
