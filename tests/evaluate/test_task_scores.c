/*
 * Compares the scores of answers with those of the benchmarks' own code
 * (tests/oracle/make_task_scores.py).
 */
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate/tasks/metrics.h"
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
        /* RULER rounds its mean scores to hundredths of a percent. */
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

/* In Python, \d+ also matches digits of other scripts, which equal no reference. */
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
            assert_int_equal(kvd_metric_score(k ? KVD_METRIC_COUNT : KVD_METRIC_RETRIEVAL,
                                              cases[i].answer, &keys[k], &score, &err),
                             0);
            assert_true(fabs(score - cases[i].score) < 1e-12);
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
        /* An empty reference answer is part of every answer and would score 100 %. */
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

TEST_MAIN(NULL, NULL)
