/* Metrics that score an answer from 0 to 1, as the benchmarks' own code does. */
#ifndef KVD_EVALUATE_TASKS_METRICS_H
#define KVD_EVALUATE_TASKS_METRICS_H

#include <stddef.h>

#include "common/err.h"

typedef enum {
    /* fraction of the references (right answers) that the answer contains, ignoring case */
    KVD_METRIC_MATCH_ALL,
    /* 1 if the answer contains a reference, ignoring case */
    KVD_METRIC_MATCH_PART,
    /* 1 if the answer equals a reference, ignoring white space at both ends of the answer */
    KVD_METRIC_EXACT,
    /* F1 over words, ignoring case, punctuation and articles */
    KVD_METRIC_QA_F1,
    /* ROUGE-1: F1 over distinct words */
    KVD_METRIC_ROUGE_1,
    /* ROUGE-L: F1 over words in the longest common subsequences of sentences */
    KVD_METRIC_ROUGE_L,
    /* similarity of the answer's first line of code and the whole reference */
    KVD_METRIC_CODE,
    /* 1 / (number of class names in the answer) if the right name is among them, else 0 */
    KVD_METRIC_CLASSIFICATION,
    /* fraction of the numbers in the answer that equal N, where the reference is "Paragraph N" */
    KVD_METRIC_RETRIEVAL,
    /* fraction of the numbers in the answer that equal N, where the reference is "Paragraph N" in
     * Chinese */
    KVD_METRIC_RETRIEVAL_ZH,
    /* fraction of the numbers in the answer that equal the reference, which is a number */
    KVD_METRIC_COUNT,
    /* 1 if the answer's last number equals the number after "####" in the reference (GSM8K) */
    KVD_METRIC_NUMBER,
    /* 1 if the answer has "The correct answer is (X)", and the reference is X */
    KVD_METRIC_CHOICE,
    /* multiple choice: 1 if the answer gives the letter or the text of a right option */
    KVD_METRIC_LETTER,
    KVD_METRIC_FIRST_INTEGER, /* 1 if the answer's first integer is the reference */
    KVD_METRIC_WORD,          /* 1 if a word of the answer is a reference */
    /* 1 if the answer's last word is the reference, an integer */
    KVD_METRIC_LAST_INTEGER,
    KVD_METRIC_FIRST_NUMBER, /* 1 if the answer's first number is the reference */
    /* fraction of the reference's list of numbers that the answer repeats before its first
     * mistake */
    KVD_METRIC_LEADING,
    /* 1 if the answer names the right option by letter or text */
    KVD_METRIC_OPTION,
    /* F1 over characters, ignoring case, punctuation and white space */
    KVD_METRIC_CHARACTERS_F1,
    KVD_N_METRICS
} kvd_metric;

/* Names for --metric, in the order of kvd_metric, ended by NULL. */
extern const char *const kvd_metric_words[KVD_N_METRICS + 1];

typedef struct {
    char *const *reference; /* [n_references] */
    size_t n_references;
    char *const *choice; /* [n_choices] names of classes */
    size_t n_choices;
} kvd_metric_key;

/* Scores an answer against each reference. *score: the best of these scores or, for match-all,
 * their mean. A byte that is not valid UTF-8 counts as a character. Fails if the metric cannot use
 * the references. */
int kvd_metric_score(kvd_metric metric, const char *answer, const kvd_metric_key *key,
                     double *score, kvd_err *err);

/* Fails if the metric cannot compare answers with the reference answers in *key. The error message
 * does not name the test question. */
int kvd_metric_check(kvd_metric metric, const kvd_metric_key *key, kvd_err *err);

#endif
