
#include "analysis/reduce.h"
#include "make_dump.h"
#include "temp_folder.h"
#include "unit.h"

enum { D = 8 };

static char path[2][64];
static kvd_activations dump[2];

static int set_up(void **state)
{
    (void)state;
    kvd_err err;
    dump_plan p;
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%d.h5", temp_folder(), i);
        dump_plan_init(&p, i ? 130 : 300, (uint64_t)i + 1);
        p.a.n_sequences = i ? 13 : 20;
        if (write_dump(&p, path[i], test_run(), &err) ||
            kvd_activations_open(&dump[i], path[i], &err))
            return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        kvd_activations_close(&dump[i]);
    return 0;
}

static void fresh(kvd_source s[2])
{
    for (int i = 0; i < 2; i++)
        s[i] = (kvd_source){.dump = &dump[i], .n_tokens = dump[i].n_tokens};
}

TEST(test_sequences)
{
    size_t *start, n;
    kvd_err err;
    OK(kvd_activations_sequences(&dump[0], 300, &start, &n, &err));
    assert_int_equal(n, 20);
    for (size_t i = 0; i <= 20; i++)
        assert_int_equal(start[i], 15 * i);
    free(start);
    OK(kvd_activations_sequences(&dump[0], 121, &start, &n, &err));
    assert_int_equal(n, 9);
    assert_int_equal(start[8], 120);
    assert_int_equal(start[9], 121);
    free(start);
}

TEST(test_prune_keeps_its_share_of_every_text)
{
    for (int tenth = 0; tenth < 10; tenth++) {
        kvd_source s[2];
        kvd_pruned p;
        kvd_err err;
        const size_t dropped[2] = {2 * (size_t)tenth, (size_t)(1.3 * tenth + 0.5)};
        fresh(s);
        OK(kvd_prune(s, 2, tenth * 0.1, 5, &p, &err));
        assert_int_equal(p.n_sequences, dropped[0] + dropped[1]);
        assert_int_equal(p.n_tokens, 15 * dropped[0] + 10 * dropped[1]);
        for (int i = 0; i < 2; i++) {
            size_t total = 0, end = 0;
            assert_int_equal(s[i].n_tokens, dump[i].n_tokens - (i ? 10 : 15) * dropped[i]);
            for (size_t k = 0; k < s[i].n_spans; k++) {
                assert_true(k == 0 || s[i].span[k].first > end);
                assert_int_equal(s[i].span[k].first % (i ? 10 : 15), 0);
                assert_int_equal(s[i].span[k].n % (i ? 10 : 15), 0);
                end = s[i].span[k].first + s[i].span[k].n;
                total += s[i].span[k].n;
            }
            assert_true(end <= dump[i].n_tokens);
            assert_int_equal(total, s[i].n_tokens);
        }
        kvd_pruned_release(&p);
    }
}

TEST(test_prune_is_uniform)
{
    enum { DRAWS = 2000 };
    size_t kept[20] = {0};
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        kvd_source s[2];
        kvd_pruned p;
        kvd_err err;
        fresh(s);
        OK(kvd_prune(s, 2, 0.4, seed, &p, &err));
        for (size_t k = 0; k < s[0].n_spans; k++)
            for (size_t t = 0; t < s[0].span[k].n; t += 15)
                kept[(s[0].span[k].first + t) / 15]++;
        kvd_pruned_release(&p);
    }
    for (int i = 0; i < 20; i++) /* Each count may be off by five standard deviations. */
        assert_true(fabs((double)kept[i] - 0.6 * DRAWS) < 5 * sqrt(0.24 * DRAWS));
}

typedef struct {
    float x[300 * D];
    size_t n;
} delivered;

static int take(void *ctx, const float *rows, size_t n, kvd_err *err)
{
    delivered *g = ctx;
    (void)err;
    memcpy(g->x + g->n * D, rows, n * D * sizeof *rows);
    g->n += n;
    return 0;
}

TEST(test_rows_are_those_of_the_spans)
{
    static delivered g;
    float all[300 * D];
    kvd_source s[2];
    kvd_pruned p;
    kvd_err err;
    fresh(s);
    OK(kvd_activations_rows(&dump[0], KVD_X_K, 1, 1, 0, 300, all, NULL, &err));
    OK(kvd_prune(s, 2, 0.5, 3, &p, &err));
    OK(kvd_source_rows(&s[0], KVD_X_K, 1, 1, take, &g, &err));
    assert_int_equal(g.n, 150);
    size_t at = 0;
    for (size_t k = 0; k < s[0].n_spans; k++) {
        assert_memory_equal(g.x + at * D, all + s[0].span[k].first * D,
                            s[0].span[k].n * D * sizeof(float));
        at += s[0].span[k].n;
    }
    kvd_pruned_release(&p);
}

TEST(test_nothing_left_is_refused)
{
    kvd_source s[2];
    kvd_pruned p;
    kvd_err err;
    fresh(s);
    assert_int_equal(kvd_prune(s, 2, 0.97, 1, &p, &err), -1);
    assert_non_null(
        strstr(err.msg, "1.h5': of 13 sequences none is left when 0.97 of them are dropped"));
    kvd_pruned_release(&p);
}

static double energy_of(const kvd_source *s, size_t n_sources, kvd_x x, int layer, int head)
{
    double sum = 0;
    for (size_t i = 0; i < n_sources; i++) {
        static delivered g;
        kvd_err err;
        g.n = 0;
        OK(kvd_source_rows(&s[i], x, layer, head, take, &g, &err));
        for (size_t k = 0; k < g.n * D; k++)
            sum += (double)g.x[k] * g.x[k];
    }
    return sum;
}

TEST(test_centroids)
{
    const bool need[KVD_N_X] = {[KVD_X_Q] = true, [KVD_X_V] = true};
    kvd_source s[2];
    kvd_layer_rows plain, weighted, again;
    kvd_reduced sum = {0}, sum_w = {0}, sum_a = {0};
    kvd_reduction r = {.centroids = 40, .seed = 9};
    kvd_err err;
    fresh(s);
    OK(kvd_reduce_layer(s, 2, need, 1, &r, &plain, &sum, &err));
    r.weighted = true;
    OK(kvd_reduce_layer(s, 2, need, 1, &r, &weighted, &sum_w, &err));
    OK(kvd_reduce_layer(s, 2, need, 1, &r, &again, &sum_a, &err));
    assert_int_equal(sum.n, 6);
    assert_int_equal(weighted.n_heads[KVD_X_Q], 4);
    assert_int_equal(weighted.n_heads[KVD_X_V], 2);
    assert_int_equal(weighted.n_heads[KVD_X_K], 0);
    assert_true(sum_w.residual > 0 && sum_w.residual < sum_w.energy);
    double kept = 0, all = 0;
    for (int x = 0; x < KVD_N_X; x++)
        for (int h = 0; h < weighted.n_heads[x]; h++) {
            double rows = 0;
            const size_t n = weighted.n_rows[x][h];
            assert_int_equal(n, 40);
            all += energy_of(s, 2, (kvd_x)x, 1, h);
            assert_memory_equal(weighted.rows[x][h], again.rows[x][h], n * D * sizeof(float));
            for (size_t c = 0; c < n; c++) {
                double a = 0, b = 0;
                for (size_t j = 0; j < D; j++) {
                    a += pow(weighted.rows[x][h][c * D + j], 2);
                    b += pow(plain.rows[x][h][c * D + j], 2);
                }
                assert_true(fabs(a / b - round(a / b)) < 1e-3 && a / b > 0.5);
                rows += round(a / b);
                kept += a;
            }
            assert_true(rows == 430);
        }
    /* Sum of squares of all vectors = that of the centroids, weighted by cluster size, + the
     * squared distances of the vectors from their centroids. */
    assert_true(fabs(all - sum_w.energy) < 1e-9 * all);
    assert_true(fabs(all - kept - sum_w.residual) < 1e-6 * all);
    kvd_layer_rows_release(&plain);
    kvd_layer_rows_release(&weighted);
    kvd_layer_rows_release(&again);
}

TEST(test_too_many_centroids)
{
    const bool need[KVD_N_X] = {[KVD_X_K] = true};
    const kvd_reduction r = {.centroids = 431};
    kvd_source s[2];
    kvd_layer_rows out;
    kvd_reduced sum = {0};
    kvd_err err;
    fresh(s);
    FAILS(kvd_reduce_layer(s, 2, need, 0, &r, &out, &sum, &err),
          "431 centroids are more than the 430 tokens that they replace");
}

TEST_MAIN(set_up, tear_down)
