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

/* Converts UTF-8 text to code points. The caller frees x->c. */
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
/* Returns the index of the first occurrence of y in x, or SIZE_MAX. */
size_t kvd_characters_find(const kvd_characters *x, const kvd_characters *y);

typedef struct {
    /* Words, each given as a range of the text. The text must outlive this structure. */
    kvd_characters *word;
    size_t n;
} kvd_words;

/* Finds the words between white space. The caller frees w->word. */
int kvd_words_of(const kvd_characters *x, kvd_words *w, kvd_err *err);
/* Compares code points as strcmp does. */
int kvd_words_order(const kvd_characters *a, const kvd_characters *b);

#endif
