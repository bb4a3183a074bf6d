/*
 * Scores of InfiniteBench tasks, as src/compute_scores.py of github.com/OpenBMB/InfiniteBench
 * (Zhang et al. 2024, arXiv:2402.13718). UTF-8; digits 0 to 9 only.
 */
#ifndef KVD_EVALUATE_TASKS_INFINITE_SCORES_H
#define KVD_EVALUATE_TASKS_INFINITE_SCORES_H

#include <stdbool.h>

#include "evaluate/tasks/metrics.h"

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
