#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/ledger.h"
#include "temp_folder.h"
#include "unit.h"

static void put_tables(const char *text)
{
    char *all = NULL;
    int n = 0;
    for (const char *c = text; *c; c++)
        n += *c == '\n';
    assert_true(asprintf(&all, "%send,%d\n", text, n) >= 0);
    unit_write_text(temp_file("tables.csv"), all);
    free(all);
}

#define HEADING "x,model,dataset,eps_mean,delta_mean\n"

static kvd_published_table table(const char *rows)
{
    char text[1024];
    kvd_published_table t;
    kvd_err err = {""};
    snprintf(text, sizeof text, "%s%s", HEADING, rows);
    put_tables(text);
    OK(kvd_published_load(temp_folder(), "x", &t, &err));
    return t;
}

/* epsilon: mean |element| of the rotation matrix computed from a text; delta: mean |difference|
 * between this matrix and a reference matrix. Epsilons of two texts must differ by at most the sum
 * of their deltas. */
TEST(test_triangle)
{
    static const struct {
        const char *rows;
        size_t violated;
    } want[] = {{"x,m,a,5.00e-2,4.0e-4\nx,m,b,5.10e-2,6.0e-4\n", 0},
                /* allowed, because rounding errors explain that 5.10e-2 - 5.00e-2 is larger than
                 * 4.0e-4 + 5.0e-4 */
                {"x,m,a,5.00e-2,4.0e-4\nx,m,b,5.10e-2,5.0e-4\n", 0},
                {"x,m,a,5.00e-2,4.0e-4\nx,m,b,5.10e-2,3.0e-4\n", 1}};
    for (size_t i = 0; i < 3; i++) {
        kvd_published_table t = table(want[i].rows);
        assert_int_equal(t.n, 1);
        assert_true(fabs(t.model[0].epsilon[0].half - 5e-5) < 1e-12);
        assert_true(fabs(t.model[0].delta[0].half - 5e-6) < 1e-12);
        const kvd_published_triangle x = kvd_published_triangle_of(&t.model[0], 0, 1);
        assert_int_equal(x.pairs, 1);
        if (x.violated != want[i].violated)
            fail_msg("row %zu: %zu", i, x.violated);
        kvd_published_release(&t);
    }
}

/* Column 4: mean |element| of a rotation matrix (epsilon); column 5: mean |difference| from a
 * reference matrix (delta). Tests if one number x gives delta = |epsilon - x| in all rows of a
 * model. */
TEST(test_one_epsilon)
{
    kvd_published_table t = table(
        "x,m,a,5.000e-2,5.00e-4\nx,m,b,5.020e-2,3.00e-4\nx,m,c,5.060e-2,1.00e-4\n"
        "x,n,a,5.000e-2,5.00e-4\nx,n,b,5.020e-2,1.00e-4\nx,n,c,5.060e-2,3.00e-4\nx,n,d,N/A,N/A\n");
    assert_int_equal(t.n, 2);
    assert_int_equal(t.model[1].n, 3);
    assert_true(kvd_published_one_epsilon(&t.model[0]));
    assert_false(kvd_published_one_epsilon(&t.model[1]));
    const kvd_published_fit f = kvd_published_fit_of(&t);
    assert_int_equal(f.fits, 1);
    /* With deltas in random order, each of the two models fits with probability 1/6. */
    assert_true(fabs(f.expected - 1 / 3.0) < 1e-12);
    assert_true(fabs(f.probability - 11 / 36.0) < 1e-12);
    kvd_published_release(&t);
}

TEST(test_twins)
{
    put_tables(
        "x,model,p,q\nx,a,0.50,1\nx,b,0.60,2\nx,c,0.70,3\nx,d,0.80,4\nx,e,0.90,5\n"
        "y,model,r,s\ny,b,0.60,9\ny,a,0.50,8\ny,d,0.8,7\ny,c,0.70,6\ny,f,1,5\n"
        "z,model,r,s\nz,z,0.60,9\n"
        "z_traces,model,p\nz_traces,a,0.50\nz_traces,b,0.60\nz_traces,c,0.70\nz_traces,d,0.80\n");
    kvd_published_twin *twin;
    kvd_published_double *same;
    size_t n;
    kvd_err err = {""};
    OK(kvd_published_twins(temp_folder(), &twin, &n, &err));
    assert_int_equal(n, 1);
    assert_string_equal(twin[0].table[0], "x");
    assert_string_equal(twin[0].column[0], "p");
    assert_string_equal(twin[0].column[1], "r");
    assert_int_equal(twin[0].shared, 4); /* models a, b, c and d are in both tables */
    assert_int_equal(twin[0].equal, 3);
    free(twin);
    OK(kvd_published_doubles(temp_folder(), &same, &n, &err));
    assert_int_equal(n, 1);
    assert_string_equal(same[0].model[0], "b");
    assert_string_equal(same[0].model[1], "z");
    assert_int_equal(same[0].numbers, 2);
    free(same);
}

/* Results computed from tables of the papers on ZACK and FDC must be the numbers in
 * docs/results.md. */
TEST(test_papers)
{
    static const struct {
        const char *file;
        size_t models, pairs, violated, fits;
    } want[] = {{"zack_table04_qk_eps_delta", 7, 39, 0, 6},
                {"zack_table05_vwl_eps_delta", 7, 39, 0, 7},
                {"fdc_table02_qk_eps_delta", 5, 50, 11, 0}};
    for (size_t k = 0; k < 3; k++) {
        kvd_published_table t;
        kvd_err err = {""};
        size_t pairs = 0, violated = 0;
        OK(kvd_published_load("data/paper", want[k].file, &t, &err));
        for (size_t i = 0; i < t.n; i++)
            for (size_t a = 0; a < t.model[i].n; a++)
                for (size_t b = a + 1; b < t.model[i].n; b++) {
                    const kvd_published_triangle x = kvd_published_triangle_of(&t.model[i], a, b);
                    pairs += x.pairs;
                    violated += x.violated;
                    assert_true(!x.violated || !strcmp(t.model[i].dataset[a], "PG-19") ||
                                !strcmp(t.model[i].dataset[b], "PG-19"));
                }
        assert_int_equal(t.n, want[k].models);
        assert_int_equal(pairs, want[k].pairs);
        assert_int_equal(violated, want[k].violated);
        assert_int_equal(kvd_published_fit_of(&t).fits, want[k].fits);
        kvd_published_release(&t);
    }
}

TEST(test_refused)
{
    kvd_published_table t;
    kvd_err err = {""};
    put_tables("x,model,p\nx,a,1\n");
    FAILS_WITH(kvd_published_load(temp_folder(), "x", &t, &err), "has no columns model, dataset");
    kvd_published_release(&t);
    put_tables(HEADING "x,m,a,many,1\n");
    FAILS_WITH(kvd_published_load(temp_folder(), "x", &t, &err), "many");
    kvd_published_release(&t);
}

TEST_MAIN(NULL, NULL)
