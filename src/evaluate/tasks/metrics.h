/* Scores of an answer, 0 to 1, as the benchmarks' own code computes them. */
#ifndef KVD_EVALUATE_TASKS_METRICS_H
#define KVD_EVALUATE_TASKS_METRICS_H

#include <stddef.h>

#include "common/err.h"

typedef enum {
    /* fraction of references that the answer contains, ignoring case */
    KVD_METRIC_MATCH_ALL,
    /* 1 if the answer contains a reference, ignoring case */
    KVD_METRIC_MATCH_PART,
    /* 1 if the answer without outer white space equals a reference */
    KVD_METRIC_EXACT,
    /* F1 over words, ignoring case, punctuation and articles */
    KVD_METRIC_QA_F1,
    /* F1 over distinct words */
    KVD_METRIC_ROUGE_1,
    /* F1 over longest common subsequences of sentences */
    KVD_METRIC_ROUGE_L,
    /* similarity of reference and the answer's first line of code */
    KVD_METRIC_CODE,
    /* 1 / (class names in the answer) if the right one is among them, else 0 */
    KVD_METRIC_CLASSIFICATION,
    /* fraction of the answer's numbers that equal N of "Paragraph N" */
    KVD_METRIC_RETRIEVAL,
    /* as KVD_METRIC_RETRIEVAL, in Chinese */
    KVD_METRIC_RETRIEVAL_ZH,
    /* fraction of the answer's numbers that equal the reference */
    KVD_METRIC_COUNT,
    /* 1 if the last number equals the one after "####" in the reference (GSM8K) */
    KVD_METRIC_NUMBER,
    /* 1 if "The correct answer is (X)" names the reference */
    KVD_METRIC_CHOICE,
    /* 1 if the chosen letter, or its option's text, is a reference */
    KVD_METRIC_LETTER,
    KVD_METRIC_FIRST_INTEGER, /* 1 if the answer's first integer is the reference */
    KVD_METRIC_WORD,          /* 1 if a word of the answer is a reference */
    /* 1 if the last word is the reference, an integer */
    KVD_METRIC_LAST_INTEGER,
    KVD_METRIC_FIRST_NUMBER, /* 1 if the answer's first number is the reference */
    /* fraction of the reference list that the answer begins with */
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

/* Scores an answer by the best reference or, for match-all, by the mean. Invalid UTF-8 bytes count
 * as characters. Fails for unsuitable references. */
int kvd_metric_score(kvd_metric metric, const char *answer, const kvd_metric_key *key,
                     double *score, kvd_err *err);

/* Fails if the metric cannot use the references. The message does not name the item. */
int kvd_metric_check(kvd_metric metric, const kvd_metric_key *key, kvd_err *err);

#endif
