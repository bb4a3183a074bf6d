/* Compares kvdim's scores of answers with scores that the benchmarks' own Python code computed
 * (tests/oracle/make_task_scores.py). */
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/rng.h"
#include "evaluate/tasks/metrics.h"
#include "evaluate/tasks/text_scores.h"
#include "unit.h"

enum { MOST = 16 };

static size_t texts(const json_t *list, char **to)
{
    const size_t n = json_array_size(list);
    assert_true(n <= MOST);
    for (size_t i = 0; i < n; i++)
        to[i] = strdup(json_string_value(json_array_get(list, i)));
    return n;
}

static kvd_metric metric_of(const json_t *row)
{
    const char *const name = json_string_value(json_object_get(row, "metric"));
    int k = 0;
    while (kvd_metric_words[k] && strcmp(kvd_metric_words[k], name))
        k++;
    assert_non_null(kvd_metric_words[k]);
    return (kvd_metric)k;
}

TEST(as_the_authors)
{
    json_error_t why;
    size_t cases[KVD_N_METRICS] = {0}, scored[KVD_N_METRICS] = {0};
    json_t *const all = json_load_file("tests/data/task_scores.json", 0, &why);
    json_t *const more = json_load_file("tests/data/infinitebench.json", 0, &why);
    assert_non_null(all);
    assert_int_equal(json_array_extend(all, json_object_get(more, "scores")), 0);
    json_decref(more);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *const row = json_array_get(all, i);
        const kvd_metric m = metric_of(row);
        char *reference[MOST], *choice[MOST];
        const kvd_metric_key key = {reference, texts(json_object_get(row, "references"), reference),
                                    choice, texts(json_object_get(row, "choices"), choice)};
        const char *const answer = json_string_value(json_object_get(row, "answer"));
        const double wanted = json_number_value(json_object_get(row, "score"));
        /* RULER's own code rounds scores to hundredths of a percent. */
        const double tolerance = m == KVD_METRIC_MATCH_ALL ? 5.1e-5 : 1e-12;
        double score = NAN;
        kvd_err err = {""};
        if (kvd_metric_score(m, answer, &key, &score, &err))
            fail_msg("case %zu: %s", i, err.msg);
        if (!(fabs(score - wanted) <= tolerance))
            fail_msg("case %zu, %s of '%s' against '%s': %.15g, the authors' code has %.15g", i,
                     kvd_metric_words[m], answer, reference[0], score, wanted);
        cases[m]++;
        scored[m] += wanted > 0;
        for (size_t k = 0; k < key.n_references; k++)
            free(reference[k]);
        for (size_t k = 0; k < key.n_choices; k++)
            free(choice[k]);
    }
    for (int m = 0; m < KVD_N_METRICS; m++)
        if (!scored[m] || scored[m] == cases[m])
            fail_msg("%s: %zu of %zu cases score", kvd_metric_words[m], scored[m], cases[m]);
    json_decref(all);
}

/* Numbers in an answer may use digits of any script, for example Arabic, like \d in Python. */
TEST(digits_of_other_scripts)
{
    static const struct {
        const char *answer;
        double score;
    } cases[] = {{"Paragraph 3", 1},
                 {"3 and \xef\xbc\x93", 0.5},
                 {"\xd9\xa3"
                  "3 3",
                  0.5},
                 {"1\xef\xbc\x92 \xd9\xa3 3", 1.0 / 3},
                 {"\xc3\xa9"
                  "3 \xff",
                  1}};
    char *paragraph[] = {(char *)"Paragraph 3"}, *number[] = {(char *)"3"};
    const kvd_metric_key keys[] = {{.reference = paragraph, .n_references = 1},
                                   {.reference = number, .n_references = 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 2; k++) {
            double score = NAN;
            kvd_err err = {""};
            OK(kvd_metric_score(k ? KVD_METRIC_COUNT : KVD_METRIC_RETRIEVAL, cases[i].answer,
                                &keys[k], &score, &err));
            assert_true(fabs(score - cases[i].score) < 1e-12);
        }
}

/* Scores of answers with non-ASCII text must equal the scores of the benchmarks' own Python
 * code. */
TEST(unicode_as_in_python)
{
    static const struct {
        kvd_metric metric;
        const char *answer, *reference[2];
        double score;
    } cases[] = {
        /* \u0130 (capital I with dot) has a lower case of two characters. */
        {KVD_METRIC_MATCH_PART, "\u0130stanbul", {"is"}, 0},
        {KVD_METRIC_MATCH_PART, "x \u0130STANBUL", {"i\u0307stanbul"}, 1},
        /* a capital sigma at the end of a word */
        {KVD_METRIC_MATCH_PART, "\u039f\u0394\u039f\u03a3.", {"\u03bf\u03b4\u03bf\u03c2"}, 1},
        {KVD_METRIC_MATCH_PART, "\u0391\u03a3\u0391", {"\u03b1\u03c3\u03b1"}, 1},
        /* \u00bd (one half) is a number, so the letter a after it is no article. */
        {KVD_METRIC_QA_F1, "\u00bda cup", {"\u00bd cup"}, 0.5},
        {KVD_METRIC_FIRST_NUMBER, "\uff11\uff12 cups", {"12"}, 1},
        {KVD_METRIC_FIRST_NUMBER, "\u0663.\u0665", {"3.5"}, 1},
        {KVD_METRIC_LETTER, "\u3000B", {"the cat", "B"}, 1},
        {KVD_METRIC_LETTER, "answer is \u201cB\u201d", {"the cat", "B"}, 0},
        {KVD_METRIC_LETTER, "answer is\u201cB\u201d", {"the cat", "B"}, 1},
        {KVD_METRIC_LETTER, "so\u00a0B\u00a0it is", {"the cat", "B"}, 1},
        {KVD_METRIC_WORD, "key:\u3000a1b2\u2028", {"a1b2"}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvd_err err = {""};
        double score = NAN;
        char *reference[2] = {(char *)(uintptr_t)cases[i].reference[0],
                              (char *)(uintptr_t)cases[i].reference[1]};
        const kvd_metric_key key = {reference, reference[1] ? 2 : 1, NULL, 0};
        OK(kvd_metric_score(cases[i].metric, cases[i].answer, &key, &score, &err));
        if (!(fabs(score - cases[i].score) < 1e-12))
            fail_msg("case %zu: %.15g, not %.15g", i, score, cases[i].score);
    }
}

TEST(refusals)
{
    char *reference[] = {(char *)"three"}, *nothing[] = {(char *)""}, *hashes[] = {(char *)"#### "};
    const kvd_metric_key key = {.reference = reference, .n_references = 1},
                         empty = {.reference = nothing, .n_references = 1},
                         result = {.reference = hashes, .n_references = 1},
                         none = {.reference = NULL};
    const struct {
        kvd_metric metric;
        const kvd_metric_key *key;
        const char *says;
    } cases[] = {
        {KVD_METRIC_EXACT, &none, "no reference"},
        {KVD_METRIC_CLASSIFICATION, &key, "metric classification needs the classes (all_classes)"},
        {KVD_METRIC_LAST_INTEGER, &key,
         "metric last-integer needs whole numbers as references, not 'three'"},
        {KVD_METRIC_LEADING, &key,
         "metric leading-numbers needs whole numbers as references, not 'three'"},
        {KVD_METRIC_OPTION, &key,
         "metric option needs two references: the option's text, its letter"},
        {KVD_METRIC_RETRIEVAL, &key,
         "metric retrieval needs references 'Paragraph N', not 'three'"},
        {KVD_METRIC_NUMBER, &key, "metric number needs '#### N' at the end of the reference"},
        {KVD_METRIC_NUMBER, &result, "metric number needs '#### N' at the end of the reference"},
        {KVD_METRIC_MATCH_ALL, &empty, "metric match-all needs a reference that is not empty"},
        {KVD_METRIC_MATCH_PART, &empty, "metric match-part needs a reference that is not empty"},
        {KVD_METRIC_LETTER, &empty, "metric letter needs a reference that is not empty"},
        {KVD_METRIC_FIRST_INTEGER, &empty,
         "metric first-integer needs a reference that is not empty"},
        {KVD_METRIC_CHOICE, &key, "metric choice needs a reference of A, B, C or D, not 'three'"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double score;
        kvd_err err = {""};
        assert_int_equal(kvd_metric_score(cases[i].metric, "3", cases[i].key, &score, &err), -1);
        assert_string_equal(err.msg, cases[i].says);
    }
}

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
        OK(kvd_rouge_1(a, n, b, m, &r, &err) || kvd_edit_similarity(a, n, b, m, &edit, &err));
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
    OK(kvd_edit_similarity(a, n, b, m, &x, &err));
    return x;
}

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
