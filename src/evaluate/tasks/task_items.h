/* Makes items for kvdim-tasks from texts: texts to continue, numbers hidden in texts, documents to
 * classify. */
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

/* Test questions of a task. A question is one sequence or, in task classify, one sequence per
 * class. */
typedef struct {
    size_t n_items;
    /* [n_items] index of the text from which each item was made; bootstrap resamples draw whole
     * texts, not items */
    size_t *cluster;
    size_t n_clusters;
    /* prompts and outputs, owned; in tasks needle and classify, outputs are fixed instead of
     * generated */
    kvd_continuations run;
    /* [n_items] expected texts of task "generate"; NULL if unknown */
    char **reference;
    size_t *reference_len;
    /* number of question tokens before each answer (tasks needle and classify) */
    size_t lead;
    /* [n_items] task "needle": place of the hidden number in the text, from 0 (start) to 1 (end) */
    double *depth;
    size_t n_depths;
    size_t *label; /* [n_items] task "classify": index of the right class */
    char *class_name[KVD_TASK_CLASSES];
    size_t n_classes;
} kvd_task_items;

void kvd_task_items_release(kvd_task_items *items);

/* Makes a test item from each sequence of at least prompt + n_new tokens: its first `prompt` tokens
 * are the prompt. Unless `tok` is NULL, the sequence's next n_new tokens are the reference, as
 * text. `most`: largest number of items, or 0 for no limit. Fails if no sequence is long enough. */
int kvd_task_items_corpus(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                          size_t prompt, size_t n_new, size_t most, kvd_err *err);

typedef struct {
    const char *const *text; /* [n_text] paths of the files */
    size_t n_text;
    const char *field; /* JSON field with the text of a document */
    const char *ask;   /* question after every document, or NULL */
    bool no_special;
    /* largest number of tokens of a document with question and answer; longer documents lose their
     * end */
    size_t max_len;
    size_t most; /* limit of documents, or 0 for all */
} kvd_task_documents;

/* Makes an item of each document: the document's text, then the question d->ask. `reference`: name
 * of the JSON field with the right answer. */
int kvd_task_items_references(kvd_task_items *items, const kvd_task_documents *d,
                              const char *reference, const kvd_tokenizer *tok, size_t n_new,
                              kvd_err *err);

/* Makes an item of each document, with one sequence per class. `label`: name of the JSON field with
 * the right class. `classes`: allowed classes, such as "a,b"; NULL allows all that occur. */
int kvd_task_items_classes(kvd_task_items *items, const kvd_task_documents *d, const char *label,
                           const char *classes, const kvd_tokenizer *tok, kvd_err *err);

/* Makes test items of passkey retrieval from at most `most` sequences. An item hides a random
 * five-digit number at one of n_depths depths, from 0 (start) to 1 (end). If n_depths is 1, the
 * depth is 0.5. */
int kvd_task_items_needles(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                           size_t n_depths, size_t max_len, size_t most, uint64_t seed,
                           kvd_err *err);

#endif
