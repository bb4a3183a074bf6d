/* analysis/target: reading crossings off samples. The search itself runs in test_kvdim_eval.sh. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "analysis/accuracy_text.h"
#include "analysis/target.h"

static void test_monotone(void **state)
{
    (void)state;
    const kvd_target_sample s[] = {{0, {1, 1, 1}},
                                   {0.1, {0.999, 0.995, 1.003}},
                                   {0.2, {0.995, 0.985, 1.004}},
                                   {0.3, {0.985, 0.975, 0.995}},
                                   {0.4, {0.97, 0.95, 0.98}}};
    kvd_target t;
    char line[2 * KVD_ACCURACY_LINE];
    kvd_target_read(s, 5, 0.99, &t);
    assert_true(t.p == 0.2 && t.p_misses == 0.3 && t.p_last_kept == 0.2 && t.monotone == 1);
    assert_true(t.p_lo == 0.1 && t.p_hi == 0.4);
    assert_int_equal(t.n_points, 4);
    assert_string_equal(
        kvd_accuracy_target_line("zack", &t, line),
        "zack keeps 0.99 of the accuracy up to p = 0.2000 (missed at 0.3000); surely kept up to "
        "0.1000, surely lost from 0.4000; 4 points");
}

/* The first miss counts, a later recovery is told. */
static void test_not_monotone(void **state)
{
    (void)state;
    const kvd_target_sample s[] = {
        {0, {1, 1, 1}}, {0.1, {0.98, 0.97, 0.992}}, {0.2, {0.995, 0.985, 1.004}}, {0.3, {0.97, 0.95, 0.98}}};
    kvd_target t;
    char line[2 * KVD_ACCURACY_LINE];
    kvd_target_read(s, 4, 0.99, &t);
    assert_true(t.p == 0 && t.p_misses == 0.1 && t.p_last_kept == 0.2 && t.monotone == 0);
    assert_true(t.p_lo == 0 && t.p_hi == 0.3);
    assert_string_equal(
        kvd_accuracy_target_line("fdc", &t, line),
        "fdc keeps 0.99 of the accuracy up to p = 0.0000 (missed at 0.1000); surely kept up to "
        "0.0000, surely lost from 0.3000; 3 points\n"
        "fdc: not monotone, kept again beyond the miss, last at p = 0.2000");
}

static void test_never_missed_and_no_interval(void **state)
{
    (void)state;
    const kvd_target_sample s[] = {{0, {1, 1, 1}}, {0.5, {0.999, 0.99, 1.01}}};
    const kvd_target_sample one[] = {{0, {1, 1, 1}}, {0.5, {0.9, NAN, NAN}}};
    kvd_target t;
    kvd_target_read(s, 2, 0.99, &t);
    assert_true(t.p == 0.5 && isnan(t.p_misses) && t.p_lo == 0.5 && isnan(t.p_hi) && t.monotone == 1);
    kvd_target_read(one, 2, 0.99, &t);
    assert_true(t.p == 0 && t.p_misses == 0.5 && isnan(t.p_lo) && isnan(t.p_hi));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_monotone),
        cmocka_unit_test(test_not_monotone),
        cmocka_unit_test(test_never_missed_and_no_interval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
