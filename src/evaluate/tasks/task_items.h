/*
 * Items of free-running evaluation: prompts with the expected continuation. They are continuations
 * of a corpus or of documents with references, needles hidden in text, or documents to be
 * classified.
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

/* Most classes of a classification. */
enum { KVD_TASK_CLASSES = 64 };

/*
 * Items of one task. An item is one sequence of `run`; in a classification it is n_classes
 * sequences, in the order of the classes. The prompt ends where the question begins. The question
 * is the first `lead` tokens after the prompt, and is read through the cache.
 */
typedef struct {
    size_t n_items;
    /* [n_items] index of the text an item is made from; a bootstrap draws whole texts */
    size_t *cluster;
    size_t n_clusters;
    /*
     * sequences of the items, whose arrays this struct owns; classify and needle have forced tokens
     */
    kvd_continuations run;
    /* generate */
    /* [n_items] text that the generated text is compared with; NULL if there is none */
    char **reference;
    size_t *reference_len;
    /* needle, classify: [run.n_sequences] forced tokens before the answer, at least 1 */
    size_t *lead;
    /* needle */
    /* [n_items] depth of the needle, 0: at the beginning, 1: at the end */
    double *depth;
    size_t n_depths;
    /* classify */
    size_t *label; /* [n_items] index of the class */
    char *class_name[KVD_TASK_CLASSES];
    size_t n_classes;
} kvd_task_items;

void kvd_task_items_release(kvd_task_items *items);

/*
 * Makes items of the first `prompt` tokens of every sequence of the corpus that has at least prompt
 * + n_new tokens, at most `most` items (0: all). The reference is the text's own continuation;
 * there is none if tok is NULL. Fails if no sequence is long enough.
 */
int kvd_task_items_corpus(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                          size_t prompt, size_t n_new, size_t most, kvd_err *err);

/*
 * Source of documents, and the text appended to each. With references, that text is part of the
 * prompt.
 */
typedef struct {
    const char *const *text; /* [n_text] paths of files, as in kvd_corpus_spec */
    size_t n_text;
    const char *field; /* name of the field that has the text of a document */
    /* text appended to every document; NULL: none */
    const char *ask;
    bool no_special;
    /* Maximum length of a prompt and its continuation; the ends of longer documents are cut. */
    size_t max_len;
    size_t most; /* largest number of documents; 0 means all */
} kvd_task_documents;

/*
 * Makes an item of every document: the document is the prompt, and the text of another field is the
 * reference.
 */
int kvd_task_items_references(kvd_task_items *items, const kvd_task_documents *d,
                              const char *reference, const kvd_tokenizer *tok, size_t n_new,
                              kvd_err *err);

/*
 * Makes items of every document followed by the question and by each class. Without a question, the
 * last token of the document serves as the question. `label` is the field with the class of a
 * document. `classes` lists the candidates as "a,b", and another label is an error. If it is NULL,
 * the classes are the labels of the documents, in the order in which they occur.
 */
int kvd_task_items_classes(kvd_task_items *items, const kvd_task_documents *d, const char *label,
                           const char *classes, const kvd_tokenizer *tok, kvd_err *err);

/*
 * Passkey retrieval (Mohtashami and Jaggi 2023). In each of the corpus's sequences, at most `most`,
 * a sentence with a random number of five digits is inserted at n_depths depths from 0 to 1 (if
 * n_depths is 1, in the middle). The text is shortened so that everything fits into max_len tokens.
 * The question follows, and the number is the answer. The number is determined by seed, sequence
 * and depth.
 */
int kvd_task_items_needles(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                           size_t n_depths, size_t max_len, size_t most, uint64_t seed,
                           kvd_err *err);

#endif
