/* Builds RULER's needle items: facts hidden in noise, in an essay or among other needles. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate/tasks/ruler_build.h"

const char kvd_ruler_noise[] =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

static const char *const kind_words[] = {"numbers", "uuids", "words"};

enum { MOST_NEEDLES = 16, NEEDLE_WORD = 80, N_DEPTHS = 40 };

static bool is_abbreviation(const char *word, size_t n)
{
    static const char *const known[] = {"Mr.", "Mrs.", "Ms.",  "Dr.",  "Prof.", "St.",
                                        "vs.", "e.g.", "i.e.", "etc.", "Inc.",  "Jr."};
    if (n == 2 && isupper((unsigned char)word[0]) && word[1] == '.')
        return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i]) == n && !strncmp(known[i], word, n))
            return true;
    return false;
}

/* Returns true if `word` ends in . ! or ? and `next` can begin a sentence. */
static bool ends_sentence(const char *word, const char *next)
{
    size_t n = strlen(word);
    while (n && strchr("\"')]", word[n - 1]))
        n--;
    return n && strchr(".!?", word[n - 1]) && !is_abbreviation(word, n) &&
           !islower((unsigned char)*next);
}

int kvd_ruler_open_essay(kvd_ruler *r, kvd_err *err)
{
    const char *const path = r->s->essay;
    FILE *const f = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    if (!f)
        return kvd_fail_errno(err, "cannot open '%s'", path);
    const ssize_t n = getdelim(&text, &room, '\0', f);
    int status = ferror(f) ? kvd_fail_errno(err, "cannot read '%s'", path)
                 : n > 0 && !text[n - 1]
                     ? kvd_fail(err, "'%s' holds a zero byte: --essay takes a text file", path)
                     : kvd_ruler_split(text ? text : "", n > 0 ? (size_t)n : 0, &r->essay, err);
    fclose(f);
    free(text);
    if (!status && !r->essay.n)
        status = kvd_fail(err, "'%s' holds no words: --essay takes a text file", path);
    if (!status && !(r->ends = calloc(r->essay.n, sizeof *r->ends)))
        status = kvd_no_memory(err, "an essay", r->essay.n);
    for (size_t i = 0; !status && i + 1 < r->essay.n; i++)
        r->ends[i] = ends_sentence(r->essay.word[i], r->essay.word[i + 1]);
    if (!status)
        r->ends[r->essay.n - 1] = ends_sentence(r->essay.word[r->essay.n - 1], r->essay.word[0]);
    return status;
}

static void draw(kvd_ruler *r, kvd_ruler_kind kind, char word[NEEDLE_WORD])
{
    if (kind == KVD_RULER_NUMBERS) {
        snprintf(word, NEEDLE_WORD, "%d", (int)(1000000 + kvd_rng_below(&r->rng, 9000000)));
    } else if (kind == KVD_RULER_UUIDS) {
        /* Makes a UUID of version 4, variant 1 (RFC 4122). */
        const uint64_t high = (kvd_rng_u64(&r->rng) & ~0xf000ULL) | 0x4000,
                       low = (kvd_rng_u64(&r->rng) & ~(3ULL << 62)) | 1ULL << 63;
        snprintf(word, NEEDLE_WORD, "%08llx-%04llx-%04llx-%04llx-%012llx",
                 (unsigned long long)(high >> 32), (unsigned long long)(high >> 16 & 0xffff),
                 (unsigned long long)(high & 0xffff), (unsigned long long)(low >> 48),
                 (unsigned long long)(low & 0xffffffffffff));
    } else {
        const char *const first = r->adjectives.word[kvd_rng_below(&r->rng, r->adjectives.n)];
        snprintf(word, NEEDLE_WORD, "%s-%s", first,
                 r->nouns.word[kvd_rng_below(&r->rng, r->nouns.n)]);
    }
}

typedef struct {
    char key[MOST_NEEDLES][NEEDLE_WORD];
    /* text of each needle's value; value v of key (name) k has the index k * values + v */
    char value[MOST_NEEDLES][NEEDLE_WORD];
    size_t n;
    size_t order[MOST_NEEDLES];
} hidden;

static bool has_key(const hidden *h, size_t n, const char *key)
{
    for (size_t k = 0; k < n; k++)
        if (!strcmp(h->key[k], key))
            return true;
    return false;
}

static void draw_key(kvd_ruler *r, const hidden *h, size_t n, char key[NEEDLE_WORD])
{
    do
        draw(r, r->needles->key, key);
    while (has_key(h, n, key));
}

static void put_needle(FILE *f, const kvd_ruler_needles *c, const char *key, const char *value)
{
    fprintf(f, "One of the special magic %s for %s is: %s.", kind_words[c->value], key, value);
}

static void put_hidden(FILE *f, const kvd_ruler *r, const hidden *h, size_t i)
{
    const size_t k = h->order[i];
    put_needle(f, r->needles, h->key[k / r->needles->values], h->value[k]);
}

static const char *essay_word(const kvd_ruler *r, size_t i)
{
    return r->essay.word[i % r->essay.n];
}

/* Writes n words of the essay, repeated if it is short, with needles at random depths. */
static void put_essay(FILE *f, kvd_ruler *r, const hidden *h, size_t n)
{
    size_t sentences = 0, depth[N_DEPTHS], done = 0, word = 0;
    for (size_t i = 0; i < n; i++)
        sentences += i + 1 == n || r->ends[i % r->essay.n];
    kvd_ruler_positions(r, N_DEPTHS, h->n, depth);
    /* RULER writes two blanks between needles that follow each other without text between them. */
    for (size_t i = 0; i <= h->n; i++) {
        size_t until = sentences;
        if (i < h->n) {
            const double percent = (double)(long)(100.0 * (double)depth[i] / (N_DEPTHS - 1) + 0.5);
            until = (size_t)((double)sentences * (percent / 100));
        }
        for (bool first = true; done < until; first = false) {
            fprintf(f, "%s%s", first ? "" : " ", essay_word(r, word));
            done += word + 1 == n || r->ends[word % r->essay.n];
            word++;
        }
        if (i < h->n) {
            fputc(' ', f);
            put_hidden(f, r, h, i);
            fputc(' ', f);
        }
    }
}

static int put_lines(FILE *f, kvd_ruler *r, const hidden *h, size_t n, kvd_err *err)
{
    size_t *const at = malloc(n * sizeof *at), left = h->n;
    if (!at)
        return kvd_no_memory(err, "positions", n * sizeof *at);
    kvd_ruler_positions(r, n, h->n, at);
    for (size_t i = 0; i < n; i++) {
        char key[NEEDLE_WORD], value[NEEDLE_WORD];
        if (i)
            fputc('\n', f);
        /* RULER inserts needles from the end of the text, so its first needle is last in the
         * text. */
        if (left && at[h->n - left] == i) {
            put_hidden(f, r, h, --left);
            fputc('\n', f);
        }
        if (r->needles->haystack == KVD_RULER_NOISE) {
            fputs(kvd_ruler_noise, f);
        } else {
            draw_key(r, h, r->needles->keys, key);
            draw(r, r->needles->value, value);
            put_needle(f, r->needles, key, value);
        }
    }
    free(at);
    return 0;
}

static int put_prompt(FILE *f, kvd_ruler *r, const hidden *h, size_t n, const char *type,
                      const char *query, bool single, kvd_err *err)
{
    fprintf(f,
            "%s special magic %s %s hidden within the following text. Make sure to memorize it. I "
            "will quiz you about the %s afterwards.\n",
            single ? "A" : "Some", type, single ? "is" : "are", type);
    int status = 0;
    if (r->needles->haystack == KVD_RULER_ESSAY)
        put_essay(f, r, h, n);
    else
        status = put_lines(f, r, h, n, err);
    fprintf(f, "\nWhat %s the special magic %s for %s mentioned in the provided text?",
            single ? "is" : "are all", type, query);
    return status;
}

int kvd_ruler_needle_item(kvd_ruler *r, size_t n, kvd_ruler_text *t, kvd_err *err)
{
    const kvd_ruler_needles *const c = r->needles;
    const bool single = c->queries * c->values == 1;
    static const char *const singular[] = {"number", "uuid", "word"};
    const char *const type = single ? singular[c->value] : kind_words[c->value];
    char query[MOST_NEEDLES * NEEDLE_WORD] = "";
    size_t asked[MOST_NEEDLES], size;
    hidden h = {.n = c->keys * c->values};
    int status = 0;
    for (size_t k = 0; k < c->keys; k++) {
        draw_key(r, &h, k, h.key[k]);
        for (size_t v = 0; v < c->values; v++)
            draw(r, c->value, h.value[k * c->values + v]);
    }
    kvd_ruler_order(r, h.n, h.order);
    FILE *const f = open_memstream(&t->input, &size);
    if (!f)
        return kvd_no_memory(err, "a prompt", n);
    kvd_rng_choose(&r->rng, c->keys, c->queries, asked);
    for (size_t q = 0; q < c->queries; q++) {
        const size_t used = strlen(query);
        snprintf(query + used, sizeof query - used, "%s%s",
                 q == 0                ? ""
                 : q + 1 == c->queries ? ", and "
                                       : ", ",
                 h.key[asked[q]]);
        for (size_t v = 0; !status && v < c->values; v++)
            status = kvd_benchmark_push(&t->answer, &t->n_answers,
                                        h.value[asked[q] * c->values + v], err);
    }
    status = status || put_prompt(f, r, &h, n, type, query, single, err);
    if (fclose(f) || (!status && asprintf(&t->prefix,
                                          " The special magic %s for %s mentioned in the provided "
                                          "text %s",
                                          type, query, single ? "is" : "are") < 0)) {
        t->prefix = NULL;
        return kvd_no_memory(err, "a prompt", n);
    }
    return status ? -1 : 0;
}
