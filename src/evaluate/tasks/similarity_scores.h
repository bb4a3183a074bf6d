#ifndef KVD_EVALUATE_TASKS_SIMILARITY_SCORES_H
#define KVD_EVALUATE_TASKS_SIMILARITY_SCORES_H

#include "common/err.h"

/*
 * Computes F1 over words, each counted as often as both texts have it, after SQuAD's normalisation:
 * lower case, without ASCII punctuation and a, an, the.
 */
int kvd_qa_f1(const char *answer, const char *reference, double *f1, kvd_err *err);

/*
 * Computes ROUGE as the Python package rouge 1.0.1 does. Its scores differ from those of Google's
 * package rouge-score (kvd_rouge_1). Sentences end at full stops, words keep their case, and every
 * distinct word counts once. rouge_l counts the words that are in a longest common subsequence of
 * some pair of sentences. rouge_1 or rouge_l may be NULL. Texts without a sentence score 0.
 */
int kvd_rouge_package(const char *answer, const char *reference, double *rouge_1, double *rouge_l,
                      kvd_err *err);

/*
 * LongBench's code_sim_score: compares the reference with the first answer line that contains none
 * of "`", "#" and "//". The score is fuzzywuzzy's ratio computed with Python's difflib. With
 * python-Levenshtein installed, fuzzywuzzy gives other numbers.
 */
int kvd_code_similarity(const char *answer, const char *reference, double *score, kvd_err *err);

#endif
