/* Builds the texts of RULER's items with a given number of words or lines. */
#ifndef KVD_EVALUATE_TASKS_RULER_BUILD_H
#define KVD_EVALUATE_TASKS_RULER_BUILD_H

#include <stdio.h>

#include "common/rng.h"
#include "evaluate/tasks/ruler.h"

/* Lists of English words, separated by blanks, that occur in RULER's test questions. */
extern const char kvd_ruler_adjectives[], kvd_ruler_nouns[], kvd_ruler_verbs[];

typedef struct {
    char *text; /* copy of the words with '\0' after each */
    const char **word;
    size_t n;
} kvd_ruler_list;

/* Kind of random text in a needle, a fact hidden in a long text. */
typedef enum { KVD_RULER_NUMBERS, KVD_RULER_UUIDS, KVD_RULER_WORDS } kvd_ruler_kind;
typedef enum { KVD_RULER_NOISE, KVD_RULER_ESSAY, KVD_RULER_NEEDLES } kvd_ruler_haystack;

enum { KVD_RULER_HOPS = 4, KVD_RULER_CHAIN = KVD_RULER_HOPS + 1, KVD_RULER_COMMON = 10 };

/* parameters of a RULER task that hides needles (facts) in a long text, as in RULER's
 * synthetic.yaml */
typedef struct {
    kvd_ruler_haystack haystack;
    kvd_ruler_kind key, value;
    /* keys: number of different names of needles. values: number of values hidden per name.
     * queries: number of names that the question asks for. */
    size_t keys, values, queries;
} kvd_ruler_needles;

/* prompt and answers of a RULER item (a test question), all allocated; all zeros mean empty */
typedef struct {
    /* prompt without the answer prefix; its last line is the question */
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
    /* solved example of task "vt" (variable tracking): number of filler lines, and index of the
     * filler line after each variable assignment */
    size_t example_lines, example_at[KVD_RULER_CHAIN];
} kvd_ruler;

int kvd_ruler_split(const char *text, size_t n, kvd_ruler_list *list, kvd_err *err);

int kvd_ruler_open_essay(kvd_ruler *r, kvd_err *err);

/* Builds an item with n words, filler lines or needles, depending on the task. *t must be zeroed;
 * release it, also after a failure. */
typedef int kvd_ruler_build(kvd_ruler *r, size_t n, kvd_ruler_text *t, kvd_err *err);
kvd_ruler_build kvd_ruler_needle_item, kvd_ruler_vt_item, kvd_ruler_cwe_item, kvd_ruler_fwe_item;
/* Checks an item of n words of task "fwe" (frequent words). Returns true if its three answers are
 * more frequent than every other word, except the filler "...". */
bool kvd_ruler_fwe_is_clear(const kvd_ruler *r, size_t n);
/* Builds the solved example of task "vt" (variable tracking) with n filler lines. Stores the places
 * of its assignments in r->example_at. */
kvd_ruler_build kvd_ruler_vt_example;

/* Fills index [n] with a random order of 0 .. n - 1, which is the same at each call with the same
 * seed. */
void kvd_ruler_order(const kvd_ruler *r, size_t n, size_t *index);
/* Draws k different numbers below n into index[0 .. k - 1], in rising order. The array must have n
 * elements. */
void kvd_ruler_positions(kvd_ruler *r, size_t n, size_t k, size_t *index);

extern const char kvd_ruler_noise[];

#endif
