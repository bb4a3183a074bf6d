/* Tests the prompt length from which a method is faster than no compression, and that invalid times
 * are refused. */
#include <math.h>
#include <stdlib.h>

#include "formats/jct.h"
#include "jct_fixture.h"
#include "temp_folder.h"
#include "unit.h"

static const kvd_column columns[] = {
    {"kind", KVD_COL_TEXT, "1", "kind"},     {"method", KVD_COL_TEXT, "1", "method"},
    {"name", KVD_COL_TEXT, "1", "name"},     {"dtype", KVD_COL_TEXT, "1", "type"},
    {"batch", KVD_COL_INT, "1", "batch"},    {"input", KVD_COL_INT, "token", "input"},
    {"output", KVD_COL_INT, "token", "out"}, {"jct_s", KVD_COL_REAL, "s", "jct"},
    {"jct_min_s", KVD_COL_REAL, "s", "min"}, {"jct_max_s", KVD_COL_REAL, "s", "max"},
};

static void add(kvd_rows *r, const char *method, int batch, int input, int output, double jct)
{
    kvd_err err;
    OK(kvd_rows_begin(r, &err));
    kvd_rows_text(r, "kind", "job");
    kvd_rows_text(r, "method", method);
    kvd_rows_text(r, "name", method);
    kvd_rows_text(r, "dtype", "f32");
    kvd_rows_int(r, "batch", batch);
    kvd_rows_int(r, "input", input);
    kvd_rows_int(r, "output", output);
    kvd_rows_real(r, "jct_s", jct);
}

static void near(double a, double b)
{
    if (!(fabs(a - b) < 1e-9))
        fail_msg("%.12g is not %.12g", a, b);
}

TEST(test_break_even)
{
    kvd_err err;
    kvd_rows *const r = kvd_rows_new(columns, sizeof columns / sizeof *columns, &err);
    assert_non_null(r);
    add(r, "none", 1, 400, 8, 4);
    add(r, "none", 1, 100, 8, 1);
    add(r, "zack", 1, 100, 8, 1.5);
    add(r, "none", 2, 200, 8, 100);
    add(r, "zack", 1, 400, 8, 3);
    add(r, "none", 1, 200, 8, 2);
    add(r, "zack", 1, 200, 8, 2.5);
    /* Prompts of 100, 200, 400 tokens take 1, 2, 4 s without compression and 1.5, 2.5, 3 s with
     * method zack. */
    near(kvd_jct_break_even(r, 2, false), 200 + 200.0 / 3);
    near(kvd_jct_break_even(r, 6, false), 200 + 200.0 / 3);
    assert_true(isnan(kvd_jct_break_even(r, 2, true)));
    near(kvd_jct_break_even(r, 4, true), 8);
    assert_true(kvd_jct_first_of_lengths(r, 2, false));
    assert_false(kvd_jct_first_of_lengths(r, 4, false));
    assert_int_equal(kvd_jct_uncompressed(r, 4), 0);
    add(r, "h2o", 1, 100, 8, 0.9);
    add(r, "h2o", 1, 200, 8, 1.9);
    near(kvd_jct_break_even(r, 7, false), 100);
    add(r, "h2o", 1, 400, 8, 4.5);
    assert_true(isnan(kvd_jct_break_even(r, 7, false)));
    add(r, "kivi", 3, 100, 8, 1);
    assert_true(isnan(kvd_jct_break_even(r, 10, false)));
    assert_true(kvd_jct_uncompressed(r, 10) == SIZE_MAX);
    kvd_rows_free(r);
}

static void add_runs(kvd_rows *r, const char *method, int input, double fastest, double median,
                     double slowest)
{
    add(r, method, 1, input, 8, median);
    kvd_rows_real(r, "jct_min_s", fastest);
    kvd_rows_real(r, "jct_max_s", slowest);
}

TEST(test_noise)
{
    kvd_err err;
    kvd_jct_noise noise;
    kvd_rows *const r = kvd_rows_new(columns, sizeof columns / sizeof *columns, &err);
    assert_non_null(r);
    for (int i = 1; i <= 4; i++)
        add_runs(r, "none", 100 * i, i - 0.05, i, i + 0.05);
    add_runs(r, "zack", 100, 1.45, 1.5, 1.55);
    add_runs(r, "zack", 200, 1.45, 1.5, 1.55);
    add_runs(r, "zack", 300, 2, 2, 2);
    assert_false(kvd_jct_break_even_noise(r, 4, false, &noise));
    add_runs(r, "zack", 400, 3.5, 3.6, 4.5);
    assert_true(kvd_jct_break_even_noise(r, 4, false, &noise));
    near(noise.length, 400);
    near(noise.difference, 0.4);
    near(noise.spread, 1);
    /* noise.spread is the larger of two spreads (slowest - fastest run): 0 s for method fdc, 0.1 s
     * without compression. */
    add_runs(r, "fdc", 100, 0.95, 0.95, 0.95);
    assert_true(kvd_jct_break_even_noise(r, 8, false, &noise));
    near(noise.spread, 0.1);
    near(noise.difference, 0.05);
    add_runs(r, "h2o", 100, 0.5, 0.9, 2);
    add_runs(r, "h2o", 200, 2.5, 2.5, 2.5);
    assert_false(kvd_jct_break_even_noise(r, 9, false, &noise));
    add_runs(r, "h2o", 300, 2.9, 3.1, 3.3);
    assert_true(kvd_jct_break_even_noise(r, 9, false, &noise));
    near(noise.length, 300);
    add_runs(r, "kivi", 100, 0.99, 0.99, 0.99);
    add(r, "gear", 1, 200, 8, 1);
    assert_true(kvd_jct_break_even_noise(r, 12, false, &noise));
    assert_false(kvd_jct_break_even_noise(r, 13, false, &noise));
    kvd_rows_free(r);
}

/* Writes results of one request: 0.25 s to the first token, `jct` seconds to the last. */
static void write_request(const char *path, double jct)
{
    kvd_err err;
    jct_fixture x;
    OK(jct_fixture_begin(&x, &err));
    OK(kvd_jct_add_request(x.rows, &x.setting, &(kvd_jct_request){.ttft = 0.25, .jct = jct}, &err));
    OK(jct_fixture_end(&x, path, test_run(), &err));
}

TEST(test_impossible_completion_time)
{
    char path[64], why[200], wanted[400];
    (void)snprintf(path, sizeof path, "%s/x.h5", temp_folder());
    for (int good = 0; good < 2; good++) {
        kvd_err err;
        kvd_h5 f;
        kvd_rows *read = NULL, *const r = kvd_jct_rows(1, &err);
        write_request(path, good);
        OK(kvd_h5_open(&f, path, &kvd_schema_jct, &err));
        if (good) {
            OK(kvd_jct_read(&read, &f, &err));
            OK(kvd_jct_resume(r, path, &kvd_schema_jct, "test", &err));
        } else {
            (void)snprintf(why, sizeof why, "'%s': '/rows/jct_s' is 0 in row 0", path);
            FAILS(kvd_jct_read(&read, &f, &err), why);
            (void)snprintf(wanted, sizeof wanted,
                           "cannot resume: %s; remove '%s' or run without --resume", why, path);
            FAILS(kvd_jct_resume(r, path, &kvd_schema_jct, "test", &err), wanted);
        }
        kvd_rows_free(read);
        kvd_rows_free(r);
        kvd_h5_close(&f, false);
    }
}

TEST_MAIN(NULL, NULL)
