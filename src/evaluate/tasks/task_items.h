/*
 * Test items of kvdim-tasks: prompts with an expected continuation. Three tasks: continue a text or
 * a document with a reference, find a number hidden in a text (needle), and classify documents.
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

/* Largest number of classes of a classification. */
enum { KVD_TASK_CLASSES = 64 };

/*
 * Items of one task. In tasks generate and needle, an item is one sequence of `run`. In task
 * classify, an item is n_classes sequences, one per class, in the order of the classes.
 *
 * The cache compresses the prompt of a sequence at once. In tasks needle and classify the question
 * follows the prompt: it is the first tokens of the continuation, and is read through the
 * compressed cache. Their number is in `lead`.
 */
typedef struct {
    size_t n_items;
    /* Index of the text from which an item is made; the bootstrap draws whole texts. [n_items] */
    size_t *cluster;
    size_t n_clusters;
    /*
     * Token sequences of the items; this structure owns their arrays. Tasks classify and needle
     * have forced tokens.
     */
    kvd_continuations run;
    /* Fields of task generate follow. */
    /* Text with which the generated text is compared; NULL if there is none. [n_items] */
    char **reference;
    size_t *reference_len;
    /*
     * Number of question tokens before the answer, at least 1, for tasks needle and classify:
     * [run.n_sequences].
     */
    size_t *lead;
    /* Fields of task needle follow. */
    /* Relative depth of the needle in the text, 0 at the beginning, 1 at the end: [n_items]. */
    double *depth;
    size_t n_depths;
    /* Fields of task classify follow. */
    /* Index of the right class of each document: [n_items]. */
    size_t *label;
    char *class_name[KVD_TASK_CLASSES];
    size_t n_classes;
} kvd_task_items;

void kvd_task_items_release(kvd_task_items *items);

/*
 * Makes one item of the first `prompt` tokens of every sequence that has at least prompt + n_new
 * tokens, at most `most` items (0 means all). The reference is the text's own continuation; there
 * is none if `tok` is NULL. Fails if no sequence is long enough.
 */
int kvd_task_items_corpus(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                          size_t prompt, size_t n_new, size_t most, kvd_err *err);

/*
 * Files of documents, and the question appended to each document. kvd_task_items_references makes
 * the question a part of the prompt.
 */
typedef struct {
    const char *const *text; /* paths of files, as in kvd_corpus_spec: [n_text] */
    size_t n_text;
    const char *field; /* name of the field with the text of a document */
    /* Question appended to every document; NULL for none. */
    const char *ask;
    bool no_special;
    /*
     * Maximum number of tokens of a prompt and its continuation; longer documents lose their end.
     */
    size_t max_len;
    size_t most; /* largest number of documents; 0 means all */
} kvd_task_documents;

/*
 * Makes one item of every document: the document is the prompt, and the text of field `reference`
 * is the expected answer.
 */
int kvd_task_items_references(kvd_task_items *items, const kvd_task_documents *d,
                              const char *reference, const kvd_tokenizer *tok, size_t n_new,
                              kvd_err *err);

/*
 * Makes one classification item of every document, followed by the question and by each class.
 * Without a question, the last token of the document serves as the question. `label` is the field
 * with the class of a document. `classes` lists the class names as "a,b"; another label is an
 * error. If `classes` is NULL, the classes are the labels of the documents, in the order in which
 * they occur.
 */
int kvd_task_items_classes(kvd_task_items *items, const kvd_task_documents *d, const char *label,
                           const char *classes, const kvd_tokenizer *tok, kvd_err *err);

/*
 * Makes items for passkey retrieval (Mohtashami and Jaggi 2023). A sentence with a random number of
 * five digits is inserted into each of at most `most` sequences, at n_depths depths from 0 to 1 (in
 * the middle if n_depths is 1). The text is shortened so that everything fits into max_len tokens.
 * The question follows, and the number is the answer. Seed, sequence and depth determine the
 * number.
 */
int kvd_task_items_needles(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                           size_t n_depths, size_t max_len, size_t most, uint64_t seed,
                           kvd_err *err);

#endif
