/*
 * Scores of one answer, from 0 to 1, as the authors' own code computes them. Sources of the
 * functions: docs/tasks.md; tests/oracle/make_task_scores.py runs them.
 */
#ifndef KVD_EVALUATE_TASKS_METRICS_H
#define KVD_EVALUATE_TASKS_METRICS_H

#include <stddef.h>

#include "common/err.h"

typedef enum {
    KVD_METRIC_MATCH_ALL,  /* share of the references in the answer, without regard to case */
    KVD_METRIC_MATCH_PART, /* 1 if some reference is in the answer, without regard to case */
    /* 1 if the answer equals a reference, except for white space at the ends */
    KVD_METRIC_EXACT,
    KVD_METRIC_QA_F1,          /* F1 over words without case, punctuation and articles */
    KVD_METRIC_ROUGE_1,        /* F1 over distinct words (package rouge) */
    KVD_METRIC_ROUGE_L,        /* F1 over longest common subsequences of sentences (rouge) */
    KVD_METRIC_CODE,           /* similarity of the first line that is no comment */
    KVD_METRIC_CLASSIFICATION, /* 1 / number of classes in the answer, if the right one is */
    KVD_METRIC_RETRIEVAL,      /* share of the answer's numbers that are N of "Paragraph N" */
    KVD_METRIC_RETRIEVAL_ZH,   /* share of the numbers that are N of "Paragraph N" in Chinese */
    KVD_METRIC_COUNT,          /* share of the answer's numbers that are the reference */
    KVD_METRIC_NUMBER,         /* 1 if the last number is that after "####" of the reference */
    KVD_METRIC_CHOICE,         /* 1 if "The correct answer is (X)" names the reference */
    KVD_METRIC_LETTER,         /* 1 if the letter chosen is the reference, or the text is */
    KVD_METRIC_FIRST_INTEGER,  /* 1 if the first integer is the reference */
    KVD_METRIC_WORD,           /* 1 if a reference is a word of the answer */
    KVD_METRIC_LAST_INTEGER,   /* 1 if the last word is the reference, a whole number */
    KVD_METRIC_FIRST_NUMBER,   /* 1 if the first number is the reference */
    KVD_METRIC_LEADING,        /* share of the references that the answer's numbers begin with */
    KVD_METRIC_OPTION,         /* 1 if the option named is the reference, or its letter is */
    KVD_METRIC_CHARACTERS_F1,  /* F1 over characters without case, punctuation and white space */
    KVD_N_METRICS
} kvd_metric;

/* Names for --metric, "match-all" first; ends with NULL. */
extern const char *const kvd_metric_words[KVD_N_METRICS + 1];

/* Correct answers of an item, which a metric compares a generated answer with. */
typedef struct {
    char *const *reference; /* [n_references] */
    size_t n_references;
    char *const *choice; /* [n_choices] classes, for KVD_METRIC_CLASSIFICATION */
    size_t n_choices;
} kvd_metric_key;

/*
 * Sets *score to the score of an answer. Of several references the best counts, with three
 * exceptions: match-all is a mean over them, for leading-numbers they are one list, and for letter
 * and option they are text and letter of one answer. Fails if a reference has not the form that the
 * metric needs. Texts are UTF-8; a byte that is not counts as one character.
 */
int kvd_metric_score(kvd_metric metric, const char *answer, const kvd_metric_key *key,
                     double *score, kvd_err *err);

/* Fails if the metric cannot be computed with this key; the message does not name the item. */
int kvd_metric_check(kvd_metric metric, const kvd_metric_key *key, kvd_err *err);

#endif
