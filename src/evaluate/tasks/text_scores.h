/* Scores of generated texts. Texts are UTF-8; an invalid byte counts as one character. */
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

/*
 * Computes ROUGE-1 (Lin 2004) like Google's rouge-score 0.1.2 without stemmer: lower-case words
 * [a-z0-9], counting repeated ones. Texts without words score 0.
 */
int kvd_rouge_1(const char *target, size_t n_target, const char *prediction, size_t n_prediction,
                kvd_rouge *out, kvd_err *err);

/*
 * Computes 1 - d / max(length), where d is the Levenshtein distance in characters. Empty texts
 * score 1. (In LongBench, substitutions cost 2.)
 */
int kvd_edit_similarity(const char *a, size_t n_a, const char *b, size_t n_b, double *out,
                        kvd_err *err);

/* Returns the number of tokens before the first difference. */
size_t kvd_agreeing_prefix(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b);

/* Computes the F1 score over words, counting repeated ones. Texts are normalised as in SQuAD. */
int kvd_qa_f1(const char *answer, const char *reference, double *f1, kvd_err *err);

/*
 * Computes ROUGE like Python's rouge 1.0.1 (kvd_rouge_1 is like rouge-score). Sentences end at full
 * stops, case matters and repeated words count once. Outputs may be NULL.
 */
int kvd_rouge_package(const char *answer, const char *reference, double *rouge_1, double *rouge_l,
                      kvd_err *err);

/*
 * Computes LongBench's code_sim_score: fuzzywuzzy's ratio (difflib) of the reference and the
 * answer's first line without "`", "#" or "//".
 */
int kvd_code_similarity(const char *answer, const char *reference, double *score, kvd_err *err);

/*
 * The functions from here on score InfiniteBench tasks as src/compute_scores.py of
 * github.com/OpenBMB/InfiniteBench (Zhang et al. 2024, arXiv:2402.13718). Digits are 0 to 9 only.
 */

/* Returns true if s is an integer as JSON writes it, such as -12. */
bool kvd_is_whole_number(const char *s);

/* Scores task code_run: 1 if the last word is the integer `reference`. */
int kvd_last_integer(const char *answer, const char *reference, double *score, kvd_err *err);

/* Scores task math_find: 1 if the first number, without its sign, is `reference`. */
double kvd_first_number(const char *answer, const char *reference);

/*
 * Scores task math_calc: the share of the reference's integers that the answer lists before its
 * first wrong one. Signs are ignored.
 */
double kvd_leading_numbers(const char *answer, const kvd_metric_key *key);

/*
 * Scores task code_debug: 1 if the answer begins with the right letter, or has the letter or the
 * option's text after "is:" or "answer:". The two references are the option's text and letter.
 */
int kvd_option_named(const char *answer, const kvd_metric_key *key, double *score, kvd_err *err);

/* Scores task longbook_qa_chn: F1 over characters, ignoring case, punctuation and white space. */
int kvd_characters_f1(const char *answer, const char *reference, double *score, kvd_err *err);

#endif
