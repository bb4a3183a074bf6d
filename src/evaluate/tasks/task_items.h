/* Items of kvdim-tasks from texts: continuation, hidden number (needle), classification. */
#ifndef KVD_EVALUATE_TASKS_TASK_ITEMS_H
#define KVD_EVALUATE_TASKS_TASK_ITEMS_H

#include "evaluate/generate/generate.h"
#include "model/text/corpus.h"
#include "model/text/tokenizer.h"

typedef enum {
    KVD_TASK_GENERATE,
    KVD_TASK_NEEDLE,
    KVD_TASK_CLASSIFY,
    KVD_N_FREE_TASKS
} kvd_task_task;

enum { KVD_TASK_CLASSES = 64 };

/*
 * An item is one sequence, or n_classes (classify). The cache is compressed after the prompt;
 * continuations of needle and classify begin with `lead` question tokens.
 */
typedef struct {
    size_t n_items;
    /* [n_items] Text of each item; bootstrap draws texts. */
    size_t *cluster;
    size_t n_clusters;
    /* Owned; prescribed tokens in needle and classify. */
    kvd_continuations run;
    /* generate: [n_items] text to compare; NULL if none. */
    char **reference;
    size_t *reference_len;
    /* [run.n_sequences] Question tokens before the answer (needle, classify). */
    size_t *lead;
    /* needle: [n_items] depth, 0 .. 1. */
    double *depth;
    size_t n_depths;
    /* classify: [n_items] right class. */
    size_t *label;
    char *class_name[KVD_TASK_CLASSES];
    size_t n_classes;
} kvd_task_items;

void kvd_task_items_release(kvd_task_items *items);

/*
 * An item per sequence of at least prompt + n_new tokens, the latter as reference. tok NULL: no
 * references. most: 0 means all. Fails without items.
 */
int kvd_task_items_corpus(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                          size_t prompt, size_t n_new, size_t most, kvd_err *err);

typedef struct {
    const char *const *text; /* [n_text] paths of files */
    size_t n_text;
    const char *field; /* JSON field of a document's text */
    /* Question after every document; NULL for none. */
    const char *ask;
    bool no_special;
    /* Most tokens of prompt and continuation; longer documents lose their end. */
    size_t max_len;
    size_t most; /* 0: all documents */
} kvd_task_documents;

/* An item per document, with question. Field `reference`: expected answers. */
int kvd_task_items_references(kvd_task_items *items, const kvd_task_documents *d,
                              const char *reference, const kvd_tokenizer *tok, size_t n_new,
                              kvd_err *err);

/*
 * An item per document: question (or its last token) and each class. label: class field; classes:
 * "a,b", others fail; NULL: all labels in order.
 */
int kvd_task_items_classes(kvd_task_items *items, const kvd_task_documents *d, const char *label,
                           const char *classes, const kvd_tokenizer *tok, kvd_err *err);

/*
 * Passkey retrieval (Mohtashami and Jaggi 2023): five random digits in at most `most` sequences, at
 * n_depths depths 0 .. 1 (one: the middle). Digits depend on seed, sequence, depth.
 */
int kvd_task_items_needles(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                           size_t n_depths, size_t max_len, size_t most, uint64_t seed,
                           kvd_err *err);

#endif
