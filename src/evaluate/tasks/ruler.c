#include "evaluate/tasks/ruler.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/output.h"
#include "evaluate/tasks/benchmark_tables.h"
#include "evaluate/tasks/ruler_build.h"

/* Identifiers of random number streams. ORDER_STREAM is for random orders, TASK_STREAM + k for all
 * other random choices of RULER task k. */
enum { ORDER_STREAM = 0x52554c00, TASK_STREAM };
/* EXAMPLE_TOKENS: largest length of the solved example in task "vt" (variable tracking). ATTEMPTS:
 * number of tries to make a question of the smallest size that fits into the prompt. */
enum { EXAMPLE_TOKENS = 500, ATTEMPTS = 20 };

const char *const kvd_ruler_words[KVD_N_RULER_TASKS + 1] = {"niah_single_1",
                                                            "niah_single_2",
                                                            "niah_single_3",
                                                            "niah_multikey_1",
                                                            "niah_multikey_2",
                                                            "niah_multikey_3",
                                                            "niah_multivalue",
                                                            "niah_multiquery",
                                                            "vt",
                                                            "cwe",
                                                            "fwe",
                                                            NULL};

/* parameters of RULER's needle tasks (find facts hidden in a long text), in the order of
 * kvd_ruler_words */
static const kvd_ruler_needles needle_tasks[] = {
    {KVD_RULER_NOISE, KVD_RULER_WORDS, KVD_RULER_NUMBERS, 1, 1, 1},
    {KVD_RULER_ESSAY, KVD_RULER_WORDS, KVD_RULER_NUMBERS, 1, 1, 1},
    {KVD_RULER_ESSAY, KVD_RULER_WORDS, KVD_RULER_UUIDS, 1, 1, 1},
    {KVD_RULER_ESSAY, KVD_RULER_WORDS, KVD_RULER_NUMBERS, 4, 1, 1},
    {KVD_RULER_NEEDLES, KVD_RULER_WORDS, KVD_RULER_NUMBERS, 1, 1, 1},
    {KVD_RULER_NEEDLES, KVD_RULER_UUIDS, KVD_RULER_UUIDS, 1, 1, 1},
    {KVD_RULER_ESSAY, KVD_RULER_WORDS, KVD_RULER_NUMBERS, 1, 4, 1},
    {KVD_RULER_ESSAY, KVD_RULER_WORDS, KVD_RULER_NUMBERS, 4, 1, 4},
};
enum { VT = sizeof needle_tasks / sizeof *needle_tasks, CWE, FWE };

bool kvd_ruler_needs_essay(size_t k)
{
    return k < VT && needle_tasks[k].haystack == KVD_RULER_ESSAY;
}

int kvd_ruler_split(const char *text, size_t n, kvd_ruler_list *list, kvd_err *err)
{
    size_t words = 0;
    *list = (kvd_ruler_list){0};
    if (!(list->text = malloc(n + 1)))
        return kvd_no_memory(err, "a text", n);
    for (size_t i = 0; i < n; i++) {
        const bool space = isspace((unsigned char)text[i]);
        words += !space && (i == 0 || !list->text[i - 1]);
        list->text[i] = (char)(space ? '\0' : text[i]);
    }
    list->text[n] = '\0';
    if (!(list->word = malloc((words + 1) * sizeof *list->word)))
        return kvd_no_memory(err, "the words of a text", words * sizeof *list->word);
    for (size_t i = 0; i < n; i++)
        if (list->text[i] && (i == 0 || !list->text[i - 1]))
            list->word[list->n++] = list->text + i;
    return 0;
}

static void list_release(kvd_ruler_list *list)
{
    free((void *)list->word);
    free(list->text);
    *list = (kvd_ruler_list){0};
}

static void text_release(kvd_ruler_text *t)
{
    for (size_t i = 0; i < t->n_answers; i++)
        free(t->answer[i]);
    free(t->answer);
    free(t->input);
    free(t->prefix);
    *t = (kvd_ruler_text){0};
}

void kvd_ruler_order(const kvd_ruler *r, size_t n, size_t *index)
{
    kvd_rng rng;
    kvd_rng_seed(&rng, r->s->seed, ORDER_STREAM);
    kvd_rng_choose(&rng, n, n, index);
}

static int ascending(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

void kvd_ruler_positions(kvd_ruler *r, size_t n, size_t k, size_t *index)
{
    kvd_rng_choose(&r->rng, n, k, index);
    qsort(index, k, sizeof *index, ascending);
}

/* Returns the number of bytes before the last line of `input`; the last line is the question. */
static size_t context_bytes(const char *input)
{
    const char *const line = strrchr(input, '\n');
    return line ? (size_t)(line + 1 - input) : 0;
}

static int count_tokens(const kvd_ruler *r, const kvd_ruler_text *t, size_t *n, kvd_err *err)
{
    kvd_ids ids = {0};
    char *whole;
    const size_t cut = r->s->context_apart ? context_bytes(t->input) : 0;
    if (asprintf(&whole, "%s%s", t->input, t->prefix) < 0)
        return kvd_no_memory(err, "a prompt", strlen(t->input));
    const int status =
        (cut && kvd_tokenizer_encode(r->tokenizer, whole, cut, r->s->special, &ids, err)) ||
        kvd_tokenizer_encode(r->tokenizer, whole + cut, strlen(whole + cut), r->s->special && !cut,
                             &ids, err);
    *n = ids.n;
    kvd_ids_release(&ids);
    free(whole);
    return status ? -1 : 0;
}

static int measure(kvd_ruler *r, kvd_ruler_build *build, size_t n, size_t *tokens, kvd_err *err)
{
    kvd_ruler_text t = {0};
    const int status = build(r, n, &t, err) || count_tokens(r, &t, tokens, err);
    text_release(&t);
    return status ? -1 : 0;
}

/* Settings of the search for the largest RULER item (test question) of at most `limit` tokens. The
 * size of an item is counted in words or lines. */
typedef struct {
    kvd_ruler_build *build;
    size_t limit;
    /* size of a trial prompt in words or lines; its token count gives the tokens per word or
     * line */
    size_t sample;
    /* number of words or lines in the smallest item to try; also the amount by which items are
     * shortened */
    size_t step;
    size_t least;
    /* number of tokens of the solved example in each prompt of task "vt" (variable tracking); 0 in
     * other tasks */
    size_t beside;
    size_t slack; /* search limit as a multiple of the estimated size */
} fit;

/* Finds by bisection, as RULER does, the largest number of words or lines with which an item fits
 * into f->limit tokens. If no item fits, *size is f->step, the smallest size tried. */
static int search(kvd_ruler *r, const fit *f, size_t *size, kvd_err *err)
{
    size_t tokens = 0;
    if (measure(r, f->build, f->sample, &tokens, err))
        return -1;
    const double pieces =
        (double)(f->limit + r->new_tokens) * (double)f->sample / (double)(tokens - f->beside);
    size_t low = f->step, high = (size_t)(pieces * (double)f->slack);
    *size = f->step;
    high = high > 2 * f->step ? high : 2 * f->step;
    while (low <= high) {
        const size_t middle = (low + high) / 2;
        if (measure(r, f->build, middle, &tokens, err))
            return -1;
        if (tokens <= f->limit) {
            *size = middle;
            low = middle + 1;
        } else {
            high = middle - 1;
        }
    }
    return 0;
}

/* Finds the size of items of task "fwe" (frequent words): adds f->step words at a time until an
 * item has f->limit tokens, then removes the last f->step words. */
static int search_upwards(kvd_ruler *r, const fit *f, size_t *size, kvd_err *err)
{
    size_t tokens = 0;
    *size = f->sample;
    if (measure(r, f->build, *size, &tokens, err))
        return -1;
    while (tokens < f->limit) {
        *size += f->step;
        if (measure(r, f->build, *size, &tokens, err))
            return -1;
    }
    if (*size >= f->step + f->least)
        *size -= f->step;
    return 0;
}

/* Builds a test prompt of at most f->limit tokens from at most `size` words or lines. Fails if
 * prompts of the smallest size stay too long. */
static int build_fitting(kvd_ruler *r, const fit *f, size_t size, kvd_ruler_text *t, kvd_err *err)
{
    size_t tokens = 0;
    if (f->build == kvd_ruler_fwe_item && !kvd_ruler_fwe_is_clear(r, size))
        return kvd_fail(err,
                        "a text of %zu words does not tell the third most frequent word from the "
                        "fourth: give more tokens with --seq-len",
                        size);
    for (int attempt = 0; attempt < ATTEMPTS;) {
        *t = (kvd_ruler_text){0};
        if (f->build(r, size, t, err) || count_tokens(r, t, &tokens, err)) {
            text_release(t);
            return -1;
        }
        if (tokens <= f->limit)
            return 0;
        text_release(t);
        if (size >= f->step + f->least)
            size -= f->step;
        else
            attempt++;
    }
    if (f->build == kvd_ruler_vt_example)
        return kvd_fail(err,
                        "the shortest has %zu tokens, and RULER takes at most %d: the model's "
                        "tokenizer has too few tokens for this task, take another",
                        tokens, EXAMPLE_TOKENS);
    return kvd_fail(err,
                    "the shortest prompt has %zu tokens, and --seq-len leaves %zu beside the "
                    "answer's %zu",
                    tokens, f->limit, r->new_tokens);
}

static int fit_needles(kvd_ruler *r, fit *f, kvd_err *err)
{
    const bool essay = r->needles->haystack == KVD_RULER_ESSAY;
    const size_t few = r->s->length < 4096 ? 5 : 25;
    size_t tokens = 0;
    *f = (fit){.build = kvd_ruler_needle_item,
               .limit = f->limit,
               .step = essay ? 500 : few,
               .least = essay ? 1 : r->needles->keys * r->needles->values,
               .slack = 3};
    /* The essay in a prompt has a multiple of 500 words or, if 500 words are too long, of 25
     * words. */
    if (essay && measure(r, f->build, f->step, &tokens, err))
        return -1;
    if (tokens > f->limit)
        f->step = 25;
    f->sample = f->step;
    return 0;
}

/* Builds the solved example of task "vt" (variable tracking). Then prepares *f for finding the
 * longest test prompt that fits into f->limit tokens. */
static int fit_chains(kvd_ruler *r, fit *f, kvd_err *err)
{
    const size_t limit = f->limit, new_tokens = r->new_tokens;
    size_t size;
    kvd_ruler_text t = {0};
    *f = (fit){.build = kvd_ruler_vt_example,
               .limit = EXAMPLE_TOKENS,
               .sample = KVD_RULER_CHAIN,
               .step = KVD_RULER_CHAIN,
               .least = KVD_RULER_CHAIN,
               .slack = 3};
    r->new_tokens = 0;
    const int status = search(r, f, &size, err) || build_fitting(r, f, size, &t, err) ||
                       count_tokens(r, &t, &f->beside, err);
    r->new_tokens = new_tokens;
    text_release(&t);
    if (status)
        return kvd_in(err, "the solved example");
    f->build = kvd_ruler_vt_item;
    f->limit = limit;
    f->sample = f->step = r->s->length < 4096 ? 5 : 10;
    return 0;
}

static int fit_task(kvd_ruler *r, size_t k, fit *f, size_t *size, kvd_err *err)
{
    if (r->s->length <= r->new_tokens)
        return kvd_fail(err, "--seq-len %zu leaves no token beside the answer's %zu", r->s->length,
                        r->new_tokens);
    *f = (fit){.limit = r->s->length - r->new_tokens};
    if (k < VT) {
        r->needles = &needle_tasks[k];
        return fit_needles(r, f, err) || search(r, f, size, err);
    }
    if (k == VT)
        return fit_chains(r, f, err) || search(r, f, size, err);
    if (k == CWE) {
        *f = (fit){kvd_ruler_cwe_item, f->limit, 4096, 10, KVD_RULER_COMMON, 0, 2};
        return search(r, f, size, err);
    }
    const size_t step = f->limit / 32 ? f->limit / 32 : 1;
    *f = (fit){kvd_ruler_fwe_item, f->limit, f->limit / 6, step, 1, 0, 0};
    return search_upwards(r, f, size, err);
}

static int add_item(kvd_benchmark *b, const char *task, size_t number, kvd_ruler_text *t,
                    const kvd_benchmark_settings *changes, kvd_err *err)
{
    const kvd_benchmark_row *const row = kvd_ruler_row(task);
    const size_t n = context_bytes(t->input);
    kvd_benchmark_item *const item = kvd_benchmark_add(b, err);
    kvd_benchmark_turn *const turn = item ? kvd_benchmark_add_turn(b, err) : NULL;
    if (!turn)
        return -1;
    item->metric = row->metric;
    item->max_new_tokens = row->max_new_tokens;
    turn->answer_prefix = t->prefix;
    turn->reference = t->answer;
    turn->n_references = t->n_answers;
    t->prefix = NULL;
    t->answer = NULL;
    t->n_answers = 0;
    item->task = strdup(task);
    item->stop = strdup("");
    item->context = strndup(t->input, n);
    turn->question = strdup(t->input + n);
    if (asprintf(&item->id, "%zu", number) < 0)
        item->id = NULL;
    if (!item->task || !item->stop || !item->context || !turn->question || !item->id)
        return kvd_no_memory(err, "an item", strlen(t->input));
    return kvd_benchmark_change(item, changes, err);
}

static int make_task(kvd_ruler *r, size_t k, kvd_benchmark *b,
                     const kvd_benchmark_settings *changes, kvd_err *err)
{
    const char *const task = kvd_ruler_words[k];
    const size_t items = r->s->items ? r->s->items : KVD_RULER_ITEMS;
    fit f;
    size_t size;
    kvd_rng_seed(&r->rng, r->s->seed, TASK_STREAM + k);
    r->new_tokens =
        changes->max_new_tokens ? changes->max_new_tokens : kvd_ruler_row(task)->max_new_tokens;
    if (fit_task(r, k, &f, &size, err))
        return -1;
    for (size_t i = 0; i < items; i++) {
        kvd_ruler_text t = {0};
        const int status =
            build_fitting(r, &f, size, &t, err) || add_item(b, task, i, &t, changes, err);
        text_release(&t);
        if (status)
            return -1;
    }
    return 0;
}

int kvd_ruler_make(kvd_benchmark *b, const kvd_ruler_settings *s,
                   const kvd_benchmark_settings *changes, const kvd_tokenizer *tokenizer,
                   kvd_err *err)
{
    kvd_ruler r = {.s = s, .tokenizer = tokenizer};
    int status =
        kvd_ruler_split(kvd_ruler_adjectives, strlen(kvd_ruler_adjectives), &r.adjectives, err) ||
        kvd_ruler_split(kvd_ruler_nouns, strlen(kvd_ruler_nouns), &r.nouns, err) ||
        kvd_ruler_split(kvd_ruler_verbs, strlen(kvd_ruler_verbs), &r.verbs, err);
    for (size_t k = 0; !status && k < KVD_N_RULER_TASKS; k++) {
        if (!s->task[k])
            continue;
        if (kvd_ruler_needs_essay(k) && !s->essay)
            status = kvd_fail(err, "the needles are hidden in a text: give it with --essay");
        else
            status = (kvd_ruler_needs_essay(k) && !r.ends && kvd_ruler_open_essay(&r, err)) ||
                     make_task(&r, k, b, changes, err);
        if (status)
            kvd_in(err, "--ruler %s", kvd_ruler_words[k]);
    }
    list_release(&r.adjectives);
    list_release(&r.nouns);
    list_release(&r.verbs);
    list_release(&r.essay);
    free(r.ends);
    return status ? -1 : 0;
}

static int tokens_of(const kvd_tokenizer *tokenizer, const char *text, size_t n, bool special,
                     size_t *tokens, kvd_err *err)
{
    kvd_ids ids = {0};
    const int status = kvd_tokenizer_encode(tokenizer, text, n, special, &ids, err);
    *tokens = ids.n;
    kvd_ids_release(&ids);
    return status;
}

/* Writes an item as one line of JSON with the field names of RULER's files. */
static int put_item(FILE *f, const kvd_benchmark_item *x, const kvd_tokenizer *tokenizer,
                    bool special, kvd_err *err)
{
    const kvd_benchmark_turn *const turn = &x->turn[0];
    size_t tokens, before = 0;
    char *whole;
    if (asprintf(&whole, "%s%s%s", x->context, turn->question, turn->answer_prefix) < 0)
        return kvd_no_memory(err, "a prompt", strlen(x->context));
    const char *const answer = strstr(whole, turn->reference[0]);
    int status =
        tokens_of(tokenizer, whole, strlen(whole), special, &tokens, err) ||
        (answer && tokens_of(tokenizer, whole, (size_t)(answer - whole), false, &before, err));
    whole[strlen(whole) - strlen(turn->answer_prefix)] = '\0';
    const json_int_t length = (json_int_t)(tokens + x->max_new_tokens);
    json_t *const outputs = json_array();
    for (size_t i = 0; i < turn->n_references; i++)
        json_array_append_new(outputs, json_string(turn->reference[i]));
    json_t *const item =
        json_pack("{s:I, s:s, s:O, s:I, s:I, s:s, s:s}", "index", (json_int_t)atoll(x->id), "input",
                  whole, "outputs", outputs, "length", length, "length_w_model_temp", length,
                  "answer_prefix", turn->answer_prefix, "task", x->task);
    if (!strncmp(x->task, "niah", 4) && item)
        json_object_set_new(item, "token_position_answer", json_integer((json_int_t)before));
    if (!status && (!item || json_dumpf(item, f, JSON_ENSURE_ASCII) || fputc('\n', f) == EOF))
        status = kvd_fail(err, "task %s, item %s: cannot write it as JSON", x->task, x->id);
    json_decref(outputs);
    json_decref(item);
    free(whole);
    return status ? -1 : 0;
}

int kvd_ruler_write(const kvd_benchmark *b, const char *path, const kvd_tokenizer *tokenizer,
                    bool special, kvd_err *err)
{
    char *text = NULL;
    size_t size;
    FILE *const f = open_memstream(&text, &size);
    int status = f ? 0 : kvd_no_memory(err, "items", b->n);
    for (size_t i = 0; !status && i < b->n; i++)
        status = put_item(f, &b->item[i], tokenizer, special, err);
    if (f && fclose(f) && !status)
        status = kvd_no_memory(err, "items", b->n);
    status = status || kvd_output_text(path, text, size, err);
    free(text);
    return status ? -1 : 0;
}
