/*
 * Scores of InfiniteBench's tasks of code, mathematics and Chinese books, as src/compute_scores.py
 * of github.com/OpenBMB/InfiniteBench computes them (Zhang et al. 2024, arXiv:2402.13718). Texts
 * are UTF-8; the digits of numbers are 0 to 9, not those of other scripts.
 */
#ifndef KVD_EVALUATE_TASKS_INFINITE_SCORES_H
#define KVD_EVALUATE_TASKS_INFINITE_SCORES_H

#include <stdbool.h>

#include "evaluate/tasks/metrics.h"

/* Returns true if s is an integer as JSON writes it, such as -12. */
bool kvd_is_whole_number(const char *s);

/*
 * Scores task code_run: sets *score to 1 if the last word of the answer is the integer `reference`,
 * else to 0.
 */
int kvd_last_integer(const char *answer, const char *reference, double *score, kvd_err *err);

/*
 * Scores task math_find: returns 1 if the first number of the answer, without its sign, is
 * `reference`. If the reference is an integer, a number with a decimal point is wrong.
 */
double kvd_first_number(const char *answer, const char *reference);

/*
 * Scores task math_calc: returns the fraction of the reference integers that the answer lists
 * correctly before its first wrong number. Signs in the answer are ignored.
 */
double kvd_leading_numbers(const char *answer, const kvd_metric_key *key);

/*
 * Scores task code_debug: sets *score to 1 if the answer begins with the letter of the right option
 * and a point or colon, or if the letter or the option's text follows "is:" or "answer:". The first
 * reference is the text, the second the letter.
 */
int kvd_option_named(const char *answer, const kvd_metric_key *key, double *score, kvd_err *err);

/*
 * Scores task longbook_qa_chn: sets *score to the F1 over characters, ignoring case, punctuation
 * and white space.
 */
int kvd_characters_f1(const char *answer, const char *reference, double *score, kvd_err *err);

#endif
