#ifndef KVD_EVALUATE_TASKS_CHARACTERS_H
#define KVD_EVALUATE_TASKS_CHARACTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Returns the number of bytes of the white space character at the start of `s`, or 0 if there is
 * none. */
size_t kvd_space_width(const char *s);
/* Returns `s` without leading white space. *n: number of bytes of the result without trailing white
 * space. */
const char *kvd_trimmed(const char *s, size_t *n);

/* A text as code points. A byte of invalid UTF-8 becomes 0x110000 + byte. */
typedef struct {
    uint32_t *c;
    size_t n;
} kvd_characters;

/* Decodes UTF-8. The caller frees x->c. */
int kvd_characters_of(const char *s, size_t len, kvd_characters *x, kvd_err *err);
/* Converts the result of kvd_characters_of to lower case, as Python's str.lower does. */
int kvd_characters_lower(kvd_characters *x, kvd_err *err);
/* Returns true for letters and numbers, as Python's str.isalnum does. */
bool kvd_character_is_word(uint32_t c);
/* Returns true for white space as in Python's str.split. */
bool kvd_character_is_space(uint32_t c);
/* Returns the index in x at which y first occurs, or SIZE_MAX if it does not occur. */
size_t kvd_characters_find(const kvd_characters *x, const kvd_characters *y);

typedef struct {
    /* words of a text, each a pointer to its first character and a length; the text must outlive
     * them */
    kvd_characters *word;
    size_t n;
} kvd_words;

/* Splits a text into words at white space. The caller frees w->word. */
int kvd_words_of(const kvd_characters *x, kvd_words *w, kvd_err *err);
int kvd_words_order(const kvd_characters *a, const kvd_characters *b);
/* Sorts both lists and returns the number of words that they share. A word that is three times in
 * one list and twice in the other counts twice. */
size_t kvd_words_common(kvd_words *a, kvd_words *b);

/* Returns the F1 score of an answer with n parts (such as words) and a reference with m parts,
 * which share `same` parts. */
double kvd_f1(double same, double n, double m);

#endif
