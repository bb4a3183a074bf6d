/*
 * Builds the texts of RULER's tasks at a given size; ruler.c chooses the size. Private to ruler*.c.
 */
#ifndef KVD_EVALUATE_TASKS_RULER_BUILD_H
#define KVD_EVALUATE_TASKS_RULER_BUILD_H

#include <stdio.h>

#include "common/rng.h"
#include "evaluate/tasks/ruler.h"

/* Words for needles and lists, separated by single blanks. */
extern const char kvd_ruler_adjectives[], kvd_ruler_nouns[], kvd_ruler_verbs[];

typedef struct {
    char *text; /* copy of the text in which each word ends with '\0' */
    const char **word;
    size_t n;
} kvd_ruler_list;

/* Kinds of random text in a needle (a fact hidden in a long text). */
typedef enum { KVD_RULER_NUMBERS, KVD_RULER_UUIDS, KVD_RULER_WORDS } kvd_ruler_kind;
typedef enum { KVD_RULER_NOISE, KVD_RULER_ESSAY, KVD_RULER_NEEDLES } kvd_ruler_haystack;

enum { KVD_RULER_HOPS = 4, KVD_RULER_CHAIN = KVD_RULER_HOPS + 1, KVD_RULER_COMMON = 10 };

/* From RULER's synthetic.yaml. */
typedef struct {
    kvd_ruler_haystack haystack;
    kvd_ruler_kind key, value;
    /*
     * Needles hidden in the text: number of keys (names to search for), of values per key, and of
     * keys that the question asks for.
     */
    size_t keys, values, queries;
} kvd_ruler_needles;

/* Texts of an item, all allocated. A zeroed item is empty. */
typedef struct {
    /* Prompt without the answer prefix; its last line is the question. */
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
    /* Number of tokens reserved for the answer. */
    size_t new_tokens;
    kvd_ruler_list adjectives, nouns, verbs;
    kvd_ruler_list essay;
    bool *ends; /* true for each essay word that ends a sentence: [essay.n] */
    /*
     * Solved example of task vt. `example_lines` is its number of noise lines. `example_at` holds,
     * for each assignment, the index of the noise line before which it is written.
     */
    size_t example_lines, example_at[KVD_RULER_CHAIN];
} kvd_ruler;

int kvd_ruler_split(const char *text, size_t n, kvd_ruler_list *list, kvd_err *err);

int kvd_ruler_open_essay(kvd_ruler *r, kvd_err *err);

/*
 * Builds an item of size n. The unit of n depends on the task. In the needle tasks it is words of
 * the essay, lines of noise or distracting needles. In vt (variable tracking) it is lines of noise,
 * in cwe (common words) distinct words, and in fwe (frequent words) all words of the text. *t must
 * be zeroed; the caller releases it also after a failure.
 */
typedef int kvd_ruler_build(kvd_ruler *r, size_t n, kvd_ruler_text *t, kvd_err *err);
kvd_ruler_build kvd_ruler_needle_item, kvd_ruler_vt_item, kvd_ruler_cwe_item, kvd_ruler_fwe_item;
/*
 * Checks a text of n words of task fwe (frequent words). Returns true if the three words that are
 * the answer are more frequent than any other word except "...", with which RULER fills the text.
 */
bool kvd_ruler_fwe_is_clear(const kvd_ruler *r, size_t n);
/*
 * Builds the solved example of task vt from n lines of noise, and stores in *r where its
 * assignments are.
 */
kvd_ruler_build kvd_ruler_vt_example;

/*
 * Sets index[0 .. n - 1] to a permutation that depends on seed and n alone, because RULER
 * shuffles with a new generator for every item.
 */
void kvd_ruler_order(const kvd_ruler *r, size_t n, size_t *index);
/* Draws k distinct numbers of 0 .. n - 1 in rising order; `index` has room for n. */
void kvd_ruler_positions(kvd_ruler *r, size_t n, size_t k, size_t *index);

extern const char kvd_ruler_noise[];

#endif
