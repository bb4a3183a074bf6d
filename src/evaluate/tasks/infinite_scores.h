/*
 * Scores of InfiniteBench's code, mathematics and Chinese tasks, as src/compute_scores.py of
 * github.com/OpenBMB/InfiniteBench (Zhang et al. 2024, arXiv:2402.13718). UTF-8 texts; numbers have
 * digits 0 to 9 only.
 */
#ifndef KVD_EVALUATE_TASKS_INFINITE_SCORES_H
#define KVD_EVALUATE_TASKS_INFINITE_SCORES_H

#include <stdbool.h>

#include "evaluate/tasks/metrics.h"

/* Returns true if s is an integer as JSON writes it, such as -12. */
bool kvd_is_whole_number(const char *s);

/* code_run: *score = 1 if the answer's last word is the integer `reference`, else 0. */
int kvd_last_integer(const char *answer, const char *reference, double *score, kvd_err *err);

/*
 * math_find: returns 1 if the answer's first number, without sign, is `reference`; decimal points
 * are wrong for an integer.
 */
double kvd_first_number(const char *answer, const char *reference);

/*
 * math_calc: returns the fraction of reference integers before the answer's first wrong number,
 * ignoring its signs.
 */
double kvd_leading_numbers(const char *answer, const kvd_metric_key *key);

/*
 * code_debug: *score = 1 if the answer begins with the right letter and a point or colon, or letter
 * or option text follow "is:" or "answer:". References: text, letter.
 */
int kvd_option_named(const char *answer, const kvd_metric_key *key, double *score, kvd_err *err);

/* longbook_qa_chn: *score = F1 over characters, ignoring case, punctuation and white space. */
int kvd_characters_f1(const char *answer, const char *reference, double *score, kvd_err *err);

#endif
