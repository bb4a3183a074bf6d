/*
 * Similarity of two texts, by the measures that papers on KV caches use for generated text.
 *
 * Texts are UTF-8; a byte that is not valid UTF-8 counts as one character.
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
 * Computes ROUGE-1 (Lin 2004) of a prediction against one target as Google's rouge-score 0.1.2
 * does, without its stemmer. Words are runs of [a-z0-9] after lower-casing; a word counts as often
 * as both texts have it. Precision is over the words of the prediction, recall over those of the
 * target, F1 their harmonic mean. Texts without such words score 0, even if they are equal.
 */
int kvd_rouge_1(const char *target, size_t n_target, const char *prediction, size_t n_prediction,
                kvd_rouge *out, kvd_err *err);

/*
 * Computes the edit similarity 1 - d / max(length), where d is the Levenshtein distance in
 * characters (insertion, deletion, substitution 1 each); 1 for two empty texts. The paper FDC (see
 * docs/readings.md) names this measure for code completion. LongBench's fuzz.ratio, in which a
 * substitution costs 2, is another number.
 */
int kvd_edit_similarity(const char *a, size_t n_a, const char *b, size_t n_b, double *out,
                        kvd_err *err);

/*
 * Returns the number of tokens before the first difference between a and b; the shorter length if
 * there is none.
 */
size_t kvd_agreeing_prefix(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b);

#endif
