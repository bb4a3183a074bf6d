#ifndef KVD_EVALUATE_TASKS_SIMILARITY_SCORES_H
#define KVD_EVALUATE_TASKS_SIMILARITY_SCORES_H

#include "common/err.h"

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

#endif
