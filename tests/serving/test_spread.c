#include <math.h>
#include <string.h>

#include "methods/widths.h"
#include "serving/jct/spread.h"
#include "temp_folder.h"
#include "unit.h"

static const char *path;

static kvd_spectrum shape(int layers, int kv_heads, int d)
{
    kvd_spectrum b = {.pairing = KVD_SHARED, .n_layers = layers};
    b.model.n_layers = layers;
    b.model.n_heads = 2 * kv_heads;
    b.model.n_kv_heads = kv_heads;
    b.model.d_head = d;
    snprintf(b.rope, sizeof b.rope, "after");
    return b;
}

/* Each head of a model gets singular values of a randomly chosen measured head. Its Q-K and V-W_O
 * singular values must come from the same measured head. */
TEST(test_dealing)
{
    kvd_err err = {""};
    kvd_spread s;
    unit_write_text(path, "pair,dim,a,b,c\nqk,0,9,8,7\nqk,1,6,8,4\nqk,2,3,8,1\nqk,3,3,8,0\n"
                          "vw,0,90,80,70\nvw,1,60,80,40\nvw,2,30,80,10\nvw,3,30,80,0\n");
    OK(kvd_spread_load(&s, path, &err));
    kvd_spectrum b = shape(2, 3, 4);
    OK(kvd_spread_pair(&s, &b, KVD_PAIR_QK, 1, &err));
    OK(kvd_spread_pair(&s, &b, KVD_PAIR_VW, 1, &err));
    int times[3] = {0};
    for (int l = 0; l < 2; l++)
        for (int h = 0; h < 3; h++) {
            const double *const qk = kvd_spectrum_sigma(&b, KVD_PAIR_QK, l, h);
            const double *const vw = kvd_spectrum_sigma(&b, KVD_PAIR_VW, l, h);
            const int from = 9 - (int)lround(qk[0]);
            assert_in_range(from, 0, 2);
            times[from]++;
            for (int j = 0; j < 4; j++) {
                assert_true(fabs(qk[j] - s.sigma[KVD_PAIR_QK][from * KVD_SPREAD_DIMS + j]) < 1e-12);
                assert_true(fabs(vw[j] - 10 * qk[j]) < 1e-9);
            }
        }
    for (int i = 0; i < 3; i++)
        assert_int_equal(times[i], 2);
    const double *const R = kvd_spectrum_R(&b, KVD_PAIR_QK, 0, 0);
    assert_memory_equal(R, kvd_spectrum_R(&b, KVD_PAIR_QK, 1, 2), 16 * sizeof *R);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            double sum = 0;
            for (int j = 0; j < 4; j++)
                sum += R[j * 4 + i] * R[j * 4 + k];
            assert_true(fabs(sum - (i == k)) < 1e-12);
        }
    /* By Eq. 6 of the ZACK paper, heads whose singular values fall slowly keep more dimensions. */
    kvd_widths w;
    double r;
    const kvd_pair pair[2] = {KVD_PAIR_QK, KVD_PAIR_VW};
    OK(kvd_widths_for_p(&b, pair, KVD_BOTH_SIDES, 0.5, false, &r, &w, &err));
    int least = 4, most = 0;
    for (int i = 0; i < 6; i++) {
        least = w.kept[0][i] < least ? w.kept[0][i] : least;
        most = w.kept[0][i] > most ? w.kept[0][i] : most;
    }
    assert_true(least < most);
    kvd_widths_release(&w);
    FAILS(kvd_spread_pair(&s, &b, KVD_PAIR_WV, 1, &err), "no singular values of pair 'wv'");
    kvd_spectrum_release(&b);
    kvd_spread_release(&s);
}

/* Adapts 4 measured singular values to heads with 2 or 8 dimensions, by averaging or
 * interpolating. */
TEST(test_other_widths)
{
    kvd_err err = {""};
    kvd_spread s;
    unit_write_text(path, "pair,dim,a\nqk,0,8\nqk,1,6\nqk,2,4\nqk,3,2\n");
    OK(kvd_spread_load(&s, path, &err));
    kvd_spectrum half = shape(1, 1, 2), twice = shape(1, 1, 8);
    OK(kvd_spread_pair(&s, &half, KVD_PAIR_QK, 1, &err));
    OK(kvd_spread_pair(&s, &twice, KVD_PAIR_QK, 1, &err));
    static const double of_2[] = {7, 3}, of_8[] = {8, 7.5, 6.5, 5.5, 4.5, 3.5, 2.5, 2};
    for (int j = 0; j < 2; j++)
        assert_true(fabs(half.pair[KVD_PAIR_QK].sigma[j] - of_2[j]) < 1e-12);
    for (int j = 0; j < 8; j++)
        assert_true(fabs(twice.pair[KVD_PAIR_QK].sigma[j] - of_8[j]) < 1e-12);
    kvd_spectrum_release(&half);
    kvd_spectrum_release(&twice);
    kvd_spread_release(&s);
}

static void refuse(const char *text, const char *message)
{
    kvd_err err = {""};
    kvd_spread s;
    unit_write_text(path, text);
    assert_int_equal(kvd_spread_load(&s, path, &err), -1);
    if (!strstr(err.msg, message))
        fail_msg("'%s' is not in '%s'", message, err.msg);
    kvd_spread_release(&s);
}

TEST(test_refuses)
{
    refuse("pair,dim\n", "the heading is not");
    refuse("pair,dim,a\nxy,0,1\n", "no pair 'xy'");
    refuse("pair,dim,a\nqk,0,2\nqk,1,1\nvw,0,1\n",
           "pair 'vw' has 1 singular values, another has 2");
    refuse("pair,dim,a\nqk,1,1\n", "dim 1 comes where 0 should");
    refuse("pair,dim,a,b\nqk,0,1\n", "3 fields, the heading has 4");
    refuse("pair,dim,a\nqk,0,1\nqk,1,2\n", "singular value 1 is larger than the one before");
    refuse("pair,dim,a\nqk,0,0\n", "singular value 0 is 0");
    refuse("pair,dim,a\nqk,0,nan\n", "nan");
}

int main(void)
{
    path = temp_file("spread.csv");
    return unit_run(NULL, NULL);
}
