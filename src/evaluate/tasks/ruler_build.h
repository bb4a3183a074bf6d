/* Texts of RULER's tasks at a given size; ruler.c chooses the size. Private to ruler*.c. */
#ifndef KVD_EVALUATE_TASKS_RULER_BUILD_H
#define KVD_EVALUATE_TASKS_RULER_BUILD_H

#include <stdio.h>

#include "common/rng.h"
#include "evaluate/tasks/ruler.h"

/* Lists of words with one blank between two words (ruler_words.c). */
extern const char kvd_ruler_adjectives[], kvd_ruler_nouns[], kvd_ruler_verbs[];

/* Text and the list of its words, both allocated. */
typedef struct {
    char *text; /* the words, each ended by '\0' */
    const char **word;
    size_t n;
} kvd_ruler_list;

/* Kinds of random text in a needle. */
typedef enum { KVD_RULER_NUMBERS, KVD_RULER_UUIDS, KVD_RULER_WORDS } kvd_ruler_kind;
typedef enum { KVD_RULER_NOISE, KVD_RULER_ESSAY, KVD_RULER_NEEDLES } kvd_ruler_haystack;

enum { KVD_RULER_HOPS = 4, KVD_RULER_CHAIN = KVD_RULER_HOPS + 1, KVD_RULER_COMMON = 10 };

/* Settings of a needle task, from a row of synthetic.yaml of RULER. */
typedef struct {
    kvd_ruler_haystack haystack;
    kvd_ruler_kind key, value;
    size_t keys, values, queries; /* keys hidden, values of each key, keys asked for */
} kvd_ruler_needles;

/* Texts of one item of a RULER task, all allocated. A zeroed item is empty. */
typedef struct {
    char *input;  /* prompt without the answer prefix; its last line is the question */
    char *prefix; /* answer prefix */
    char **answer;
    size_t n_answers;
} kvd_ruler_text;

typedef struct {
    const kvd_ruler_settings *s;
    const kvd_tokenizer *tokenizer;
    kvd_rng rng; /* random number stream of the task */
    const kvd_ruler_needles *needles;
    size_t new_tokens; /* tokens of an answer, part of the length */
    kvd_ruler_list adjectives, nouns, verbs;
    kvd_ruler_list essay;
    bool *ends; /* [essay.n] the word ends a sentence of the essay */
    /*
     * Layout of the example in vt (variable tracking): number of noise lines, and for each
     * assignment the noise line that follows it.
     */
    size_t example_lines, example_at[KVD_RULER_CHAIN];
} kvd_ruler;

/* Splits text [n] at white space into *list. */
int kvd_ruler_split(const char *text, size_t n, kvd_ruler_list *list, kvd_err *err);

/* Reads the essay of the settings and finds the ends of its sentences. */
int kvd_ruler_open_essay(kvd_ruler *r, kvd_err *err);

/*
 * Builds an item from `n` pieces of haystack: words of the essay, lines of noise, distracting
 * needles, distinct words (cwe), or words of the coded text (fwe). *t is zeroed. On failure the
 * caller releases *t.
 */
typedef int kvd_ruler_build(kvd_ruler *r, size_t n, kvd_ruler_text *t, kvd_err *err);
kvd_ruler_build kvd_ruler_needle_item, kvd_ruler_vt_item, kvd_ruler_cwe_item, kvd_ruler_fwe_item;
/*
 * Returns true if a coded text of n words has each answer more often than any other word but the
 * dots.
 */
bool kvd_ruler_fwe_is_clear(const kvd_ruler *r, size_t n);
/*
 * Builds the solved example of vt (variable tracking) from `n` lines of noise, and keeps its layout
 * in *r.
 */
kvd_ruler_build kvd_ruler_vt_example;

/*
 * Sets index[0 .. n - 1] to a permutation that depends on the seed and on n only: RULER shuffles
 * with a new generator for every item.
 */
void kvd_ruler_order(const kvd_ruler *r, size_t n, size_t *index);
/* Draws k of 0 .. n - 1 and returns them in ascending order; `index` has room for n numbers. */
void kvd_ruler_positions(kvd_ruler *r, size_t n, size_t k, size_t *index);

extern const char kvd_ruler_noise[]; /* sentence that RULER repeats as noise */

#endif
