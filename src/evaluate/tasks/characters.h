/* Texts as code points, and their words, for scores that count characters or words. */
#ifndef KVD_EVALUATE_TASKS_CHARACTERS_H
#define KVD_EVALUATE_TASKS_CHARACTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/*
 * Text as an array of Unicode code points. A byte that is not valid UTF-8 is stored as 0x110000 +
 * the byte.
 */
typedef struct {
    uint32_t *c;
    size_t n;
} kvd_characters;

/* Allocates the code points of s [len]; the caller frees x->c. */
int kvd_characters_of(const char *s, size_t len, kvd_characters *x, kvd_err *err);
/* Converts the code points to lower case, one by one (towlower of the locale C.UTF-8). */
int kvd_characters_lower(kvd_characters *x, kvd_err *err);
/* Returns true for letters and digits, as \w of regular expressions without the underscore. */
bool kvd_character_is_word(uint32_t c);
/* Returns true for white space as Python's str.split sees it. */
bool kvd_character_is_space(uint32_t c);
/* Returns the index of the first occurrence of y in x, or SIZE_MAX. */
size_t kvd_characters_find(const kvd_characters *x, const kvd_characters *y);

/* Words between white space, as slices of the text. */
typedef struct {
    kvd_characters *word; /* c points into the text */
    size_t n;
} kvd_words;

/* Allocates the words of x, which must outlive them; the caller frees w->word. */
int kvd_words_of(const kvd_characters *x, kvd_words *w, kvd_err *err);
/* Compares two words. Returns a number less than, equal to or above 0, as strcmp does. */
int kvd_words_order(const kvd_characters *a, const kvd_characters *b);

#endif
