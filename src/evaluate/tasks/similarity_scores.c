#include "evaluate/tasks/text_scores.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate/tasks/characters.h"

static bool is_punctuation(uint32_t c)
{
    return c > ' ' && c < 0x7f && !kvd_character_is_word(c);
}

static bool is_article(const kvd_characters *w)
{
    static const char *const all[] = {"a", "an", "the"};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        bool same = w->n == strlen(all[k]);
        for (size_t i = 0; same && i < w->n; i++)
            same = w->c[i] == (unsigned char)all[k][i];
        if (same)
            return true;
    }
    return false;
}

static int normalise(kvd_characters *x, kvd_err *err)
{
    size_t n = 0;
    if (kvd_characters_lower(x, err))
        return -1;
    for (size_t i = 0; i < x->n; i++)
        if (!is_punctuation(x->c[i]))
            x->c[n++] = x->c[i];
    x->n = n;
    for (size_t i = 0; i < n;) {
        kvd_characters word = {.c = x->c + i};
        while (i + word.n < n && kvd_character_is_word(word.c[word.n]))
            word.n++;
        const bool article = is_article(&word);
        for (size_t j = 0; article && j < word.n; j++)
            word.c[j] = ' ';
        i += word.n ? word.n : 1;
    }
    return 0;
}

int kvd_qa_f1(const char *answer, const char *reference, double *f1, kvd_err *err)
{
    kvd_characters x[2] = {{0}, {0}};
    kvd_words w[2] = {{0}, {0}};
    const char *const text[] = {answer, reference};
    int status = 0;
    for (int k = 0; !status && k < 2; k++)
        status = kvd_characters_of(text[k], strlen(text[k]), &x[k], err) || normalise(&x[k], err) ||
                 kvd_words_of(&x[k], &w[k], err);
    if (!status)
        *f1 = kvd_f1((double)kvd_words_common(&w[0], &w[1]), (double)w[0].n, (double)w[1].n);
    for (int k = 0; k < 2; k++) {
        free(x[k].c);
        free(w[k].word);
    }
    return status ? -1 : 0;
}

/* a text as sentences of words, where each word is a number; equal words of two texts have the same
 * number */
typedef struct {
    size_t *word; /* [n_words] */
    size_t *end;  /* [n_sentences] index after the sentence's last word */
    size_t n_words, n_sentences, n_distinct;
} sentences;

/* Returns the index of word *w in list `d`. If the list does not have the word, appends it
 * first. */
static size_t number_of(kvd_words *d, const kvd_characters *w)
{
    size_t i = 0;
    while (i < d->n && kvd_words_order(&d->word[i], w))
        i++;
    if (i == d->n)
        d->word[d->n++] = *w;
    return i;
}

/* Appends a sentence to *s. A sentence without words becomes a sentence of one empty word. */
static int add_sentence(const kvd_characters *x, kvd_words *d, sentences *s, kvd_err *err)
{
    const kvd_characters empty = {0};
    kvd_words w;
    if (kvd_words_of(x, &w, err))
        return -1;
    for (size_t i = 0; i < (w.n ? w.n : 1); i++)
        s->word[s->n_words++] = number_of(d, w.n ? &w.word[i] : &empty);
    s->end[s->n_sentences++] = s->n_words;
    free(w.word);
    return 0;
}

static int split(const kvd_characters *x, kvd_words *d, sentences *s, kvd_err *err)
{
    *s = (sentences){.word = malloc((x->n + 1) * sizeof *s->word),
                     .end = malloc((x->n + 1) * sizeof *s->end)};
    if (!s->word || !s->end)
        return kvd_no_memory(err, "words of a text", 2 * (x->n + 1) * sizeof *s->word);
    for (size_t i = 0, next; i < x->n; i = next + 1) {
        for (next = i; next < x->n && x->c[next] != '.';)
            next++;
        const kvd_characters one = {x->c + i, next - i};
        if (one.n && add_sentence(&one, d, s, err))
            return -1;
    }
    return 0;
}

static int count_distinct(sentences *s, size_t n_words, kvd_err *err)
{
    bool *const seen = calloc(n_words + 1, sizeof *seen);
    if (!seen)
        return kvd_no_memory(err, "words of a text", n_words);
    for (size_t i = 0; i < s->n_words; i++) {
        s->n_distinct += !seen[s->word[i]];
        seen[s->word[i]] = true;
    }
    free(seen);
    return 0;
}

/* Sets in_union[w] to true for each word id w in the longest common subsequence of two sentences.
 * Sentences x [n] and y [m] are arrays of word ids. */
static int mark_common(const size_t *x, size_t n, const size_t *y, size_t m, bool *in_union,
                       kvd_err *err)
{
    const size_t wide = m + 1;
    uint32_t *const table = calloc((n + 1) * wide, sizeof *table);
    if (!table)
        return kvd_no_memory(err, "common words of two sentences", (n + 1) * wide * sizeof *table);
    for (size_t i = 1; i <= n; i++)
        for (size_t j = 1; j <= m; j++) {
            const uint32_t above = table[(i - 1) * wide + j], left = table[i * wide + j - 1];
            table[i * wide + j] = x[i - 1] == y[j - 1] ? table[(i - 1) * wide + j - 1] + 1
                                  : above > left       ? above
                                                       : left;
        }
    for (size_t i = n, j = m; i && j;) {
        if (x[i - 1] == y[j - 1]) {
            in_union[x[i - 1]] = true;
            i--;
            j--;
        } else if (table[(i - 1) * wide + j] > table[i * wide + j - 1]) {
            i--;
        } else {
            j--;
        }
    }
    free(table);
    return 0;
}

static double package_f1(double both, double answer, double reference)
{
    const double p = both / answer, r = both / reference;
    return 2 * (p * r / (p + r + 1e-8));
}

/* Counts the distinct words that occur in both texts `a` and `r`. If `subsequences` is true, counts
 * only words in a longest common subsequence of two sentences. */
static int overlap(const sentences *a, const sentences *r, size_t n_words, bool subsequences,
                   double *found, kvd_err *err)
{
    bool *const in = calloc(n_words + 1, sizeof *in), *const in_reference =
                                                          calloc(n_words + 1, sizeof *in);
    int status = in && in_reference ? 0 : kvd_no_memory(err, "words of a text", 2 * n_words);
    for (size_t i = 0; !status && subsequences && i < r->n_sentences; i++)
        for (size_t j = 0; !status && j < a->n_sentences; j++) {
            const size_t at = i ? r->end[i - 1] : 0, from = j ? a->end[j - 1] : 0;
            status = mark_common(r->word + at, r->end[i] - at, a->word + from, a->end[j] - from, in,
                                 err);
        }
    for (size_t i = 0; !status && !subsequences && i < r->n_words; i++)
        in_reference[r->word[i]] = true;
    for (size_t i = 0; !status && !subsequences && i < a->n_words; i++)
        in[a->word[i]] = in_reference[a->word[i]];
    *found = 0;
    for (size_t k = 0; !status && k < n_words; k++)
        *found += in[k];
    free(in);
    free(in_reference);
    return status;
}

int kvd_rouge_package(const char *answer, const char *reference, double *rouge_1, double *rouge_l,
                      kvd_err *err)
{
    kvd_characters x[2] = {{0}, {0}};
    sentences s[2] = {{0}, {0}};
    const size_t most = strlen(answer) + strlen(reference) + 2;
    kvd_words d = {.word = malloc(most * sizeof *d.word)};
    const char *const text[] = {answer, reference};
    double *const out[] = {rouge_1, rouge_l};
    int status = d.word ? 0 : kvd_no_memory(err, "words of a text", most * sizeof *d.word);
    for (int k = 0; !status && k < 2; k++)
        status =
            kvd_characters_of(text[k], strlen(text[k]), &x[k], err) || split(&x[k], &d, &s[k], err);
    for (int k = 0; !status && k < 2; k++)
        status = count_distinct(&s[k], d.n, err);
    for (int k = 0; !status && k < 2; k++) {
        double both = 0;
        if (!out[k])
            continue;
        *out[k] = 0;
        if (s[0].n_sentences && s[1].n_sentences) {
            status = overlap(&s[0], &s[1], d.n, k == 1, &both, err);
            *out[k] = package_f1(both, (double)s[0].n_distinct, (double)s[1].n_distinct);
        }
    }
    for (int k = 0; k < 2; k++) {
        free(x[k].c);
        free(s[k].word);
        free(s[k].end);
    }
    free(d.word);
    return status ? -1 : 0;
}

typedef struct {
    const kvd_characters *a, *b;
    /* [b->n] true for characters that are so frequent in b that Python's difflib ignores them */
    bool *popular;
    /* [2][b->n + 1] two rows of a table. Element j + 1 of row i is the length of the longest common
     * substring that ends at character i of *a and character j of *b. */
    size_t *length[2];
} matcher;

typedef struct {
    size_t a, b, n;
} block;

/* Finds the longest block of characters common to a [alo, ahi) and b [blo, bhi); of equally long
 * blocks the first in a, then the first in b. */
static block longest(matcher *m, size_t alo, size_t ahi, size_t blo, size_t bhi)
{
    block best = {alo, blo, 0};
    memset(m->length[0], 0, (m->b->n + 1) * sizeof *m->length[0]);
    for (size_t i = alo; i < ahi; i++) {
        size_t *const before = m->length[(i - alo) % 2], *const now = m->length[(i - alo + 1) % 2];
        memset(now, 0, (m->b->n + 1) * sizeof *now);
        for (size_t j = blo; j < bhi; j++) {
            if (m->popular[j] || m->b->c[j] != m->a->c[i])
                continue;
            const size_t k = now[j + 1] = before[j] + 1;
            if (k > best.n)
                best = (block){i + 1 - k, j + 1 - k, k};
        }
    }
    while (best.a > alo && best.b > blo && m->a->c[best.a - 1] == m->b->c[best.b - 1]) {
        best.a--;
        best.b--;
        best.n++;
    }
    while (best.a + best.n < ahi && best.b + best.n < bhi &&
           m->a->c[best.a + best.n] == m->b->c[best.b + best.n])
        best.n++;
    return best;
}

static size_t matched(matcher *m, size_t alo, size_t ahi, size_t blo, size_t bhi)
{
    size_t sum = 0;
    while (alo < ahi && blo < bhi) {
        const block x = longest(m, alo, ahi, blo, bhi);
        if (!x.n)
            break;
        sum += x.n + matched(m, alo, x.a, blo, x.b);
        alo = x.a + x.n;
        blo = x.b + x.n;
    }
    return sum;
}

/* Computes the similarity that Python's difflib.SequenceMatcher(None, a, b).ratio() returns. */
static int ratio(const kvd_characters *a, const kvd_characters *b, double *out, kvd_err *err)
{
    enum { FREQUENT_FROM = 200 };
    matcher m = {a,
                 b,
                 calloc(b->n + 1, sizeof *m.popular),
                 {calloc(b->n + 1, sizeof(size_t)), calloc(b->n + 1, sizeof(size_t))}};
    const bool ok = m.popular && m.length[0] && m.length[1];
    for (size_t j = 0; ok && b->n >= FREQUENT_FROM && j < b->n; j++) {
        size_t times = 0;
        for (size_t i = 0; i < b->n; i++)
            times += b->c[i] == b->c[j];
        m.popular[j] = times > b->n / 100 + 1;
    }
    if (ok)
        *out = a->n + b->n ? 2 * (double)matched(&m, 0, a->n, 0, b->n) / (double)(a->n + b->n) : 1;
    free(m.popular);
    free(m.length[0]);
    free(m.length[1]);
    return ok ? 0 : kvd_no_memory(err, "matches of two texts", 3 * b->n * sizeof(size_t));
}

/* Returns the first line of `s` that has no backtick, # or //. *len: its length, or 0 if there is
 * no such line. */
static const char *code_line(const char *s, size_t *len)
{
    s += strspn(s, "\n");
    for (;; s += *len + 1) {
        *len = strcspn(s, "\n");
        if (!memchr(s, '`', *len) && !memchr(s, '#', *len) && !memmem(s, *len, "//", 2))
            return s;
        if (!s[*len]) {
            *len = 0;
            return s;
        }
    }
}

int kvd_code_similarity(const char *answer, const char *reference, double *score, kvd_err *err)
{
    kvd_characters a = {0}, b = {0};
    size_t n;
    const char *const line = code_line(answer, &n);
    double r = 0;
    int status = kvd_characters_of(line, n, &a, err) ||
                 kvd_characters_of(reference, strlen(reference), &b, err);
    /* As in fuzzywuzzy, equal texts score 1 and an empty text 0. */
    if (!status && !kvd_words_order(&a, &b))
        r = 1;
    else if (!status && a.n && b.n)
        status = ratio(&a, &b, &r, err);
    *score = rint(100 * r) / 100;
    free(a.c);
    free(b.c);
    return status ? -1 : 0;
}
