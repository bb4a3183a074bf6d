/*
 * Similarity of an answer to a reference by words or characters, as LongBench's metrics.py computes
 * it.
 */
#ifndef KVD_EVALUATE_TASKS_SIMILARITY_SCORES_H
#define KVD_EVALUATE_TASKS_SIMILARITY_SCORES_H

#include "common/err.h"

/*
 * Sets *f1 to the F1 over words, each counted as often as both texts have it. Texts are
 * lower-cased, without ASCII punctuation and the words a, an, the (SQuAD's normalisation). The
 * result is 0 if no word is common.
 */
int kvd_qa_f1(const char *answer, const char *reference, double *f1, kvd_err *err);

/*
 * Computes ROUGE scores as the Python package rouge 1.0.1 does, which differs from Google's
 * rouge-score (kvd_rouge_1). Sentences end at full stops, words are separated by white space and
 * keep their case, and every distinct word counts once. rouge_l is the F1 over the union of the
 * longest common subsequences of all combinations of sentences. rouge_1 or rouge_l may be NULL.
 * Texts without a sentence score 0.
 */
int kvd_rouge_package(const char *answer, const char *reference, double *rouge_1, double *rouge_l,
                      kvd_err *err);

/*
 * Computes LongBench's code_sim_score: similarity of the first answer line without `, # and // to
 * the reference, by fuzzywuzzy's ratio over Python's difflib. This is the version that LongBench's
 * requirements.txt installs; with python-Levenshtein installed, fuzzywuzzy gives other numbers.
 */
int kvd_code_similarity(const char *answer, const char *reference, double *score, kvd_err *err);

#endif
