/* Items of kvdim-tasks from texts: texts to continue, hidden numbers, documents to classify. */
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

/* test items of a task, each of one sequence or, in classify, of one sequence per class; in needle
 * and classify, the first `lead` tokens of a continuation are the question */
typedef struct {
    size_t n_items;
    /* [n_items] text of each item; bootstrap intervals draw texts, not items */
    size_t *cluster;
    size_t n_clusters;
    /* prompts and outputs, owned; in tasks needle and classify, the output tokens are given */
    kvd_continuations run;
    /* [n_items] expected texts of task "generate", or NULL */
    char **reference;
    size_t *reference_len;
    /* number of question tokens before each answer (needle, classify) */
    size_t lead;
    /* [n_items] task "needle": depth of the number in the text, 0 to 1 */
    double *depth;
    size_t n_depths;
    size_t *label; /* [n_items] task "classify": index of the right class */
    char *class_name[KVD_TASK_CLASSES];
    size_t n_classes;
} kvd_task_items;

void kvd_task_items_release(kvd_task_items *items);

/* Makes an item of each sequence with at least prompt + n_new tokens. Unless tok is NULL, the last
 * n_new are the reference. `most` limits the items, unless 0. Fails without items. */
int kvd_task_items_corpus(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                          size_t prompt, size_t n_new, size_t most, kvd_err *err);

typedef struct {
    const char *const *text; /* [n_text] paths of the files */
    size_t n_text;
    const char *field; /* JSON field with the text of a document */
    const char *ask;   /* question after every document, or NULL */
    bool no_special;
    /* largest number of tokens of a prompt with continuation; longer documents lose their end */
    size_t max_len;
    size_t most; /* limit of documents, or 0 for all */
} kvd_task_documents;

/* Makes an item of each document: its text, then the question. `reference`: the name of the field
 * with the right answer. */
int kvd_task_items_references(kvd_task_items *items, const kvd_task_documents *d,
                              const char *reference, const kvd_tokenizer *tok, size_t n_new,
                              kvd_err *err);

/* Makes an item of each document, a sequence per class. `label`: field of the class. classes "a,b"
 * allows no others; NULL takes all labels. */
int kvd_task_items_classes(kvd_task_items *items, const kvd_task_documents *d, const char *label,
                           const char *classes, const kvd_tokenizer *tok, kvd_err *err);

/* Makes items of passkey retrieval: each of at most `most` sequences hides five random digits, at
 * n_depths depths from 0 (start) to 1 (end). A single depth is the middle. */
int kvd_task_items_needles(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                           size_t n_depths, size_t max_len, size_t most, uint64_t seed,
                           kvd_err *err);

#endif
