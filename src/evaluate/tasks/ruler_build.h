/*
 * Builds the texts of RULER's items with sizes that ruler.c chooses. Only ruler*.c include this
 * file.
 */
#ifndef KVD_EVALUATE_TASKS_RULER_BUILD_H
#define KVD_EVALUATE_TASKS_RULER_BUILD_H

#include <stdio.h>

#include "common/rng.h"
#include "evaluate/tasks/ruler.h"

/* English words for needles and lists, separated by single blanks. */
extern const char kvd_ruler_adjectives[], kvd_ruler_nouns[], kvd_ruler_verbs[];

typedef struct {
    char *text; /* copy of the words with '\0' after each */
    const char **word;
    size_t n;
} kvd_ruler_list;

/* Kinds of random text in a needle (a fact hidden in a long text). */
typedef enum { KVD_RULER_NUMBERS, KVD_RULER_UUIDS, KVD_RULER_WORDS } kvd_ruler_kind;
typedef enum { KVD_RULER_NOISE, KVD_RULER_ESSAY, KVD_RULER_NEEDLES } kvd_ruler_haystack;

enum { KVD_RULER_HOPS = 4, KVD_RULER_CHAIN = KVD_RULER_HOPS + 1, KVD_RULER_COMMON = 10 };

/* A needle task as described in RULER's synthetic.yaml. */
typedef struct {
    kvd_ruler_haystack haystack;
    kvd_ruler_kind key, value;
    /* Number of keys (names), of values per key, and of keys that the question asks for. */
    size_t keys, values, queries;
} kvd_ruler_needles;

/* Texts of an item, all allocated. A zeroed item is empty. */
typedef struct {
    /* Prompt without the answer prefix. Its last line is the question. */
    char *input;
    char *prefix;
    char **answer;
    size_t n_answers;
} kvd_ruler_text;

typedef struct {
    const kvd_ruler_settings *s;
    const kvd_tokenizer *tokenizer;
    kvd_rng rng;
    const kvd_ruler_needles *needles;
    size_t new_tokens; /* number of tokens reserved for the answer */
    kvd_ruler_list adjectives, nouns, verbs;
    kvd_ruler_list essay;
    bool *ends; /* [essay.n] true if the word ends a sentence */
    /*
     * Only for task "vt": number of noise lines in the solved example, and the lines of its
     * assignments.
     */
    size_t example_lines, example_at[KVD_RULER_CHAIN];
} kvd_ruler;

int kvd_ruler_split(const char *text, size_t n, kvd_ruler_list *list, kvd_err *err);

int kvd_ruler_open_essay(kvd_ruler *r, kvd_err *err);

/*
 * Builds an item of size n: essay words, noise lines or distracting needles of a needle task, noise
 * lines of "vt", distinct words of "cwe", words of "fwe". *t must be zeroed; the caller
 * releases it, also after a failure.
 */
typedef int kvd_ruler_build(kvd_ruler *r, size_t n, kvd_ruler_text *t, kvd_err *err);
kvd_ruler_build kvd_ruler_needle_item, kvd_ruler_vt_item, kvd_ruler_cwe_item, kvd_ruler_fwe_item;
/*
 * Returns true if, with n words, the three answers of task "fwe" are the most frequent words apart
 * from "...".
 */
bool kvd_ruler_fwe_is_clear(const kvd_ruler *r, size_t n);
/*
 * Builds the solved example of task "vt" with n noise lines. Stores the lines of its assignments in
 * *r.
 */
kvd_ruler_build kvd_ruler_vt_example;

/*
 * Fills index [n] with a permutation. It depends on the seed alone, because RULER seeds its
 * generator again for each item.
 */
void kvd_ruler_order(const kvd_ruler *r, size_t n, size_t *index);
/* Draws k different numbers below n and writes them to the start of index [n], in rising order. */
void kvd_ruler_positions(kvd_ruler *r, size_t n, size_t k, size_t *index);

extern const char kvd_ruler_noise[];

#endif
