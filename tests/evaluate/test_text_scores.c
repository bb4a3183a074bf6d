/*
 * Compares the scores of answers with Google's rouge-score and with rapidfuzz
 * (tests/oracle/make_task_scores.py).
 */
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/rng.h"
#include "evaluate/tasks/text_scores.h"
#include "unit.h"

static double number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

TEST(as_the_oracles)
{
    json_error_t why;
    json_t *const all = json_load_file("tests/data/text_scores.json", 0, &why);
    assert_non_null(all);
    assert_true(json_array_size(all) > 70);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *const row = json_array_get(all, i), *const t = json_object_get(row, "target"),
                            *const p = json_object_get(row, "prediction");
        const char *const a = json_string_value(t), *const b = json_string_value(p);
        const size_t n = json_string_length(t), m = json_string_length(p);
        kvd_err err = {""};
        kvd_rouge r;
        double edit = NAN;
        if (kvd_rouge_1(a, n, b, m, &r, &err) || kvd_edit_similarity(a, n, b, m, &edit, &err))
            fail_msg("%s", err.msg);
        if (fabs(r.precision - number(row, "precision")) > 1e-12 ||
            fabs(r.recall - number(row, "recall")) > 1e-12 ||
            fabs(r.f1 - number(row, "f1")) > 1e-12)
            fail_msg("'%s', '%s': %g %g %g, rouge-score says %g %g %g", a, b, r.precision, r.recall,
                     r.f1, number(row, "precision"), number(row, "recall"), number(row, "f1"));
        if (fabs(edit - number(row, "edit_similarity")) > 1e-12)
            fail_msg("'%s', '%s': %g, rapidfuzz says %g", a, b, edit,
                     number(row, "edit_similarity"));
    }
    json_decref(all);
}

static double similarity(const char *a, size_t n, const char *b, size_t m)
{
    kvd_err err;
    double x = NAN;
    assert_int_equal(kvd_edit_similarity(a, n, b, m, &x, &err), 0);
    return x;
}

/* Similarity must be symmetric, and the edit distance must obey the triangle inequality. */
TEST(distances_of_bytes)
{
    kvd_rng r;
    kvd_rng_seed(&r, 3, 0);
    for (int k = 0; k < 300; k++) {
        char text[3][40];
        size_t n[3];
        for (int i = 0; i < 3; i++) {
            n[i] = (size_t)kvd_rng_below(&r, sizeof text[i]);
            for (size_t j = 0; j < n[i]; j++)
                text[i][j] = (char)(kvd_rng_below(&r, 2) ? 0xC3 + (int)kvd_rng_below(&r, 3) : 0xA9);
        }
        assert_true(fabs(similarity(text[0], n[0], text[1], n[1]) -
                         similarity(text[1], n[1], text[0], n[0])) < 1e-15);
        assert_true(similarity(text[0], n[0], text[0], n[0]) >= 1);
        const bool same = n[0] == n[1] && !memcmp(text[0], text[1], n[0]);
        assert_int_equal(similarity(text[0], n[0], text[1], n[1]) >= 1, same);
    }
    /* A single UTF-8 lead byte counts as a character that differs from every other one. */
    assert_true(fabs(similarity("\xC3", 1, "\xC3\xA9", 2)) < 1e-15);
    assert_true(fabs(similarity("a\xC3 b", 4, "a\xC4 b", 4) - 0.75) < 1e-15);
}

TEST(prefixes)
{
    const uint32_t a[] = {1, 2, 3, 4}, b[] = {1, 2, 5, 4};
    assert_int_equal(kvd_agreeing_prefix(a, 4, b, 4), 2);
    assert_int_equal(kvd_agreeing_prefix(a, 4, a, 4), 4);
    assert_int_equal(kvd_agreeing_prefix(a, 3, a, 4), 3);
    assert_int_equal(kvd_agreeing_prefix(a, 0, a, 4), 0);
}

TEST_MAIN(NULL, NULL)
