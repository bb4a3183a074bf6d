/*
 * Items of kvdim-tasks, made from texts: texts to continue, hidden numbers to find, and documents
 * to classify.
 */
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
 * An item is one sequence, or n_classes sequences in classify. The cache is compressed after the
 * prompt. In tasks needle and classify, the question's `lead` tokens come first in the
 * continuation.
 */
typedef struct {
    size_t n_items;
    /*
     * [n_items] Index of each item's text. Bootstrap intervals are computed by drawing texts, not
     * items.
     */
    size_t *cluster;
    size_t n_clusters;
    /*
     * Prompts and continuations, owned. In tasks needle and classify the tokens of continuations
     * are prescribed.
     */
    kvd_continuations run;
    /* [n_items] Expected texts of task "generate", or NULL. */
    char **reference;
    size_t *reference_len;
    /* Number of question tokens before each answer (needle, classify). */
    size_t lead;
    /* [n_items] Task "needle": depth of the number in the text, 0 to 1. */
    double *depth;
    size_t n_depths;
    size_t *label; /* [n_items] task "classify": index of the right class */
    char *class_name[KVD_TASK_CLASSES];
    size_t n_classes;
} kvd_task_items;

void kvd_task_items_release(kvd_task_items *items);

/*
 * Makes an item of each sequence with at least prompt + n_new tokens. Unless tok is NULL, the last
 * n_new tokens are the reference text. `most` (if not 0) limits the number of items. Fails without
 * items.
 */
int kvd_task_items_corpus(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                          size_t prompt, size_t n_new, size_t most, kvd_err *err);

typedef struct {
    const char *const *text; /* [n_text] paths of the files */
    size_t n_text;
    const char *field; /* JSON field with the text of a document */
    const char *ask;   /* question after every document, or NULL */
    bool no_special;
    /*
     * Limit of the number of tokens of a prompt with its continuation. Longer documents lose their
     * end.
     */
    size_t max_len;
    size_t most; /* limit of documents, or 0 for all */
} kvd_task_documents;

/*
 * Makes an item of each document, whose prompt ends with the question. The field `reference` of a
 * document holds the expected answers.
 */
int kvd_task_items_references(kvd_task_items *items, const kvd_task_documents *d,
                              const char *reference, const kvd_tokenizer *tok, size_t n_new,
                              kvd_err *err);

/*
 * Makes an item of each document, with a sequence per class: document, question if any, class.
 * `label` is the field of the class. classes "a,b" allows no others; NULL takes all labels in order.
 */
int kvd_task_items_classes(kvd_task_items *items, const kvd_task_documents *d, const char *label,
                           const char *classes, const kvd_tokenizer *tok, kvd_err *err);

/*
 * Makes items of passkey retrieval (Mohtashami and Jaggi 2023): five random digits in at most
 * `most` sequences, at n_depths depths from 0 to 1, or in the middle if n_depths is 1. Digits
 * depend on seed, sequence and depth.
 */
int kvd_task_items_needles(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                           size_t n_depths, size_t max_len, size_t most, uint64_t seed,
                           kvd_err *err);

#endif
