/* Vocabulary of a tokenizer, and search for added tokens, which is the first step of
 * tokenization. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/utf8.h"
#include "model/text/tokenizer/json_fields.h"
#include "model/text/tokenizer/regex.h"
#include "model/text/tokenizer/steps.h"

int kvd_vocab_add(kvd_vocab *v, const char *piece, size_t len, uint32_t id, kvd_err *err)
{
    if (len > UINT32_MAX || v->n >= UINT32_MAX / 4)
        return kvd_fail(err, "vocabulary too large: %zu pieces, a piece of %zu bytes", v->n, len);
    if (kvd_grow(&v->entry, &v->capacity, v->n + 1, sizeof *v->entry, err))
        return -1;
    v->entry[v->n++] = (kvd_vocab_entry){v->text.n, (uint32_t)len, id};
    if (len > v->longest)
        v->longest = len;
    return kvd_buffer_add(&v->text, piece, len, err);
}

static int entry_by_id(const void *a, const void *b)
{
    const kvd_vocab_entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static uint32_t *find_slot(const kvd_vocab *v, const char *piece, size_t len)
{
    size_t i = (size_t)XXH3_64bits(piece, len) & (v->n_slots - 1);
    while (v->slot[i]) {
        const kvd_vocab_entry *e = &v->entry[v->slot[i] - 1];
        if (e->len == len && !memcmp(v->text.s + e->begin, piece, len))
            break;
        i = (i + 1) & (v->n_slots - 1);
    }
    return &v->slot[i];
}

int kvd_vocab_build(kvd_vocab *v, kvd_err *err)
{
    if (v->n)
        qsort(v->entry, v->n, sizeof *v->entry, entry_by_id);
    for (v->n_slots = 16; v->n_slots < 2 * v->n;)
        v->n_slots *= 2;
    v->slot = calloc(v->n_slots, sizeof *v->slot);
    if (!v->slot)
        return kvd_no_memory(err, "the vocabulary", v->n_slots * sizeof *v->slot);
    for (size_t i = 0; i < v->n; i++) {
        const kvd_vocab_entry *e = &v->entry[i];
        const char *piece = v->text.s ? v->text.s + e->begin : "";
        const int shown = (int)(e->len < 100 ? e->len : 100);
        if (i && v->entry[i - 1].id == e->id)
            return kvd_fail(err, "two pieces have id %u, one is '%.*s'", e->id, shown, piece);
        uint32_t *slot = find_slot(v, piece, e->len);
        if (*slot)
            return kvd_fail(err, "piece '%.*s' has two ids, %u and %u", shown, piece,
                            v->entry[*slot - 1].id, e->id);
        *slot = (uint32_t)i + 1;
    }
    return 0;
}

void kvd_vocab_release(kvd_vocab *v)
{
    kvd_buffer_release(&v->text);
    free(v->entry);
    free(v->slot);
    memset(v, 0, sizeof *v);
}

bool kvd_vocab_find(const kvd_vocab *v, const char *piece, size_t len, uint32_t *id)
{
    if (len > v->longest)
        return false;
    const uint32_t slot = *find_slot(v, piece, len);
    if (!slot)
        return false;
    *id = v->entry[slot - 1].id;
    return true;
}

const char *kvd_vocab_piece(const kvd_vocab *v, uint32_t id, size_t *len)
{
    const kvd_vocab_entry key = {.id = id};
    const kvd_vocab_entry *e = NULL;
    /* Looks here first, because entry[id] is usually the entry of token `id`. */
    if (id < v->n && v->entry[id].id == id)
        e = &v->entry[id];
    else if (v->n)
        e = bsearch(&key, v->entry, v->n, sizeof key, entry_by_id);
    if (!e)
        return NULL;
    *len = e->len;
    return v->text.s ? v->text.s + e->begin : "";
}

size_t kvd_vocab_end(const kvd_vocab *v)
{
    return v->n ? (size_t)v->entry[v->n - 1].id + 1 : 0;
}

/* largest length of an added token in bytes */
#define LONGEST 4096

typedef struct {
    uint32_t id;
    bool lstrip, rstrip, single_word, normalized, special;
    kvd_buffer text;
} token;

typedef struct {
    uint32_t child, sibling; /* indices of nodes; 0 means none */
    uint32_t token;          /* 1 + index of the token that ends at this node, or 0 for none */
    char byte;
} node;

/* prefix tree of token texts, with root node[0] */
typedef struct {
    node *node;
    size_t n, capacity;
    bool starts[256];
    bool lstrip; /* true if a token removes white space before it */
} tree;

struct kvd_added_tokens {
    token *token;
    size_t n, capacity;
    /* added tokens that are found before the normalizer runs (tree[0]) and after it (tree[1]) */
    tree tree[2];
    kvd_regex *word;
};

static int parse_token(token *t, const json_t *spec, kvd_err *err)
{
    static const char *const what = "added token";
    size_t len;
    const char *content;
    if (kvd_json_known(spec, what, "id content single_word lstrip rstrip normalized special",
                       err) ||
        !(content = kvd_json_text(spec, what, "content", &len, err)))
        return -1;
    if (!json_object_get(spec, "id"))
        return kvd_fail(err, "%s '%.100s': field 'id' is missing", what, content);
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    bool *values[] = {&t->single_word, &t->lstrip, &t->rstrip, &t->normalized, &t->special};
    for (size_t i = 0; i < 5; i++) {
        if (!json_object_get(spec, flags[i]))
            return kvd_fail(err, "%s '%.100s': field '%s' is missing", what, content, flags[i]);
        if (kvd_json_bool(spec, what, flags[i], values[i], err))
            return -1;
    }
    if (!len || len > LONGEST)
        return kvd_fail(err, "%s '%.100s': %zu bytes, 1 to %d are supported", what, content, len,
                        LONGEST);
    return kvd_status(kvd_json_id(json_object_get(spec, "id"), what, &t->id, err) ||
                      kvd_buffer_add(&t->text, content, len, err));
}

/* Fails if Hugging Face tokenizers would give the added token another id. */
static int check_id(const token *t, const kvd_vocab *vocab, uint32_t *next, kvd_err *err)
{
    uint32_t id;
    size_t len;
    const int shown = (int)(t->text.n < 100 ? t->text.n : 100);
    if (!kvd_vocab_find(vocab, t->text.s, t->text.n, &id)) {
        id = (*next)++;
        if (id == t->id && kvd_vocab_piece(vocab, id, &len))
            return kvd_fail(err, "added token '%.*s' has id %u, which is another piece's", shown,
                            t->text.s, id);
    }
    if (id != t->id)
        return kvd_fail(err,
                        "added token '%.*s' has id %u, loaders that number added tokens give it %u",
                        shown, t->text.s, t->id, id);
    return 0;
}

static int add_node(tree *t, char byte, uint32_t *index, kvd_err *err)
{
    if (t->n >= UINT32_MAX)
        return kvd_fail(err, "added tokens are too long together");
    if (kvd_grow(&t->node, &t->capacity, t->n + 1, sizeof *t->node, err))
        return -1;
    *index = (uint32_t)t->n++;
    t->node[*index] = (node){.byte = byte};
    return 0;
}

static uint32_t child_of(const tree *t, uint32_t parent, char byte)
{
    uint32_t c = t->node[parent].child;
    while (c && t->node[c].byte != byte)
        c = t->node[c].sibling;
    return c;
}

static int plant(kvd_added_tokens *a, size_t which, kvd_err *err)
{
    const token *k = &a->token[which];
    tree *t = &a->tree[k->normalized];
    uint32_t at = 0;
    if (!t->n && add_node(t, 0, &at, err))
        return -1;
    if (!k->text.n)
        return kvd_fail(err, "added token with id %u: the normalizer leaves nothing of it", k->id);
    at = 0;
    for (size_t i = 0; i < k->text.n; i++) {
        uint32_t c = child_of(t, at, k->text.s[i]);
        if (!c) {
            if (add_node(t, k->text.s[i], &c, err))
                return -1;
            t->node[c].sibling = t->node[at].child;
            t->node[at].child = c;
        }
        at = c;
    }
    if (t->node[at].token)
        return kvd_fail(err, "added tokens with ids %u and %u are the same text",
                        a->token[t->node[at].token - 1].id, k->id);
    t->node[at].token = (uint32_t)which + 1;
    t->starts[(unsigned char)k->text.s[0]] = true;
    t->lstrip = t->lstrip || k->lstrip;
    return 0;
}

static int by_id(const void *a, const void *b)
{
    const token *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int parse_all(kvd_added_tokens *a, const json_t *spec, const kvd_vocab *vocab,
                     const kvd_normalizer *n, kvd_err *err)
{
    kvd_buffer scratch = {0};
    uint32_t next = (uint32_t)vocab->n;
    bool words = false;
    int rc = -1;
    if (!json_is_array(spec))
        return kvd_fail(err, "field 'added_tokens' is not an array");
    for (size_t i = 0; i < json_array_size(spec); i++) {
        if (kvd_grow(&a->token, &a->capacity, a->n + 1, sizeof *a->token, err))
            goto done;
        token *t = &a->token[a->n++];
        memset(t, 0, sizeof *t);
        if (parse_token(t, json_array_get(spec, i), err) || check_id(t, vocab, &next, err))
            goto done;
        if (t->normalized && kvd_normalizer_apply(n, &t->text, &scratch, NULL, false, err)) {
            kvd_in(err, "added token with id %u", t->id);
            goto done;
        }
        words = words || t->single_word;
    }
    if (a->n)
        qsort(a->token, a->n, sizeof *a->token, by_id);
    for (size_t i = 0; i < a->n; i++) {
        if (i && a->token[i - 1].id == a->token[i].id) {
            kvd_fail(err, "two added tokens have id %u", a->token[i].id);
            goto done;
        }
        if (plant(a, i, err))
            goto done;
    }
    static const char word[] = "[\\w\\u200c\\u200d]";
    if (words && !(a->word = kvd_regex_new(word, sizeof word - 1, false, err)))
        goto done;
    rc = 0;
done:
    kvd_buffer_release(&scratch);
    return rc;
}

kvd_added_tokens *kvd_added_tokens_parse(const json_t *spec, const kvd_vocab *vocab,
                                         const kvd_normalizer *n, kvd_err *err)
{
    kvd_added_tokens *a = kvd_new(1, sizeof *a, "added tokens", err);
    if (!a)
        return NULL;
    if (spec && parse_all(a, spec, vocab, n, err)) {
        kvd_added_tokens_free(a);
        return NULL;
    }
    return a;
}

void kvd_added_tokens_free(kvd_added_tokens *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->n; i++)
        kvd_buffer_release(&a->token[i].text);
    free(a->token);
    free(a->tree[0].node);
    free(a->tree[1].node);
    kvd_regex_free(a->word);
    free(a);
}

/* Returns the longest added token with which s begins, or NULL if there is none. */
static const token *match_at(const kvd_added_tokens *a, const tree *t, const char *s, size_t len,
                             bool *cut)
{
    const token *best = NULL;
    uint32_t at = 0;
    for (size_t i = 0; i < len && (at = child_of(t, at, s[i])); i++)
        if (t->node[at].token)
            best = &a->token[t->node[at].token - 1];
    *cut = at && t->node[at].child;
    return best;
}

static int is_word(kvd_scan *scan, const char *s, kvd_err *err)
{
    size_t begin, end;
    kvd_scan_text(scan, s, kvd_utf8_width(s[0]), false);
    return kvd_scan_next(scan, &begin, &end, err);
}

static int stands_alone(kvd_scan *scan, const char *s, size_t len, size_t begin, size_t end,
                        kvd_err *err)
{
    int rc = 0;
    if (begin)
        rc = is_word(scan, s + kvd_utf8_before(s, begin), err);
    if (!rc && end < len)
        rc = is_word(scan, s + end, err);
    return rc < 0 ? -1 : !rc;
}

static size_t spaces_before(const char *s, size_t end)
{
    unsigned width;
    while (end) {
        const size_t before = kvd_utf8_before(s, end);
        if (!kvd_utf8_is_space(kvd_utf8_decode(s + before, &width)))
            break;
        end = before;
    }
    return end;
}

static size_t spaces_after(const char *s, size_t len, size_t begin)
{
    unsigned width;
    while (begin < len && kvd_utf8_is_space(kvd_utf8_decode(s + begin, &width)))
        begin += width;
    return begin;
}

static int split_piece(const kvd_added_tokens *a, const tree *t, kvd_scan *scan, kvd_pieces *p,
                       kvd_piece piece, kvd_err *err)
{
    const char *s = p->text.s + piece.begin;
    size_t done = 0;
    size_t i = 0;
    while (i < piece.len) {
        bool cut = false;
        const token *k =
            t->starts[(unsigned char)s[i]] ? match_at(a, t, s + i, piece.len - i, &cut) : NULL;
        if (piece.open && (cut || (k && k->single_word && i + k->text.n == piece.len)))
            break; /* further text decides if the token matches */
        if (!k) {
            i++;
            continue;
        }
        size_t begin = i, end = i + k->text.n;
        i = end;
        if (k->single_word) {
            const int alone = stands_alone(scan, s, piece.len, begin, end, err);
            if (alone < 0)
                return -1;
            if (!alone)
                continue;
        }
        if (k->lstrip) {
            const size_t from = spaces_before(s, begin);
            begin = from > done ? from : done;
        }
        if (k->rstrip)
            end = spaces_after(s, piece.len, end);
        if ((done < begin && kvd_pieces_emit_part(p, &piece, done, begin, err)) ||
            (begin < end && kvd_pieces_emit(p, (kvd_piece){.id = k->id, .is_id = true}, err)))
            return -1;
        done = end;
    }
    if (piece.open) {
        const size_t known = t->lstrip ? spaces_before(s, i) : i;
        piece.len = known > done ? known : done;
    }
    return done < piece.len ? kvd_pieces_emit_part(p, &piece, done, piece.len, err) : 0;
}

int kvd_added_tokens_split(const kvd_added_tokens *a, bool normalized, kvd_pieces *p, kvd_err *err)
{
    const tree *t = &a->tree[normalized];
    kvd_scan scan = {0};
    int rc = -1;
    if (!t->n)
        return 0;
    if (a->word && kvd_scan_start(&scan, a->word, err))
        return -1;
    for (size_t i = 0; i < p->n; i++)
        if (p->piece[i].is_id ? kvd_pieces_emit(p, p->piece[i], err)
                              : split_piece(a, t, &scan, p, p->piece[i], err))
            goto done;
    kvd_pieces_step(p);
    rc = 0;
done:
    kvd_scan_release(&scan);
    return rc;
}

const char *kvd_added_tokens_text(const kvd_added_tokens *a, uint32_t id, size_t *len,
                                  bool *special)
{
    const token key = {.id = id},
                *t = a->n ? bsearch(&key, a->token, a->n, sizeof key, by_id) : NULL;
    if (!t)
        return NULL;
    *len = t->text.n;
    *special = t->special;
    return t->text.s;
}

size_t kvd_added_tokens_end(const kvd_added_tokens *a)
{
    return a->n ? (size_t)a->token[a->n - 1].id + 1 : 0;
}
