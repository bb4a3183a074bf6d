/* Scores of generated texts. Texts are UTF-8; an invalid byte counts as one character. */
#ifndef KVD_EVALUATE_TASKS_TEXT_SCORES_H
#define KVD_EVALUATE_TASKS_TEXT_SCORES_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

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

#endif
