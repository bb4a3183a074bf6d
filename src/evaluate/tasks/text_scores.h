/* Scores of generated texts in UTF-8. A byte that is not valid UTF-8 counts as one character. */
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

/* Computes ROUGE-1 (Lin 2004) as Google's package rouge-score does without stemmer; 0 for texts
 * without words. */
int kvd_rouge_1(const char *target, size_t n_target, const char *prediction, size_t n_prediction,
                kvd_rouge *out, kvd_err *err);

/* Computes 1 - d / (length of the longer text), where d is the Levenshtein distance in characters;
 * 1 if both texts are empty. */
int kvd_edit_similarity(const char *a, size_t n_a, const char *b, size_t n_b, double *out,
                        kvd_err *err);

/* Returns the number of tokens at the start of a and b that are equal. */
size_t kvd_agreeing_prefix(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b);

/* Computes F1 over words, counting repeated words, after normalising both texts as SQuAD does. */
int kvd_qa_f1(const char *answer, const char *reference, double *f1, kvd_err *err);

/* Computes ROUGE-1 and ROUGE-L as Python's package rouge 1.0.1 does, where repeated words count
 * once. rouge_1 or rouge_l is NULL if not wanted. */
int kvd_rouge_package(const char *answer, const char *reference, double *rouge_1, double *rouge_l,
                      kvd_err *err);

/* Computes LongBench's code_sim_score: the similarity, as in Python's difflib, of the whole
 * reference and the answer's first line of code. */
int kvd_code_similarity(const char *answer, const char *reference, double *score, kvd_err *err);

/* The functions below score answers as InfiniteBench's own src/compute_scores.py does. Digits are 0
 * to 9. */

/* Returns true if `s` is an integer as JSON writes it, such as -12. */
bool kvd_is_whole_number(const char *s);

/* Scores task code_run: 1 if the answer's last word is the integer `reference`, else 0. */
int kvd_last_integer(const char *answer, const char *reference, double *score, kvd_err *err);

/* Scores task math_find: 1 if the answer's first number, without its sign and in digits of any
 * script, equals `reference`, else 0. */
int kvd_first_number(const char *answer, const char *reference, double *score, kvd_err *err);

/* Scores task math_calc: fraction of the reference's integers that the answer repeats before its
 * first wrong integer. */
double kvd_leading_numbers(const char *answer, const kvd_metric_key *key);

/* Scores task code_debug: 1 if the answer begins with the right option's letter, or has the letter
 * or text of that option after "answer:". */
int kvd_option_named(const char *answer, const kvd_metric_key *key, double *score, kvd_err *err);

/* Scores task longbook_qa_chn: F1 over characters, ignoring case, punctuation and white space. */
int kvd_characters_f1(const char *answer, const char *reference, double *score, kvd_err *err);

#endif
