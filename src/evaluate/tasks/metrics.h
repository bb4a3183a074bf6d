/* Scores of an answer, 0 to 1, as the benchmarks' own code computes them (see docs/tasks.md). */
#ifndef KVD_EVALUATE_TASKS_METRICS_H
#define KVD_EVALUATE_TASKS_METRICS_H

#include <stddef.h>

#include "common/err.h"

typedef enum {
    /* Fraction of references that the answer contains, ignoring case. */
    KVD_METRIC_MATCH_ALL,
    /* 1 if the answer contains a reference, ignoring case. */
    KVD_METRIC_MATCH_PART,
    /* 1 if the answer, without leading and trailing white space, equals a reference. */
    KVD_METRIC_EXACT,
    /* F1 over words, ignoring case, punctuation and articles. */
    KVD_METRIC_QA_F1,
    /* F1 over distinct words (Python package rouge). */
    KVD_METRIC_ROUGE_1,
    /* F1 over longest common subsequences of sentences (Python package rouge). */
    KVD_METRIC_ROUGE_L,
    /* Similarity of the reference and the first line of code in the answer. */
    KVD_METRIC_CODE,
    /* 1 / (number of class names in the answer) if the right one is among them, else 0. */
    KVD_METRIC_CLASSIFICATION,
    /* Fraction of the answer's numbers that equal N, where the reference is "Paragraph N". */
    KVD_METRIC_RETRIEVAL,
    /*
     * Fraction of the answer's numbers that equal N, where the reference is "Paragraph N" in
     * Chinese.
     */
    KVD_METRIC_RETRIEVAL_ZH,
    /* Fraction of the answer's numbers that equal the reference. */
    KVD_METRIC_COUNT,
    /*
     * 1 if the last number in the answer equals the number after "####" in the reference (GSM8K).
     */
    KVD_METRIC_NUMBER,
    /* 1 if the answer's "The correct answer is (X)" names the reference letter. */
    KVD_METRIC_CHOICE,
    /* 1 if the letter that the answer chooses, or the text of its option, is a reference. */
    KVD_METRIC_LETTER,
    KVD_METRIC_FIRST_INTEGER, /* 1 if the answer's first integer is the reference */
    KVD_METRIC_WORD,          /* 1 if a word of the answer is a reference */
    /* 1 if the answer's last word is the reference, an integer. */
    KVD_METRIC_LAST_INTEGER,
    KVD_METRIC_FIRST_NUMBER, /* 1 if the answer's first number is the reference */
    /* Fraction of the reference list that the answer lists from the start without an error. */
    KVD_METRIC_LEADING,
    /* 1 if the answer names the right option by its letter or text. */
    KVD_METRIC_OPTION,
    /* F1 over characters, ignoring case, punctuation and white space. */
    KVD_METRIC_CHARACTERS_F1,
    KVD_N_METRICS
} kvd_metric;

/* Names of metrics for --metric, in the order of kvd_metric, ended by NULL. */
extern const char *const kvd_metric_words[KVD_N_METRICS + 1];

typedef struct {
    char *const *reference; /* [n_references] */
    size_t n_references;
    char *const *choice; /* [n_choices] names of classes */
    size_t n_choices;
} kvd_metric_key;

/*
 * Computes the score of an answer: that of the best of several references or, with metric
 * match-all, the mean. For leading-numbers the references are one list of numbers, for letter and
 * option a text and a letter. Each invalid UTF-8 byte counts as a character. Fails for unsuitable
 * references.
 */
int kvd_metric_score(kvd_metric metric, const char *answer, const kvd_metric_key *key,
                     double *score, kvd_err *err);

/*
 * Fails if the metric cannot score with the references of *key. The message does not name the item.
 */
int kvd_metric_check(kvd_metric metric, const kvd_metric_key *key, kvd_err *err);

#endif
