/*
 * Scores of generated texts. Texts are UTF-8; a byte that is not valid UTF-8 counts as one
 * character.
 */
#ifndef KVD_EVALUATE_TASKS_TEXT_SCORES_H
#define KVD_EVALUATE_TASKS_TEXT_SCORES_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct {
    double precision, recall, f1;
} kvd_rouge;

/*
 * Computes ROUGE-1 (Lin 2004) as Google's rouge-score 0.1.2 does without a stemmer. Words are runs
 * of [a-z0-9] after lower-casing. A word is a match as many times as it occurs in the text in which
 * it is less frequent. Precision is over the prediction, recall over the target. Texts without
 * words score 0, even if they are equal.
 */
int kvd_rouge_1(const char *target, size_t n_target, const char *prediction, size_t n_prediction,
                kvd_rouge *out, kvd_err *err);

/*
 * Computes 1 - d / max(length) with the Levenshtein distance d in characters; 1 for two empty
 * texts. In LongBench's fuzz.ratio a substitution costs 2, which gives other numbers.
 */
int kvd_edit_similarity(const char *a, size_t n_a, const char *b, size_t n_b, double *out,
                        kvd_err *err);

/* Returns the number of tokens before the first difference, at most the shorter length. */
size_t kvd_agreeing_prefix(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b);

#endif
