#include "evaluate/tasks/task_items.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "model/text/documents.h"

void kvd_task_items_release(kvd_task_items *items)
{
    for (size_t i = 0; items->reference && i < items->n_items; i++)
        free(items->reference[i]);
    for (size_t k = 0; k < items->n_classes; k++)
        free(items->class_name[k]);
    free(items->cluster);
    kvd_continuations_release(&items->run);
    free(items->reference);
    free(items->reference_len);
    free(items->depth);
    free(items->label);
    *items = (kvd_task_items){0};
}

/* Moves the sequences of *b into *items, per_item sequences to an item. Each item is a cluster
 * (drawn as a whole) for bootstrap intervals. */
static int take_sequences(kvd_sequences *b, size_t per_item, kvd_task_items *items, kvd_err *err)
{
    items->run = kvd_sequences_take(b);
    items->n_items = items->run.n_sequences / per_item;
    if (!(items->cluster = malloc((items->n_items + 1) * sizeof *items->cluster)))
        return kvd_no_memory(err, "items", items->n_items * sizeof *items->cluster);
    for (size_t i = 0; i < items->n_items; i++)
        items->cluster[i] = i;
    items->n_clusters = items->n_items;
    return 0;
}

static int add_reference(kvd_task_items *items, const kvd_tokenizer *tok, const uint32_t *id,
                         size_t n, kvd_err *err)
{
    const size_t i = items->n_items++;
    items->reference[i] = kvd_tokenizer_decode(tok, id, n, true, &items->reference_len[i], err);
    return items->reference[i] ? 0 : -1;
}

static int reserve_references(kvd_task_items *items, size_t n, kvd_err *err)
{
    items->reference = calloc(n + 1, sizeof *items->reference);
    items->reference_len = calloc(n + 1, sizeof *items->reference_len);
    return items->reference && items->reference_len
               ? 0
               : kvd_no_memory(err, "references", (n + 1) * 2 * sizeof *items->reference);
}

int kvd_task_items_corpus(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                          size_t prompt, size_t n_new, size_t most, kvd_err *err)
{
    const size_t all = kvd_corpus_n_sequences(corpus);
    kvd_sequences b = {0};
    uint32_t *id = NULL;
    size_t longest = 0;
    int status = 0;
    *items = (kvd_task_items){0};
    for (size_t s = 0; s < all; s++)
        longest = kvd_corpus_length(corpus, s) > longest ? kvd_corpus_length(corpus, s) : longest;
    if (!(id = malloc((longest + 1) * sizeof *id)))
        return kvd_no_memory(err, "token ids", longest * sizeof *id);
    if (tok)
        status = reserve_references(items, all, err);
    for (size_t s = 0; !status && s < all && (!most || b.n < most); s++) {
        if (kvd_corpus_length(corpus, s) < prompt + n_new)
            continue;
        status = kvd_corpus_read(corpus, s, 1, id, err) ||
                 kvd_ids_append(&b.prompt, id, prompt, err) || kvd_sequences_end(&b, n_new, err) ||
                 (tok && add_reference(items, tok, id + prompt, n_new, err));
    }
    if (!status && !b.n)
        status =
            kvd_fail(err,
                     "no sequence has %zu tokens of a prompt and %zu after it: the longest has %zu "
                     "(--prompt, --generate, --seq-len)",
                     prompt, n_new, longest);
    if (!status)
        status = take_sequences(&b, 1, items, err);
    free(id);
    kvd_sequences_release(&b);
    return status ? -1 : 0;
}

typedef struct {
    char **text;
    size_t *len;
    size_t n, most;
} fields;

static void fields_release(fields *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->text[i]);
    free(f->text);
    free(f->len);
}

static int add_field(void *ctx, const char *text, size_t len, kvd_err *err)
{
    fields *const f = ctx;
    if (f->most && f->n == f->most)
        return 1;
    char **const texts = realloc(f->text, (f->n + 1) * sizeof *texts);
    if (texts)
        f->text = texts;
    size_t *const lengths = realloc(f->len, (f->n + 1) * sizeof *lengths);
    if (lengths)
        f->len = lengths;
    if (!texts || !lengths)
        return kvd_no_memory(err, "documents", (f->n + 1) * 2 * sizeof *lengths);
    if (!(f->text[f->n] = malloc(len + 1)))
        return kvd_no_memory(err, "a document", len);
    memcpy(f->text[f->n], text, len);
    f->text[f->n][len] = '\0';
    f->len[f->n++] = len;
    return 0;
}

static int read_fields(const kvd_task_documents *d, const char *field, fields *f, kvd_err *err)
{
    f->most = d->most;
    for (size_t i = 0; i < d->n_text; i++)
        if (kvd_documents_read(d->text[i], field, add_field, f, err) < 0)
            return -1;
    return 0;
}

static int read_both(const kvd_task_documents *d, const char *second, fields *a, fields *b,
                     kvd_err *err)
{
    for (size_t i = 0; i < d->n_text; i++)
        if (!kvd_documents_have_fields(d->text[i]))
            return kvd_documents_no_field(d->text[i], second, err);
    if (read_fields(d, d->field, a, err) || read_fields(d, second, b, err))
        return -1;
    if (a->n != b->n)
        return kvd_fail(err, "%zu documents and %zu of '%s'", a->n, b->n, second);
    return 0;
}

/* Tokenizes a document and keeps its first `room` tokens. Fails if fewer than `least` tokens are
 * left. */
static int encode_document(const kvd_task_documents *d, const kvd_tokenizer *tok, const char *text,
                           size_t len, size_t room, size_t least, kvd_ids *ids, kvd_err *err)
{
    if (kvd_tokenizer_encode(tok, text, len, !d->no_special, ids, err))
        return -1;
    if (ids->n > room)
        ids->n = room;
    if (ids->n < least)
        return kvd_fail(
            err,
            "a document of %zu tokens where a sequence of %zu has room for %zu, and %zu are wanted",
            ids->n, d->max_len, room, least);
    return 0;
}

static int encode_ask(const kvd_task_documents *d, const kvd_tokenizer *tok, kvd_ids *ask,
                      kvd_err *err)
{
    return d->ask ? kvd_tokenizer_encode(tok, d->ask, strlen(d->ask), false, ask, err) : 0;
}

int kvd_task_items_references(kvd_task_items *items, const kvd_task_documents *d,
                              const char *reference, const kvd_tokenizer *tok, size_t n_new,
                              kvd_err *err)
{
    fields text = {0}, second = {0};
    kvd_sequences b = {0};
    kvd_ids ask = {0};
    *items = (kvd_task_items){0};
    int status = n_new >= d->max_len
                     ? kvd_fail(err, "--generate %zu leaves no room for a prompt in %zu tokens",
                                n_new, d->max_len)
                     : 0;
    status =
        status || read_both(d, reference, &text, &second, err) || encode_ask(d, tok, &ask, err);
    const size_t taken = n_new + ask.n, room = d->max_len > taken ? d->max_len - taken : 0;
    for (size_t i = 0; !status && i < text.n; i++) {
        kvd_ids ids = {0};
        status = encode_document(d, tok, text.text[i], text.len[i], room, 1, &ids, err) ||
                 kvd_ids_append(&b.prompt, ids.id, ids.n, err) ||
                 kvd_ids_append(&b.prompt, ask.id, ask.n, err) || kvd_sequences_end(&b, n_new, err);
        kvd_ids_release(&ids);
    }
    if (!status) {
        items->reference = second.text;
        items->reference_len = second.len;
        second = (fields){0};
        status = take_sequences(&b, 1, items, err);
    }
    fields_release(&text);
    fields_release(&second);
    kvd_ids_release(&ask);
    kvd_sequences_release(&b);
    return status ? -1 : 0;
}

static int add_class(kvd_task_items *items, const char *name, kvd_err *err)
{
    if (items->n_classes == KVD_TASK_CLASSES)
        return kvd_fail(err, "more than %d classes", (int)KVD_TASK_CLASSES);
    char *const copy = strdup(name);
    if (!copy)
        return kvd_no_memory(err, "a class", strlen(name));
    items->class_name[items->n_classes++] = copy;
    return 0;
}

static size_t class_of(const kvd_task_items *items, const char *name)
{
    size_t k = 0;
    while (k < items->n_classes && strcmp(items->class_name[k], name))
        k++;
    return k;
}

static int list_classes(kvd_task_items *items, const char *classes, kvd_err *err)
{
    char *const copy = strdup(classes), *rest = copy, *name;
    int status = copy ? 0 : kvd_no_memory(err, "classes", strlen(classes));
    while (!status && (name = strsep(&rest, ",")))
        status = !*name ? kvd_fail(err, "--classes '%s' has an empty name in it", classes)
                 : class_of(items, name) < items->n_classes
                     ? kvd_fail(err, "--classes '%s' names '%s' twice", classes, name)
                     : add_class(items, name, err);
    free(copy);
    return status;
}

static int label_documents(kvd_task_items *items, const fields *label, const char *classes,
                           kvd_err *err)
{
    if (classes && list_classes(items, classes, err))
        return -1;
    if (!(items->label = malloc((label->n + 1) * sizeof *items->label)))
        return kvd_no_memory(err, "labels", label->n * sizeof *items->label);
    for (size_t i = 0; i < label->n; i++) {
        size_t k = class_of(items, label->text[i]);
        if (k == items->n_classes && classes)
            return kvd_fail(err, "document %zu is labelled '%.40s', which is none of --classes %s",
                            i + 1, label->text[i], classes);
        if (k == items->n_classes && add_class(items, label->text[i], err))
            return -1;
        items->label[i] = k;
    }
    return items->n_classes > 1
               ? 0
               : kvd_fail(err, "a choice between %zu classes is none", items->n_classes);
}

static int encode_class(const kvd_tokenizer *tok, const char *name, kvd_ids *ids, kvd_err *err)
{
    char *text;
    if (asprintf(&text, " %s", name) < 0)
        return kvd_no_memory(err, "a class", strlen(name) + 2);
    const int status = kvd_tokenizer_encode(tok, text, strlen(text), false, ids, err);
    free(text);
    return status || ids->n ? status : kvd_fail(err, "class '%s' has no tokens", name);
}

static int push_document(kvd_sequences *b, const kvd_task_documents *d, const kvd_tokenizer *tok,
                         const char *text, size_t len, size_t room, const kvd_ids *ask,
                         const kvd_ids *class_ids, size_t n_classes, kvd_err *err)
{
    kvd_ids ids = {0};
    int status = encode_document(d, tok, text, len, room, 2, &ids, err);
    const size_t n = status ? 0 : ids.n - (ask->n ? 0 : 1);
    const kvd_ids last = {.id = ids.id + n, .n = 1}, *const question = ask->n ? ask : &last;
    for (size_t k = 0; !status && k < n_classes; k++)
        status = kvd_ids_append(&b->prompt, ids.id, n, err) ||
                 kvd_ids_append(&b->forced, question->id, question->n, err) ||
                 kvd_ids_append(&b->forced, class_ids[k].id, class_ids[k].n, err) ||
                 kvd_sequences_end(b, 0, err);
    kvd_ids_release(&ids);
    return status;
}

int kvd_task_items_classes(kvd_task_items *items, const kvd_task_documents *d, const char *label,
                           const char *classes, const kvd_tokenizer *tok, kvd_err *err)
{
    fields text = {0}, labels = {0};
    kvd_sequences b = {0};
    kvd_ids ask = {0}, class_ids[KVD_TASK_CLASSES] = {{0}};
    size_t longest = 0;
    *items = (kvd_task_items){0};
    int status = read_both(d, label, &text, &labels, err) ||
                 label_documents(items, &labels, classes, err) || encode_ask(d, tok, &ask, err);
    for (size_t k = 0; !status && k < items->n_classes; k++) {
        status = encode_class(tok, items->class_name[k], &class_ids[k], err);
        longest = class_ids[k].n > longest ? class_ids[k].n : longest;
    }
    const size_t taken = longest + ask.n, room = d->max_len > taken ? d->max_len - taken : 0;
    for (size_t i = 0; !status && i < text.n; i++)
        status = push_document(&b, d, tok, text.text[i], text.len[i], room, &ask, class_ids,
                               items->n_classes, err);
    items->lead = ask.n ? ask.n : 1;
    if (!status)
        status = take_sequences(&b, items->n_classes, items, err);
    for (size_t k = 0; k < KVD_TASK_CLASSES; k++)
        kvd_ids_release(&class_ids[k]);
    fields_release(&text);
    fields_release(&labels);
    kvd_ids_release(&ask);
    kvd_sequences_release(&b);
    return status ? -1 : 0;
}

typedef struct {
    kvd_ids sentence, question, answer;
} needle;

static void needle_release(needle *x)
{
    kvd_ids_release(&x->sentence);
    kvd_ids_release(&x->question);
    kvd_ids_release(&x->answer);
}

static int make_needle(const kvd_tokenizer *tok, unsigned number, needle *x, kvd_err *err)
{
    char sentence[120], answer[16];
    static const char question[] = " What is the pass key? The pass key is";
    snprintf(sentence, sizeof sentence, " The pass key is %u. Remember it. %u is the pass key.",
             number, number);
    snprintf(answer, sizeof answer, " %u", number);
    *x = (needle){0};
    return kvd_tokenizer_encode(tok, sentence, strlen(sentence), false, &x->sentence, err) ||
           kvd_tokenizer_encode(tok, question, strlen(question), false, &x->question, err) ||
           kvd_tokenizer_encode(tok, answer, strlen(answer), false, &x->answer, err);
}

/* Appends a sequence: text tokens id [n] with a needle (a hidden sentence) inserted at `depth`,
 * from 0 (start) to 1 (end). Cuts the text so that the sequence has at most max_len tokens. */
static int push_needle(kvd_sequences *b, const uint32_t *id, size_t n, const needle *x,
                       double depth, size_t max_len, kvd_err *err)
{
    const size_t taken = x->sentence.n + x->question.n + x->answer.n;
    if (taken >= max_len)
        return kvd_fail(err, "a needle of %zu tokens does not fit in --seq-len %zu", taken,
                        max_len);
    const size_t hay = n < max_len - taken ? n : max_len - taken,
                 at = (size_t)lround(depth * (double)hay);
    return kvd_ids_append(&b->prompt, id, at, err) ||
           kvd_ids_append(&b->prompt, x->sentence.id, x->sentence.n, err) ||
           kvd_ids_append(&b->prompt, id + at, hay - at, err) ||
           kvd_ids_append(&b->forced, x->question.id, x->question.n, err) ||
           kvd_ids_append(&b->forced, x->answer.id, x->answer.n, err) ||
           kvd_sequences_end(b, 0, err);
}

int kvd_task_items_needles(kvd_task_items *items, kvd_corpus *corpus, const kvd_tokenizer *tok,
                           size_t n_depths, size_t max_len, size_t most, uint64_t seed,
                           kvd_err *err)
{
    const size_t all = kvd_corpus_n_sequences(corpus), n = most && most < all ? most : all;
    kvd_sequences b = {0};
    uint32_t *id = malloc(max_len * sizeof *id);
    int status = id ? 0 : kvd_no_memory(err, "token ids", max_len * sizeof *id);
    *items = (kvd_task_items){.n_depths = n_depths};
    for (size_t s = 0; !status && s < n; s++) {
        const size_t length = kvd_corpus_length(corpus, s);
        status = kvd_corpus_read(corpus, s, 1, id, err);
        for (size_t k = 0; !status && k < n_depths; k++) {
            needle x = {0};
            kvd_rng r;
            kvd_rng_seed(&r, seed, s * n_depths + k);
            status =
                make_needle(tok, 10000 + (unsigned)kvd_rng_below(&r, 90000), &x, err) ||
                push_needle(&b, id, length, &x,
                            n_depths > 1 ? (double)k / (double)(n_depths - 1) : 0.5, max_len, err);
            items->lead = x.question.n;
            needle_release(&x);
        }
    }
    if (!status)
        status = take_sequences(&b, 1, items, err);
    if (!status && !(items->depth = malloc(items->n_items * sizeof *items->depth)))
        status = kvd_no_memory(err, "depths", items->n_items * sizeof *items->depth);
    for (size_t i = 0; !status && i < items->n_items; i++) {
        items->cluster[i] = i / n_depths;
        items->depth[i] = n_depths > 1 ? (double)(i % n_depths) / (double)(n_depths - 1) : 0.5;
    }
    items->n_clusters = n;
    free(id);
    kvd_sequences_release(&b);
    return status ? -1 : 0;
}
