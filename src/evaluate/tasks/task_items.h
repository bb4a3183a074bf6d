/*
 * Test items of kvdim-tasks made from texts: continue a text, find a number hidden in a text
 * (needle), classify documents.
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
 * An item is one sequence of `run`; in task classify it is n_classes sequences, in the order of the
 * classes. The cache is compressed at the end of the prompt. In tasks needle and classify, the
 * continuation begins with the question, `lead` tokens that are read with the compressed cache.
 */
typedef struct {
    size_t n_items;
    /* [n_items] Index of the text from which each item is made; the bootstrap draws whole texts. */
    size_t *cluster;
    size_t n_clusters;
    /*
     * Prompts and continuations; this structure owns their arrays. In tasks needle and classify,
     * the tokens of the continuations are prescribed.
     */
    kvd_continuations run;
    /* Task generate: text to compare with the generated one, [n_items]; NULL if there is none. */
    char **reference;
    size_t *reference_len;
    /*
     * Question tokens before the answer, at least 1, in tasks needle and classify:
     * [run.n_sequences].
     */
    size_t *lead;
    /* Task needle: relative depth of the needle, 0 .. 1: [n_items]. */
    double *depth;
    size_t n_depths;
    /* Task classify: right class of each document: [n_items]. */
    size_t *label;
    char *class_name[KVD_TASK_CLASSES];
    size_t n_classes;
} kvd_task_items;

void kvd_task_items_release(kvd_task_items *items);

/*
 * Makes one item from every sequence that has at least prompt + n_new tokens: its first `prompt`
 * tokens are the prompt, and the text of the next n_new tokens is the reference. If `tok` is NULL,
 * items have no references. At most `most` items are made; 0 means all. Fails if no sequence is
 * long enough.
 */
int kvd_task_items_corpus(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                          size_t prompt, size_t n_new, size_t most, kvd_err *err);

typedef struct {
    const char *const *text; /* paths of files, [n_text] */
    size_t n_text;
    const char *field; /* name of the JSON field that holds the text of a document */
    /* Question after every document; NULL for none. */
    const char *ask;
    bool no_special;
    /*
     * Largest number of tokens of a prompt and its continuation; longer documents lose their end.
     */
    size_t max_len;
    size_t most; /* largest number of documents; 0: all */
} kvd_task_documents;

/*
 * Makes one item of each document. The prompt is the document, followed by the question. The field
 * `reference` of the document has the expected answers.
 */
int kvd_task_items_references(kvd_task_items *items, const kvd_task_documents *d,
                              const char *reference, const kvd_tokenizer *tok, size_t n_new,
                              kvd_err *err);

/*
 * Makes one item of every document, followed by the question and by each class. Without a question,
 * the last token of the document is used as the question. `label` is the field with the class.
 * `classes` lists the names of all classes as "a,b"; a document with any other label is an error.
 * If `classes` is NULL, the classes are the labels of the documents in the order in which they
 * occur.
 */
int kvd_task_items_classes(kvd_task_items *items, const kvd_task_documents *d, const char *label,
                           const char *classes, const kvd_tokenizer *tok, kvd_err *err);

/*
 * Makes items of passkey retrieval (Mohtashami and Jaggi 2023): a random number of five digits is
 * hidden in each of at most `most` sequences. It is hidden at n_depths depths from 0 (start) to 1
 * (end); a single depth is the middle. Seed, sequence and depth determine the number. Texts are
 * shortened to max_len tokens.
 */
int kvd_task_items_needles(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                           size_t n_depths, size_t max_len, size_t most, uint64_t seed,
                           kvd_err *err);

#endif
