/*
 * What free-running evaluation runs: prompts with what is expected behind them. Continuations of a corpus or of documents with references,
 * needles hidden in text, documents to be classified.
 */
#ifndef KVD_ANALYSIS_FREE_ITEMS_H
#define KVD_ANALYSIS_FREE_ITEMS_H

#include "analysis/generate.h"
#include "model/corpus.h"
#include "model/tokenizer.h"

typedef enum { KVD_FREE_GENERATE, KVD_FREE_NEEDLE, KVD_FREE_CLASSIFY, KVD_N_FREE_TASKS } kvd_free_task;

/* Most classes of a classification. */
enum { KVD_FREE_CLASSES = 64 };

/*
 * An item is a sequence of `run`, of a classification n_classes of them in the order of the classes. What is asked for is read through the cache: the
 * prompt ends where the question begins, and the question is the beginning, `lead`, of what follows the prompt.
 */
typedef struct {
    size_t n_items;
    size_t *cluster; /* [n_items] what is drawn together in a bootstrap: the text an item is made from */
    size_t n_clusters;
    kvd_continuations run; /* its arrays belong to this; classify and needle: forced */
    /* generate */
    char **reference; /* [n_items] text to be compared with; NULL: none */
    size_t *reference_len;
    size_t *lead; /* needle, classify: [run.n_sequences] forced tokens before the answer, at least 1 */
    /* needle */
    double *depth; /* [n_items] 0: the needle stands first, 1: last */
    size_t n_depths;
    /* classify */
    size_t *label; /* [n_items] index of the class */
    char *class_name[KVD_FREE_CLASSES];
    size_t n_classes;
} kvd_free_items;

void kvd_free_items_release(kvd_free_items *items);

/*
 * The first `prompt` tokens of every sequence of the corpus that has prompt + n_new, at most `most` (0: all); the reference is the text's
 * own continuation where tok is not NULL. Fails when no sequence is as long.
 */
int kvd_free_items_corpus(kvd_free_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok, size_t prompt,
                          size_t n_new, size_t most, kvd_err *err);

/* Where documents come from, and what is put behind each: of references it is part of the prompt. */
typedef struct {
    const char *const *text; /* paths, as kvd_corpus_spec */
    size_t n_text;
    const char *field; /* of the document                                     */
    const char *ask;   /* text behind every document; NULL: none              */
    bool no_special;
    size_t max_len; /* of a prompt with what follows it: longer documents lose their ends */
    size_t most;    /* documents; 0: all                                   */
} kvd_free_documents;

/* Every document is a prompt; its reference stands in another field. */
int kvd_free_items_references(kvd_free_items *items, const kvd_free_documents *d, const char *reference,
                              const kvd_tokenizer *tok, size_t n_new, kvd_err *err);

/*
 * Every document with the question and every class behind it; without a question the document's last token stands for it. label: the field with a document's class. classes "a,b": the candidates, so that another
 * label is an error; NULL: the labels that documents have, in the order in which they come.
 */
int kvd_free_items_classes(kvd_free_items *items, const kvd_free_documents *d, const char *label,
                           const char *classes, const kvd_tokenizer *tok, kvd_err *err);

/*
 * Passkey retrieval (Mohtashami and Jaggi 2023): in each of the corpus's sequences, at most `most`, a sentence that names a random number
 * of five digits stands at n_depths depths from 0 to 1 (one: in the middle), shortened so that all fits in max_len tokens; the question
 * follows, the number is the answer. Numbers follow from seed, sequence and depth.
 */
int kvd_free_items_needles(kvd_free_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                           size_t n_depths, size_t max_len, size_t most, uint64_t seed, kvd_err *err);

#endif
