/* Builds RULER's items for variable tracking, common words and frequent words. */
#include <stdlib.h>
#include <string.h>

#include "evaluate/tasks/ruler_build.h"

enum { NAME = 8, EXAMPLE_LETTERS = 3, LETTERS = 5 };

/* chain of assignments VAR A = 12345, VAR B = VAR A, ... in lines that are hidden between noise
 * lines */
typedef struct {
    char name[KVD_RULER_CHAIN][NAME];
    int value;
    /* index of the filler line that follows each variable assignment in the prompt */
    size_t at[KVD_RULER_CHAIN];
} chain;

static void draw_chain(kvd_ruler *r, size_t letters, chain *c)
{
    for (size_t i = 0; i < KVD_RULER_CHAIN;) {
        bool taken = false;
        for (size_t k = 0; k < letters; k++)
            c->name[i][k] = (char)('A' + kvd_rng_below(&r->rng, 26));
        c->name[i][letters] = '\0';
        for (size_t k = 0; k < i; k++)
            taken = taken || !strcmp(c->name[k], c->name[i]);
        i += !taken && strcmp(c->name[i], "VAR") != 0;
    }
    c->value = 10000 + (int)kvd_rng_below(&r->rng, 89999);
}

static int draw_positions(kvd_ruler *r, size_t n, size_t at[KVD_RULER_CHAIN], kvd_err *err)
{
    size_t *const index = malloc(n * sizeof *index);
    if (!index)
        return kvd_no_memory(err, "positions", n * sizeof *index);
    kvd_ruler_positions(r, n, KVD_RULER_CHAIN, index);
    memcpy(at, index, KVD_RULER_CHAIN * sizeof *at);
    free(index);
    return 0;
}

static void put_chain(FILE *f, const chain *c, size_t n)
{
    fputs("Memorize and track the chain(s) of variable assignment hidden in the following "
          "text.\n\n",
          f);
    for (size_t i = 0, k = 0; i < n; i++) {
        if (k < KVD_RULER_CHAIN && c->at[k] == i) {
            if (k == 0)
                fprintf(f, "VAR %s = %d\n", c->name[0], c->value);
            /* RULER's own prompts have a blank before this line feed, too. */
            else
                fprintf(f, "VAR %s = VAR %s \n", c->name[k], c->name[k - 1]);
            k++;
        }
        fprintf(f, "%s\n", kvd_ruler_noise);
    }
    fprintf(f, "Question: Find all variables that are assigned the value %d in the text above.",
            c->value);
}

static int chain_prefix(const chain *c, char **prefix, kvd_err *err)
{
    if (asprintf(prefix,
                 " Answer: According to the chain(s) of variable assignment in the text above, %d "
                 "variables are assigned the value %d, they are: ",
                 KVD_RULER_CHAIN, c->value) >= 0)
        return 0;
    *prefix = NULL;
    return kvd_no_memory(err, "a prompt", 200);
}

int kvd_ruler_vt_example(kvd_ruler *r, size_t n, kvd_ruler_text *t, kvd_err *err)
{
    chain c;
    size_t size;
    draw_chain(r, EXAMPLE_LETTERS, &c);
    if (draw_positions(r, n, c.at, err))
        return -1;
    r->example_lines = n;
    memcpy(r->example_at, c.at, sizeof c.at);
    FILE *const f = open_memstream(&t->input, &size);
    if (f)
        put_chain(f, &c, n);
    return !f || fclose(f) ? kvd_no_memory(err, "a prompt", n) : chain_prefix(&c, &t->prefix, err);
}

int kvd_ruler_vt_item(kvd_ruler *r, size_t n, kvd_ruler_text *t, kvd_err *err)
{
    chain example, c;
    size_t size;
    char *solved = NULL;
    draw_chain(r, EXAMPLE_LETTERS, &example);
    memcpy(example.at, r->example_at, sizeof example.at);
    draw_chain(r, LETTERS, &c);
    if (draw_positions(r, n, c.at, err) || chain_prefix(&example, &solved, err))
        return -1;
    FILE *const f = open_memstream(&t->input, &size);
    if (f) {
        put_chain(f, &example, r->example_lines);
        fputs(solved, f);
        for (size_t i = 0; i < KVD_RULER_CHAIN; i++)
            fprintf(f, " %s", example.name[i]);
        fputs("\n\n", f);
        put_chain(f, &c, n);
    }
    free(solved);
    if (!f || fclose(f))
        return kvd_no_memory(err, "a prompt", n);
    for (size_t i = 0; i < KVD_RULER_CHAIN; i++)
        if (kvd_benchmark_push(&t->answer, &t->n_answers, c.name[i], err))
            return -1;
    return chain_prefix(&c, &t->prefix, err);
}

/* Writes the k-th of n different words: an adjective, noun or verb or, if n is large, a pair of
 * nouns. */
static void put_word(FILE *f, const kvd_ruler *r, size_t n, size_t k)
{
    const size_t a = r->adjectives.n, b = a + r->nouns.n, nouns = r->nouns.n;
    if (n > b + r->verbs.n) {
        const size_t first = k / (nouns - 1), other = k % (nouns - 1);
        fprintf(f, "%s-%s", r->nouns.word[first], r->nouns.word[other + (other >= first)]);
    } else {
        fputs(k < a   ? r->adjectives.word[k]
              : k < b ? r->nouns.word[k - a]
                      : r->verbs.word[k - b],
              f);
    }
}

static size_t words_for(const kvd_ruler *r, size_t n)
{
    const size_t single = r->adjectives.n + r->nouns.n + r->verbs.n;
    return n <= single ? single : r->nouns.n * (r->nouns.n - 1);
}

static const char cwe_prefix[] =
    " Answer: The top 10 words that appear most often in the list are:";

/* Writes n different words in random order: KVD_RULER_COMMON words `often` times each, other words
 * `seldom` times each. The caller frees *words, the indices of the n words in the vocabulary. */
static int put_list(FILE *f, kvd_ruler *r, size_t n, size_t often, size_t seldom, size_t **words,
                    kvd_err *err)
{
    const size_t all = words_for(r, n), common = KVD_RULER_COMMON * often,
                 lines = common + (n - KVD_RULER_COMMON) * seldom;
    size_t *const order = malloc(lines * sizeof *order);
    *words = n <= all ? malloc(all * sizeof **words) : NULL;
    if (!order || !*words) {
        free(order);
        return n <= all
                   ? kvd_no_memory(err, "a list of words", (lines + all) * sizeof *order)
                   : kvd_fail(err, "cwe has %zu distinct words, and this length needs %zu", all, n);
    }
    kvd_rng_choose(&r->rng, all, n, *words);
    kvd_ruler_order(r, lines, order);
    fputs("Below is a numbered list of words. In these words, some appear more often than others. "
          "Memorize the ones that appear most often.\n",
          f);
    for (size_t i = 0; i < lines; i++) {
        const size_t k = order[i],
                     word = k < common ? k % KVD_RULER_COMMON
                                       : KVD_RULER_COMMON + (k - common) % (n - KVD_RULER_COMMON);
        fprintf(f, "%s%zu. ", i ? " " : "", i + 1);
        put_word(f, r, n, (*words)[word]);
    }
    fputs("\nQuestion: What are the 10 most common words in the above list?", f);
    free(order);
    return 0;
}

static int push_common(const kvd_ruler *r, size_t n, const size_t *words, kvd_ruler_text *t,
                       kvd_err *err)
{
    for (size_t i = 0; i < KVD_RULER_COMMON; i++) {
        char *word = NULL;
        size_t size;
        FILE *const f = open_memstream(&word, &size);
        if (f)
            put_word(f, r, n, words[i]);
        int status = !f || fclose(f) ? kvd_no_memory(err, "a word", 1) : 0;
        status = status || kvd_benchmark_push(&t->answer, &t->n_answers, word, err);
        free(word);
        if (status)
            return -1;
    }
    return 0;
}

int kvd_ruler_cwe_item(kvd_ruler *r, size_t n, kvd_ruler_text *t, kvd_err *err)
{
    /* true for prompts of less than 4096 tokens, in which RULER repeats words less often */
    const bool small = r->s->length < 4096;
    const size_t example = small ? 20 : 40;
    size_t *words = NULL, size;
    FILE *const f = open_memstream(&t->input, &size);
    if (!f)
        return kvd_no_memory(err, "a prompt", n);
    int status = put_list(f, r, example, small ? 3 : 10, small ? 1 : 3, &words, err);
    if (!status) {
        fputs(cwe_prefix, f);
        for (size_t i = 0; i < KVD_RULER_COMMON; i++) {
            fprintf(f, " %zu. ", i + 1);
            put_word(f, r, example, words[i]);
        }
        fputc('\n', f);
        free(words);
        words = NULL;
        status = put_list(f, r, n, small ? 6 : 30, small ? 1 : 3, &words, err) ||
                 push_common(r, n, words, t, err);
    }
    free(words);
    if (fclose(f) || (!status && !(t->prefix = strdup(cwe_prefix))))
        return kvd_no_memory(err, "a prompt", n);
    return status ? -1 : 0;
}

enum { CODED = 6, CODED_ANSWERS = 3 };

typedef char coded[CODED + 1];

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void draw_vocabulary(kvd_ruler *r, size_t n, coded *word)
{
    for (size_t have = 0; have < n;) {
        for (; have < n; have++) {
            for (size_t k = 0; k < CODED; k++)
                word[have][k] = (char)('a' + kvd_rng_below(&r->rng, 26));
            word[have][CODED] = '\0';
        }
        qsort(word, n, sizeof *word, by_text);
        have = 0;
        for (size_t i = 0; i < n; i++)
            if (!i || strcmp(word[have - 1], word[i]))
                memmove(word[have++], word[i], sizeof *word);
    }
}

/* Returns the number of different words in an item of task "fwe" (frequent words), including the
 * filler "...". */
static size_t fwe_vocabulary(const kvd_ruler *r)
{
    const size_t n = (r->s->length - r->new_tokens) / 50;
    return n > CODED_ANSWERS ? n : 1 + CODED_ANSWERS;
}

/* Returns how often the word of frequency rank k occurs among n words, by Zipf's law with exponent
 * 2. */
static size_t zipf(size_t n, size_t k)
{
    static const double zeta_2 = 1.6449340668482264;
    return (size_t)((double)n / ((double)k * (double)k) / zeta_2);
}

/* Writes a text of made-up words in shuffled order, in which word k occurs zipf(n, k) times. Word 1
 * is three dots. */
static int put_coded(FILE *f, const kvd_ruler *r, size_t n, size_t vocabulary, coded *word,
                     const size_t *rank, kvd_err *err)
{
    size_t count = 0;
    for (size_t k = 1; k <= vocabulary; k++)
        count += zipf(n, k);
    size_t *const order = malloc((2 * count + 1) * sizeof *order), *const text = order + count;
    if (!order)
        return kvd_no_memory(err, "a coded text", 2 * count * sizeof *order);
    for (size_t k = 1, i = 0; k <= vocabulary; k++)
        for (size_t left = zipf(n, k); left; left--)
            text[i++] = k - 1;
    kvd_ruler_order(r, count, order);
    for (size_t i = 0; i < count; i++)
        fprintf(f, "%s%s", i ? " " : "", text[order[i]] ? word[rank[text[order[i]]]] : "...");
    free(order);
    return 0;
}

bool kvd_ruler_fwe_is_clear(const kvd_ruler *r, size_t n)
{
    const size_t last = zipf(n, 1 + CODED_ANSWERS);
    return last && (fwe_vocabulary(r) < 2 + CODED_ANSWERS || last > zipf(n, 2 + CODED_ANSWERS));
}

int kvd_ruler_fwe_item(kvd_ruler *r, size_t n, kvd_ruler_text *t, kvd_err *err)
{
    const size_t vocabulary = fwe_vocabulary(r);
    size_t size;
    coded *const word = malloc(vocabulary * sizeof *word);
    size_t *const rank = malloc(vocabulary * sizeof *rank);
    FILE *const f = word && rank ? open_memstream(&t->input, &size) : NULL;
    int status = f ? 0 : kvd_no_memory(err, "a coded text", vocabulary * 16);
    if (!status) {
        draw_vocabulary(r, vocabulary, word);
        kvd_ruler_order(r, vocabulary, rank);
        fputs("Read the following coded text and track the frequency of each coded word. Find the "
              "three most frequently appeared coded words. ",
              f);
        status = put_coded(f, r, n, vocabulary, word, rank, err);
        fputs("\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are "
              "the three most frequently appeared words in the above coded text?",
              f);
    }
    for (size_t i = 1; !status && i <= CODED_ANSWERS; i++)
        status = kvd_benchmark_push(&t->answer, &t->n_answers, word[rank[i]], err);
    if (f && fclose(f) && !status)
        status = kvd_no_memory(err, "a coded text", n);
    free(word);
    free(rank);
    if (!status &&
        !(t->prefix = strdup(" Answer: According to the coded text above, the three most "
                             "frequently appeared words are:")))
        status = kvd_no_memory(err, "a prompt", n);
    return status ? -1 : 0;
}
