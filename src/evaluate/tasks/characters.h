/*
 * Texts as arrays of Unicode code points, and their words, for scores that count characters or
 * words.
 */
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

/* Converts the UTF-8 text s [len] to code points. The caller frees x->c. */
int kvd_characters_of(const char *s, size_t len, kvd_characters *x, kvd_err *err);
/* Converts the code points of x to lower case, one by one (towlower of the locale C.UTF-8). */
int kvd_characters_lower(kvd_characters *x, kvd_err *err);
/*
 * Returns true for letters and digits, as \w of regular expressions does, but not for the
 * underscore.
 */
bool kvd_character_is_word(uint32_t c);
/* Returns true for characters that Python's str.split treats as white space. */
bool kvd_character_is_space(uint32_t c);
/* Returns the index of the first occurrence of text y in text x, or SIZE_MAX. */
size_t kvd_characters_find(const kvd_characters *x, const kvd_characters *y);

/* Words of a text, separated by white space. */
typedef struct {
    /* Words as ranges of the text's code points; they point into the text. */
    kvd_characters *word;
    size_t n;
} kvd_words;

/*
 * Finds the words of text x. They point into x, so x must exist as long as *w is used. The caller
 * frees w->word.
 */
int kvd_words_of(const kvd_characters *x, kvd_words *w, kvd_err *err);
/*
 * Compares two words by their code points. Returns a number below, equal to or above 0, as strcmp
 * does.
 */
int kvd_words_order(const kvd_characters *a, const kvd_characters *b);

#endif
