/*
 * Scores of one generated answer, from 0 to 1, as the code published by each benchmark's authors
 * computes them. docs/tasks.md lists the sources; tests/oracle/make_task_scores.py runs them.
 */
#ifndef KVD_EVALUATE_TASKS_METRICS_H
#define KVD_EVALUATE_TASKS_METRICS_H

#include <stddef.h>

#include "common/err.h"

typedef enum {
    /* Fraction of the reference texts that the answer contains, ignoring case. */
    KVD_METRIC_MATCH_ALL,
    /* 1 if the answer contains some reference text, ignoring case. */
    KVD_METRIC_MATCH_PART,
    /* 1 if the answer equals a reference, except for white space at the ends. */
    KVD_METRIC_EXACT,
    /* F1 over words, ignoring case, punctuation and articles. */
    KVD_METRIC_QA_F1,
    /* F1 over distinct words (Python package rouge). */
    KVD_METRIC_ROUGE_1,
    /* F1 over longest common subsequences of sentences (Python package rouge). */
    KVD_METRIC_ROUGE_L,
    /* Similarity of the reference code with the first answer line that is not a comment. */
    KVD_METRIC_CODE,
    /* 1 / (number of class names in the answer) if the right name is among them, else 0. */
    KVD_METRIC_CLASSIFICATION,
    /* The reference is "Paragraph N". Fraction of the numbers in the answer that are equal to N. */
    KVD_METRIC_RETRIEVAL,
    /* Like KVD_METRIC_RETRIEVAL, for references in Chinese. */
    KVD_METRIC_RETRIEVAL_ZH,
    /* Fraction of the answer's numbers that equal the reference. */
    KVD_METRIC_COUNT,
    /* 1 if the answer's last number equals the number after "####" of the reference (GSM8K). */
    KVD_METRIC_NUMBER,
    /* 1 if "The correct answer is (X)" in the answer names the reference letter. */
    KVD_METRIC_CHOICE,
    /* 1 if the chosen letter, or the text of the option, is a reference. */
    KVD_METRIC_LETTER,
    KVD_METRIC_FIRST_INTEGER, /* 1 if the first integer of the answer is the reference */
    KVD_METRIC_WORD,          /* 1 if some word of the answer is a reference */
    /* 1 if the last word of the answer is the reference, an integer. */
    KVD_METRIC_LAST_INTEGER,
    KVD_METRIC_FIRST_NUMBER, /* 1 if the first number of the answer is the reference */
    /*
     * The reference is a list of numbers. Fraction of it, from its beginning, that the answer lists
     * without an error.
     */
    KVD_METRIC_LEADING,
    /* 1 if the answer names the right option by its letter or text. */
    KVD_METRIC_OPTION,
    /* F1 over characters, ignoring case, punctuation and white space. */
    KVD_METRIC_CHARACTERS_F1,
    KVD_N_METRICS
} kvd_metric;

/* Names of the metrics for the option --metric, in the order of kvd_metric; NULL-terminated. */
extern const char *const kvd_metric_words[KVD_N_METRICS + 1];

typedef struct {
    char *const *reference; /* [n_references] */
    size_t n_references;
    /* Class names of a classification: [n_choices]. */
    char *const *choice;
    size_t n_choices;
} kvd_metric_key;

/*
 * Scores an answer. If there are several references, the best score counts, with three exceptions.
 * match-all is a mean over the references. leading-numbers takes the references as one list. letter
 * and option, if there are two references, take them as the text and the letter of one right
 * answer.
 *
 * Texts are UTF-8; an invalid byte counts as one character. Fails if a reference does not have the
 * form that the metric needs.
 */
int kvd_metric_score(kvd_metric metric, const char *answer, const kvd_metric_key *key,
                     double *score, kvd_err *err);

/* Fails if the metric cannot use these references. The message does not name the item. */
int kvd_metric_check(kvd_metric metric, const kvd_metric_key *key, kvd_err *err);

#endif
