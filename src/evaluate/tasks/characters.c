#include "evaluate/tasks/characters.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <wctype.h>

#include "common/utf8.h"

enum { NOT_UNICODE = 0x110000 };

size_t kvd_space_width(const char *s)
{
    unsigned width = 1;
    const size_t n = strnlen(s, 4), bad = kvd_utf8_first_bad(s, n);
    return bad && kvd_character_is_space(kvd_utf8_decode(s, &width)) ? width : 0;
}

const char *kvd_trimmed(const char *s, size_t *n)
{
    for (size_t width; (width = kvd_space_width(s));)
        s += width;
    *n = 0;
    for (size_t i = 0, width; s[i]; i += width ? width : 1) {
        width = kvd_space_width(s + i);
        *n = width ? *n : i + 1;
    }
    return s;
}

int kvd_characters_of(const char *s, size_t len, kvd_characters *x, kvd_err *err)
{
    *x = (kvd_characters){.c = malloc((len + 1) * sizeof *x->c)};
    if (!x->c)
        return kvd_no_memory(err, "characters of a text", (len + 1) * sizeof *x->c);
    size_t bad = kvd_utf8_first_bad(s, len);
    for (size_t i = 0; i < len;) {
        unsigned width = 1;
        if (i == bad) {
            x->c[x->n++] = NOT_UNICODE + (unsigned char)s[i++];
            bad = i + kvd_utf8_first_bad(s + i, len - i);
            continue;
        }
        x->c[x->n++] = kvd_utf8_decode(s + i, &width);
        i += width;
    }
    return 0;
}

/* Returns the locale C.UTF-8, in which C functions know Unicode's character classes, or 0 if the
 * system has no such locale. */
static locale_t unicode(void)
{
    static locale_t known;
    if (!known)
        known = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    return known;
}

static bool is_cased(uint32_t c)
{
    const utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* Returns true for characters, such as combining accents and apostrophes, that Unicode skips when
 * it decides if a sigma is the last letter of a word. */
static bool is_passed_over(uint32_t c)
{
    const utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' ||
           c == ':' || c == 0xB7 || c == 0x2019;
}

/* Returns true if the capital sigma at i ends a word (Unicode 3.13, Final_Sigma). */
static bool is_final_sigma(const kvd_characters *x, size_t i)
{
    size_t before = i, after = i + 1;
    while (before > 0 && is_passed_over(x->c[before - 1]))
        before--;
    while (after < x->n && is_passed_over(x->c[after]))
        after++;
    return before > 0 && is_cased(x->c[before - 1]) && (after == x->n || !is_cased(x->c[after]));
}

/* Replaces each U+0130 (capital I with dot) by its lower case, "i" and a combining dot. The array
 * x->c is long enough, because it has an element for each byte of UTF-8, and U+0130 takes two
 * bytes. */
static void lower_dotted_i(kvd_characters *x)
{
    size_t more = 0;
    for (size_t i = 0; i < x->n; i++)
        more += x->c[i] == 0x130;
    x->n += more;
    for (size_t to = x->n; more;) {
        const uint32_t c = x->c[to - 1 - more];
        if (c == 0x130) {
            more--;
            x->c[--to] = 0x307;
            x->c[--to] = 'i';
        } else {
            x->c[--to] = c;
        }
    }
}

int kvd_characters_lower(kvd_characters *x, kvd_err *err)
{
    const locale_t l = unicode();
    lower_dotted_i(x);
    for (size_t i = 0; i < x->n; i++) {
        if (x->c[i] == 0x3A3 && is_final_sigma(x, i))
            x->c[i] = 0x3C2;
        else if (x->c[i] < 0x80)
            x->c[i] += x->c[i] >= 'A' && x->c[i] <= 'Z' ? 'a' - 'A' : 0;
        else if (!l)
            return kvd_fail(err, "a text beyond ASCII is to be made lower case, and the C library "
                                 "has no locale C.UTF-8 (package libc-bin)");
        else if (x->c[i] < NOT_UNICODE)
            x->c[i] = (uint32_t)towlower_l((wint_t)x->c[i], l);
    }
    return 0;
}

bool kvd_character_is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    const utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return c < NOT_UNICODE && ((k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
                               (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO));
}

bool kvd_character_is_space(uint32_t c)
{
    return (c >= 0x1c && c <= 0x1f) || (c < NOT_UNICODE && kvd_utf8_is_space(c));
}

size_t kvd_characters_find(const kvd_characters *x, const kvd_characters *y)
{
    for (size_t i = 0; i + y->n <= x->n; i++)
        if (!memcmp(x->c + i, y->c, y->n * sizeof *y->c))
            return i;
    return SIZE_MAX;
}

int kvd_words_of(const kvd_characters *x, kvd_words *w, kvd_err *err)
{
    *w = (kvd_words){.word = malloc((x->n / 2 + 2) * sizeof *w->word)};
    if (!w->word)
        return kvd_no_memory(err, "words of a text", (x->n / 2 + 2) * sizeof *w->word);
    for (size_t i = 0; i < x->n;) {
        if (kvd_character_is_space(x->c[i])) {
            i++;
            continue;
        }
        kvd_characters *const word = &w->word[w->n++];
        *word = (kvd_characters){.c = x->c + i};
        for (; i < x->n && !kvd_character_is_space(x->c[i]); i++)
            word->n++;
    }
    return 0;
}

int kvd_words_order(const kvd_characters *a, const kvd_characters *b)
{
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (a->c[i] != b->c[i])
            return a->c[i] < b->c[i] ? -1 : 1;
    return a->n == b->n ? 0 : a->n < b->n ? -1 : 1;
}

static int by_order(const void *a, const void *b)
{
    return kvd_words_order(a, b);
}

size_t kvd_words_common(kvd_words *a, kvd_words *b)
{
    size_t i = 0, j = 0, n = 0;
    qsort(a->word, a->n, sizeof *a->word, by_order);
    qsort(b->word, b->n, sizeof *b->word, by_order);
    while (i < a->n && j < b->n) {
        const int order = kvd_words_order(&a->word[i], &b->word[j]);
        n += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return n;
}

double kvd_f1(double same, double n, double m)
{
    const double precision = same / n, recall = same / m;
    return same > 0 ? 2 * precision * recall / (precision + recall) : 0;
}
