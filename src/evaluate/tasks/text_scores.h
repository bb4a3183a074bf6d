/* Scores of generated texts in UTF-8. An invalid byte counts as one character. */
#ifndef KVD_EVALUATE_TASKS_TEXT_SCORES_H
#define KVD_EVALUATE_TASKS_TEXT_SCORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "evaluate/tasks/metrics.h"

typedef struct {
    double precision, recall, f1;
} kvd_rouge;

/* Computes ROUGE-1 (Lin 2004) as Google's rouge-score does without stemmer; 0 without words. */
int kvd_rouge_1(const char *target, size_t n_target, const char *prediction, size_t n_prediction,
                kvd_rouge *out, kvd_err *err);

/* Computes 1 - d / max(length), with Levenshtein distance d in characters; 1 for empty texts. */
int kvd_edit_similarity(const char *a, size_t n_a, const char *b, size_t n_b, double *out,
                        kvd_err *err);

/* Returns the number of tokens before the first difference. */
size_t kvd_agreeing_prefix(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b);

/* Computes F1 over words with repetitions. Texts are normalised as in SQuAD. */
int kvd_qa_f1(const char *answer, const char *reference, double *f1, kvd_err *err);

/* Computes ROUGE as Python's rouge 1.0.1: repeated words count once. Outputs may be NULL. */
int kvd_rouge_package(const char *answer, const char *reference, double *rouge_1, double *rouge_l,
                      kvd_err *err);

/* Computes LongBench's code_sim_score: difflib's ratio of reference and first line of code. */
int kvd_code_similarity(const char *answer, const char *reference, double *score, kvd_err *err);

/* The functions below score InfiniteBench like its own src/compute_scores.py. Digits are 0 to 9. */

/* Returns true for an integer as JSON writes it, such as -12. */
bool kvd_is_whole_number(const char *s);

/* Scores task code_run: 1 if the last word is the integer `reference`. */
int kvd_last_integer(const char *answer, const char *reference, double *score, kvd_err *err);

/* Scores task math_find: 1 if the first number, without sign and in digits of any script, is
 * `reference`. */
int kvd_first_number(const char *answer, const char *reference, double *score, kvd_err *err);

/* Scores task math_calc: share of the reference's integers before the first wrong one. */
double kvd_leading_numbers(const char *answer, const kvd_metric_key *key);

/* Scores task code_debug: 1 if the answer begins with the right option's letter, or has that letter
 * or the option's text after "answer:". */
int kvd_option_named(const char *answer, const kvd_metric_key *key, double *score, kvd_err *err);

/* Scores task longbook_qa_chn: F1 over characters, without case, punctuation and spaces. */
int kvd_characters_f1(const char *answer, const char *reference, double *score, kvd_err *err);

#endif
