#include "evaluate/tasks/text_scores.h"

#include <stdlib.h>

#include "evaluate/tasks/characters.h"

/* Returns c in lower case if it is an ASCII letter or digit, else a space. */
static uint32_t word_character(uint32_t c)
{
    if (c >= 'A' && c <= 'Z')
        return c + 'a' - 'A';
    /* The lower case of U+0130 (I with a dot) begins with i, that of U+212A (kelvin sign) is k. */
    return c == 0x130 ? 'i' : c == 0x212A ? 'k' : c < 0x80 && kvd_character_is_word(c) ? c : ' ';
}

/* Fills *x with `s` in lower case without punctuation, and *w with the words of *x. The caller
 * frees x->c and w->word. */
static int words_of(const char *s, size_t n, kvd_characters *x, kvd_words *w, kvd_err *err)
{
    kvd_characters all;
    if (kvd_characters_of(s, n, &all, err))
        return -1;
    /* The n bytes give at most n characters: U+0130 gives two characters, but it also has two
     * bytes. */
    *x = (kvd_characters){.c = malloc((n + 1) * sizeof *x->c)};
    for (size_t i = 0; x->c && i < all.n; i++) {
        x->c[x->n++] = word_character(all.c[i]);
        /* In lower case, U+0130 becomes two characters: i and a combining dot, which is replaced by
         * a space. */
        if (all.c[i] == 0x130)
            x->c[x->n++] = ' ';
    }
    free(all.c);
    return x->c ? kvd_words_of(x, w, err) : kvd_no_memory(err, "words of a text", n);
}

int kvd_rouge_1(const char *target, size_t n_target, const char *prediction, size_t n_prediction,
                kvd_rouge *out, kvd_err *err)
{
    kvd_characters x[2] = {{0}, {0}};
    kvd_words t = {0}, p = {0};
    *out = (kvd_rouge){0, 0, 0};
    const int status = words_of(target, n_target, &x[0], &t, err) ||
                       words_of(prediction, n_prediction, &x[1], &p, err);
    if (!status && t.n && p.n) {
        const double common = (double)kvd_words_common(&t, &p);
        out->precision = common / (double)p.n;
        out->recall = common / (double)t.n;
        out->f1 = kvd_f1(common, (double)p.n, (double)t.n);
    }
    free(x[0].c);
    free(x[1].c);
    free(t.word);
    free(p.word);
    return status ? -1 : 0;
}

/* Returns the edit distance of a [n] and b [m] (Wagner and Fischer). row [m + 1]: working
 * memory. */
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
