#ifndef KVD_EVALUATE_TASKS_SIMILARITY_SCORES_H
#define KVD_EVALUATE_TASKS_SIMILARITY_SCORES_H

#include "common/err.h"

/* F1 over words with multiplicity, after SQuAD's normalisation. */
int kvd_qa_f1(const char *answer, const char *reference, double *f1, kvd_err *err);

/*
 * ROUGE of Python's rouge 1.0.1 (not rouge-score, kvd_rouge_1): sentences end at full stops, case
 * matters, distinct words count. Outputs may be NULL.
 */
int kvd_rouge_package(const char *answer, const char *reference, double *rouge_1, double *rouge_l,
                      kvd_err *err);

/*
 * LongBench's code_sim_score: fuzzywuzzy's ratio (difflib) of reference and first answer line
 * without "`", "#", "//".
 */
int kvd_code_similarity(const char *answer, const char *reference, double *score, kvd_err *err);

#endif
