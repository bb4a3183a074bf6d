/*
 * Builds the texts of RULER's tasks at a given size; ruler.c chooses the size. Private to ruler*.c.
 */
#ifndef KVD_EVALUATE_TASKS_RULER_BUILD_H
#define KVD_EVALUATE_TASKS_RULER_BUILD_H

#include <stdio.h>

#include "common/rng.h"
#include "evaluate/tasks/ruler.h"

/* Lists of English words separated by single blanks (ruler_words.c). */
extern const char kvd_ruler_adjectives[], kvd_ruler_nouns[], kvd_ruler_verbs[];

/* A text split into its words. */
typedef struct {
    char *text; /* copy of the text in which each word ends with '\0' */
    const char **word;
    size_t n;
} kvd_ruler_list;

/* Kinds of random text in a needle (a fact hidden in a long text). */
typedef enum { KVD_RULER_NUMBERS, KVD_RULER_UUIDS, KVD_RULER_WORDS } kvd_ruler_kind;
typedef enum { KVD_RULER_NOISE, KVD_RULER_ESSAY, KVD_RULER_NEEDLES } kvd_ruler_haystack;

enum { KVD_RULER_HOPS = 4, KVD_RULER_CHAIN = KVD_RULER_HOPS + 1, KVD_RULER_COMMON = 10 };

/* Settings of a needle task, from RULER's synthetic.yaml. */
typedef struct {
    kvd_ruler_haystack haystack;
    kvd_ruler_kind key, value;
    /* Number of keys hidden, of values per key, and of keys that the question asks for. */
    size_t keys, values, queries;
} kvd_ruler_needles;

/* Texts of one item of a RULER task, all allocated. A zeroed item is empty. */
typedef struct {
    /* Text of the prompt without the answer prefix; its last line is the question. */
    char *input;
    /* Beginning of the answer, which is the end of the prompt. */
    char *prefix;
    char **answer;
    size_t n_answers;
} kvd_ruler_text;

typedef struct {
    const kvd_ruler_settings *s;
    const kvd_tokenizer *tokenizer;
    kvd_rng rng; /* random number stream of the task */
    const kvd_ruler_needles *needles;
    /* Number of tokens reserved for the answer within the length of a prompt. */
    size_t new_tokens;
    kvd_ruler_list adjectives, nouns, verbs;
    kvd_ruler_list essay;
    bool *ends; /* true for each essay word that ends a sentence: [essay.n] */
    /*
     * Layout of the solved example in task vt (variable tracking): number of noise lines, and for
     * each variable assignment the index of the noise line before which it is written.
     */
    size_t example_lines, example_at[KVD_RULER_CHAIN];
} kvd_ruler;

/* Splits text [n] at white space into the words of *list. */
int kvd_ruler_split(const char *text, size_t n, kvd_ruler_list *list, kvd_err *err);

/* Reads the essay file of the settings and finds the ends of its sentences. */
int kvd_ruler_open_essay(kvd_ruler *r, kvd_err *err);

/*
 * Builds an item of size n. The size counts other things in each task: words of the essay, lines of
 * noise or distracting needles in tasks that hide needles; lines of noise in task vt; distinct
 * words in task cwe; words of the coded text in task fwe. *t must be zeroed. On failure the caller
 * releases *t.
 */
typedef int kvd_ruler_build(kvd_ruler *r, size_t n, kvd_ruler_text *t, kvd_err *err);
kvd_ruler_build kvd_ruler_needle_item, kvd_ruler_vt_item, kvd_ruler_cwe_item, kvd_ruler_fwe_item;
/*
 * Returns true if a text of n words in task fwe (frequent words) has a clear answer: its three
 * answer words are more frequent than any other word. The word "...", with which RULER fills the
 * text, does not count.
 */
bool kvd_ruler_fwe_is_clear(const kvd_ruler *r, size_t n);
/*
 * Builds the solved example of task vt (variable tracking) from n lines of noise, and keeps its
 * layout in *r.
 */
kvd_ruler_build kvd_ruler_vt_example;

/*
 * Sets index[0 .. n - 1] to a permutation that depends only on the seed and on n, because RULER
 * shuffles with a new generator for every item.
 */
void kvd_ruler_order(const kvd_ruler *r, size_t n, size_t *index);
/*
 * Draws k distinct numbers from 0 .. n - 1 in ascending order into `index`, which has room for n
 * numbers.
 */
void kvd_ruler_positions(kvd_ruler *r, size_t n, size_t k, size_t *index);

extern const char kvd_ruler_noise[];

#endif
