#include "evaluate/tasks/characters.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <wctype.h>

#include "common/utf8.h"

enum { NOT_UNICODE = 0x110000 };

const char *kvd_trimmed(const char *s, size_t *n)
{
    static const char space[] = " \t\r\n\v\f";
    s += strspn(s, space);
    for (*n = strlen(s); *n && strchr(space, s[*n - 1]);)
        --*n;
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

/* Returns the locale C.UTF-8, which knows Unicode's character classes, or 0. */
static locale_t unicode(void)
{
    static locale_t known;
    if (!known)
        known = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    return known;
}

int kvd_characters_lower(kvd_characters *x, kvd_err *err)
{
    const locale_t l = unicode();
    for (size_t i = 0; i < x->n; i++) {
        if (x->c[i] < 0x80)
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
    const locale_t l = unicode();
    return c < NOT_UNICODE && l && iswalnum_l((wint_t)c, l);
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
