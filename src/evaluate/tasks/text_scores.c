#include "evaluate/tasks/text_scores.h"

#include <stdlib.h>
#include <string.h>

#include "evaluate/tasks/characters.h"

/*
 * Returns the first character in lower case if in [a-z0-9], otherwise a space. U+0130 becomes i,
 * U+212A (kelvin sign) k.
 */
static char word_character(const char *s, size_t n, size_t *width)
{
    *width = 1;
    if ((*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9'))
        return *s;
    if (*s >= 'A' && *s <= 'Z')
        return (char)(*s - 'A' + 'a');
    if (n >= 2 && !memcmp(s, "\xC4\xB0", 2)) {
        *width = 2;
        return 'i';
    }
    if (n >= 3 && !memcmp(s, "\xE2\x84\xAA", 3)) {
        *width = 3;
        return 'k';
    }
    return ' ';
}

typedef struct {
    char *text;
    const char **word;
    size_t n;
} words;

static int by_word(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void words_release(words *w)
{
    free(w->text);
    free(w->word);
}

static int words_of(const char *s, size_t n, words *w, kvd_err *err)
{
    size_t used = 0, width;
    *w = (words){.text = malloc(n + 1), .word = malloc((n / 2 + 1) * sizeof *w->word)};
    if (!w->text || !w->word)
        return kvd_no_memory(err, "words of a text", n);
    for (size_t i = 0; i < n; i += width) {
        const char c = word_character(s + i, n - i, &width);
        if (c != ' ') {
            if (!used || !w->text[used - 1])
                w->word[w->n++] = w->text + used;
            w->text[used++] = c;
            /* U+0130 becomes i and a combining dot, which ends the word. */
            if (width == 2)
                w->text[used++] = '\0';
        } else if (used && w->text[used - 1]) {
            w->text[used++] = '\0';
        }
    }
    w->text[used] = '\0';
    qsort(w->word, w->n, sizeof *w->word, by_word);
    return 0;
}

static size_t common_words(const words *a, const words *b)
{
    size_t i = 0, j = 0, n = 0;
    while (i < a->n && j < b->n) {
        const int order = strcmp(a->word[i], b->word[j]);
        n += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return n;
}

int kvd_rouge_1(const char *target, size_t n_target, const char *prediction, size_t n_prediction,
                kvd_rouge *out, kvd_err *err)
{
    words t = {0}, p = {0};
    *out = (kvd_rouge){0, 0, 0};
    const int status =
        words_of(target, n_target, &t, err) || words_of(prediction, n_prediction, &p, err) ? -1 : 0;
    if (!status && t.n && p.n) {
        const double common = (double)common_words(&t, &p);
        out->precision = common / (double)p.n;
        out->recall = common / (double)t.n;
        if (common > 0)
            out->f1 = 2 * out->precision * out->recall / (out->precision + out->recall);
    }
    words_release(&t);
    words_release(&p);
    return status;
}

/* Computes the edit distance by Wagner and Fischer's algorithm. row [m + 1] is scratch memory. */
static size_t distance(const uint32_t *a, size_t n, const uint32_t *b, size_t m, size_t *row)
{
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = best < row[j] + 1 ? best : row[j] + 1;
            row[j] = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
        }
    }
    return row[m];
}

int kvd_edit_similarity(const char *a, size_t n_a, const char *b, size_t n_b, double *out,
                        kvd_err *err)
{
    kvd_characters x = {0}, y = {0};
    size_t *const row = malloc((n_b + 1) * sizeof *row);
    const int status =
        !row ? kvd_no_memory(err, "characters of two texts", n_b * sizeof *row)
             : kvd_characters_of(a, n_a, &x, err) || kvd_characters_of(b, n_b, &y, err);
    if (!status) {
        const size_t longest = x.n > y.n ? x.n : y.n;
        *out = longest ? 1 - (double)distance(x.c, x.n, y.c, y.n, row) / (double)longest : 1;
    }
    free(x.c);
    free(y.c);
    free(row);
    return status ? -1 : 0;
}

size_t kvd_agreeing_prefix(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b)
{
    const size_t n = n_a < n_b ? n_a : n_b;
    size_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}
