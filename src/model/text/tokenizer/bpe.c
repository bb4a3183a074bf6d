/* Byte-pair encoding with a list of merges. */
#include "model/text/tokenizer/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/utf8.h"
#include "model/text/tokenizer/json_fields.h"
#include "model/text/tokenizer/pieces.h"

typedef struct {
    uint64_t pair; /* ids left << 32 | right; EMPTY in a free slot */
    uint32_t rank, id;
} rule_slot;
#define EMPTY UINT64_MAX /* marks a free slot: ids are at most 2^31 - 1 */

/* how a character is encoded: as a token, as one token per byte, or as the unknown token */
typedef enum { KNOWN, BYTES, UNKNOWN } unit_kind;
typedef struct {
    unit_kind kind;
    unsigned n;
    uint32_t id[4];
} unit;

struct kvd_bpe {
    kvd_vocab vocab;
    rule_slot *rule;
    size_t n_rules;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges, has_unk, unk_known;
    uint32_t unk;
    bool byte_known[256];
    uint32_t byte_id[256];
    /* BPE symbol of every byte (byte-level BPE) or of every ASCII character */
    unit start[256];
    kvd_pair_set *pairs;
    kvd_merge_model merge;
};

/* number of entries of a cache that maps words of at most 30 bytes to at most 24 token ids */
#define CACHE_SLOTS 16384
typedef struct {
    uint8_t len, n;
    char word[30];
    uint32_t id[24];
} cached;

struct kvd_bpe_work {
    kvd_merge_work merge;
    kvd_buffer spelled;
    cached cache[CACHE_SLOTS];
};

static size_t rule_hash(uint64_t pair)
{
    return (size_t)((pair * 0x9e3779b97f4a7c15u) >> 20 ^ pair);
}

static rule_slot *rule_of(const kvd_bpe *m, uint64_t pair)
{
    size_t i = rule_hash(pair) & (m->n_rules - 1);
    while (m->rule[i].pair != EMPTY && m->rule[i].pair != pair)
        i = (i + 1) & (m->n_rules - 1);
    return &m->rule[i];
}

static bool may_merge(const void *context, uint32_t left, uint32_t right, uint32_t *priority,
                      uint32_t *id)
{
    const rule_slot *r = rule_of(context, (uint64_t)left << 32 | right);
    if (r->pair == EMPTY)
        return false;
    *priority = r->rank;
    *id = r->id;
    return true;
}

static unit start_of(const kvd_bpe *m, const char *c, size_t len)
{
    unit u = {.kind = KNOWN, .n = 1};
    if (kvd_vocab_find(&m->vocab, c, len, &u.id[0]))
        return u;
    u.kind = m->byte_fallback ? BYTES : UNKNOWN;
    u.n = (unsigned)len;
    for (size_t i = 0; i < len; i++) {
        const unsigned char b = (unsigned char)c[i];
        if (!m->byte_known[b])
            u.kind = UNKNOWN;
        u.id[i] = m->byte_id[b];
    }
    return u;
}

static int parse_options(kvd_bpe *m, const json_t *model, const char **unk, size_t *unk_len,
                         kvd_err *err)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    /* Older tokenizer.json files do not have the field "type". */
    if (kvd_json_known(
            model, "model",
            "type vocab merges dropout unk_token continuing_subword_prefix end_of_word_suffix "
            "fuse_unk byte_fallback ignore_merges",
            err))
        return -1;
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return kvd_fail(
            err, "model: 'dropout' other than null or 0 is not supported, ids would be random");
    for (size_t i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (affix && !json_is_null(affix) && !(json_is_string(affix) && !json_string_length(affix)))
            return kvd_fail(err, "model: '%s' other than null or \"\" is not supported",
                            affixes[i]);
    }
    const json_t *token = json_object_get(model, "unk_token");
    if (token && !json_is_null(token) &&
        !(*unk = kvd_json_text(model, "model", "unk_token", unk_len, err)))
        return -1;
    struct {
        const char *name;
        bool *value;
    } flags[] = {{"fuse_unk", &m->fuse_unk},
                 {"byte_fallback", &m->byte_fallback},
                 {"ignore_merges", &m->ignore_merges}};
    for (size_t i = 0; i < 3; i++) {
        const json_t *flag = json_object_get(model, flags[i].name);
        if (flag && !json_is_null(flag) &&
            kvd_json_bool(model, "model", flags[i].name, flags[i].value, err))
            return -1;
    }
    return 0;
}

static int parse_vocab(kvd_bpe *m, const json_t *model, kvd_err *err)
{
    json_t *vocab = json_object_get(model, "vocab");
    if (!json_is_object(vocab))
        return kvd_fail(err, "model: field 'vocab' is %s", vocab ? "not an object" : "missing");
    const char *piece;
    json_t *value;
    json_object_foreach(vocab, piece, value)
    {
        uint32_t id;
        if (kvd_json_id(value, piece, &id, err))
            return kvd_in(err, "model vocabulary");
        if (kvd_vocab_add(&m->vocab, piece, strlen(piece), id, err))
            return -1;
    }
    return kvd_vocab_build(&m->vocab, err) ? kvd_in(err, "model vocabulary") : 0;
}

/* Splits a merge of two tokens, written "a b" or (if `pairs`) ["a", "b"], into the tokens. */
static int merge_parts(const json_t *merge, bool pairs, const char *part[2], size_t len[2],
                       kvd_err *err)
{
    if (pairs) {
        if (!json_is_array(merge) || json_array_size(merge) != 2 ||
            !json_is_string(json_array_get(merge, 0)) || !json_is_string(json_array_get(merge, 1)))
            return kvd_fail(err, "not a pair of strings");
        for (size_t i = 0; i < 2; i++) {
            part[i] = json_string_value(json_array_get(merge, i));
            len[i] = json_string_length(json_array_get(merge, i));
        }
        return 0;
    }
    if (!json_is_string(merge))
        return kvd_fail(err, "not a string");
    const char *text = json_string_value(merge);
    const size_t n = json_string_length(merge);
    const char *space = memchr(text, ' ', n);
    if (!space || memchr(space + 1, ' ', (size_t)(text + n - space - 1)))
        return kvd_fail(err, "'%.100s' is not two pieces with one space between them", text);
    part[0] = text;
    len[0] = (size_t)(space - text);
    part[1] = space + 1;
    len[1] = n - len[0] - 1;
    return 0;
}

static int add_rule(kvd_bpe *m, const json_t *merge, bool pairs, uint32_t rank, kvd_buffer *product,
                    kvd_err *err)
{
    const char *part[2];
    size_t len[2];
    uint32_t id[2], joined;
    if (merge_parts(merge, pairs, part, len, err))
        return -1;
    for (size_t i = 0; i < 2; i++)
        if (!kvd_vocab_find(&m->vocab, part[i], len[i], &id[i]))
            return kvd_fail(err, "'%.*s' is not in the vocabulary",
                            (int)(len[i] < 100 ? len[i] : 100), part[i]);
    product->n = 0;
    if (kvd_buffer_add(product, part[0], len[0], err) ||
        kvd_buffer_add(product, part[1], len[1], err))
        return -1;
    const char *p = product->s ? product->s : "";
    if (!kvd_vocab_find(&m->vocab, p, product->n, &joined))
        return kvd_fail(err, "its product '%.*s' is not in the vocabulary",
                        (int)(product->n < 100 ? product->n : 100), p);
    kvd_pair_set_add(m->pairs, p, product->n);
    rule_slot *slot = rule_of(m, (uint64_t)id[0] << 32 | id[1]);
    *slot = (rule_slot){(uint64_t)id[0] << 32 | id[1], rank,
                        /* id of the joined token; if two merges are equal, the later one counts */
                        joined};
    return 0;
}

static int parse_merges(kvd_bpe *m, const json_t *model, kvd_err *err)
{
    const json_t *merges = kvd_json_array(model, "model", "merges", err);
    if (!merges)
        return -1;
    const size_t n = json_array_size(merges);
    if (n > UINT32_MAX / 2)
        return kvd_fail(err, "model: %zu merges are too many", n);
    for (m->n_rules = 16; m->n_rules < 2 * n;)
        m->n_rules *= 2;
    m->rule = malloc(m->n_rules * sizeof *m->rule);
    if (!m->rule)
        return kvd_no_memory(err, "merges", m->n_rules * sizeof *m->rule);
    for (size_t i = 0; i < m->n_rules; i++)
        m->rule[i].pair = EMPTY;

    const bool pairs = n && json_is_array(json_array_get(merges, 0));
    kvd_buffer product = {0};
    uint32_t rank = 0;
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++) {
        const json_t *merge = json_array_get(merges, i);
        if (!pairs && json_is_string(merge) && !strncmp(json_string_value(merge), "#version", 8))
            continue;
        if (add_rule(m, merge, pairs, rank++, &product, err))
            rc = kvd_in(err, "model: merge %zu", i);
    }
    kvd_buffer_release(&product);
    return rc;
}

static void fill_starts(kvd_bpe *m)
{
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        (void)snprintf(name, sizeof name, "<0x%02X>", b);
        m->byte_known[b] = kvd_vocab_find(&m->vocab, name, 6, &m->byte_id[b]);
    }
    for (unsigned b = 0; b < (m->byte_level ? 256u : 128u); b++) {
        char c[4] = {(char)b};
        const size_t len =
            m->byte_level ? kvd_utf8_encode(kvd_byte_to_char((unsigned char)b), c) : 1;
        m->start[b] = start_of(m, c, len);
    }
}

kvd_bpe *kvd_bpe_parse(const json_t *model, bool byte_level, kvd_err *err)
{
    const char *unk = NULL;
    size_t unk_len = 0;
    const json_t *type = json_is_object(model) ? json_object_get(model, "type") : NULL;
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE"))) {
        kvd_fail(err, "model '%.100s' is not supported, only BPE",
                 json_is_string(type) ? json_string_value(type) : "?");
        return NULL;
    }
    kvd_bpe *m = kvd_new(1, sizeof *m, "the model", err);
    if (!m)
        return NULL;
    m->byte_level = byte_level;
    if (!(m->pairs = kvd_pair_set_new(err)) || parse_options(m, model, &unk, &unk_len, err) ||
        parse_vocab(m, model, err) || parse_merges(m, model, err)) {
        kvd_bpe_free(m);
        return NULL;
    }
    m->has_unk = unk != NULL;
    m->unk_known = unk && kvd_vocab_find(&m->vocab, unk, unk_len, &m->unk);
    fill_starts(m);
    m->merge =
        (kvd_merge_model){.rule = may_merge, .context = m, .vocab = &m->vocab, .pairs = m->pairs};
    return m;
}

void kvd_bpe_free(kvd_bpe *m)
{
    if (!m)
        return;
    kvd_vocab_release(&m->vocab);
    kvd_pair_set_free(m->pairs);
    free(m->rule);
    free(m);
}

const kvd_vocab *kvd_bpe_vocab(const kvd_bpe *m)
{
    return &m->vocab;
}

kvd_bpe_work *kvd_bpe_work_new(const kvd_bpe *m, kvd_err *err)
{
    (void)m;
    kvd_bpe_work *w = calloc(1, sizeof *w);
    if (!w)
        kvd_no_memory(err, "the word cache", sizeof *w);
    return w;
}

void kvd_bpe_work_free(kvd_bpe_work *w)
{
    if (!w)
        return;
    kvd_merge_release(&w->merge);
    kvd_buffer_release(&w->spelled);
    free(w);
}

static int add_unit(const kvd_bpe *m, kvd_merge_work *w, const unit *u, bool *pending, kvd_err *err)
{
    if (u->kind == UNKNOWN) {
        if (!m->has_unk)
            return 0;
        if (!m->unk_known)
            return kvd_fail(err,
                            "a character is not in the vocabulary, and neither is the unk_token");
        if (*pending && !m->fuse_unk && kvd_merge_add(w, m->unk, err))
            return -1;
        *pending = true;
        return 0;
    }
    /* The unknown token is written before the next known character, as Hugging Face does. */
    if (u->kind == KNOWN && *pending) {
        *pending = false;
        if (kvd_merge_add(w, m->unk, err))
            return -1;
    }
    for (unsigned i = 0; i < u->n; i++)
        if (kvd_merge_add(w, u->id[i], err))
            return -1;
    return 0;
}

static int merge_word(const kvd_bpe *m, kvd_bpe_work *w, const char *word, size_t len, bool open,
                      kvd_ids *ids, kvd_err *err)
{
    bool pending = false;
    kvd_merge_start(&w->merge, &m->merge, ids);
    for (size_t i = 0; i < len;) {
        const unsigned char b = (unsigned char)word[i];
        unit u;
        if (m->byte_level || b < 0x80) {
            i++;
            if (add_unit(m, &w->merge, &m->start[b], &pending, err))
                return -1;
            continue;
        }
        const unsigned width = kvd_utf8_width(word[i]);
        u = start_of(m, word + i, width);
        i += width;
        if (add_unit(m, &w->merge, &u, &pending, err))
            return -1;
    }
    if (pending && !open && kvd_merge_add(&w->merge, m->unk, err))
        return -1;
    return kvd_merge_end(&w->merge, open, err);
}

static int whole_word(const kvd_bpe *m, kvd_bpe_work *w, const char *word, size_t len, uint32_t *id,
                      bool *found, kvd_err *err)
{
    *found = false;
    if (len > m->vocab.longest)
        return 0;
    if (!m->byte_level) {
        *found = kvd_vocab_find(&m->vocab, word, len, id);
        return 0;
    }
    w->spelled.n = 0;
    for (size_t i = 0; i < len; i++) {
        char c[4];
        if (kvd_buffer_add(&w->spelled, c,
                           kvd_utf8_encode(kvd_byte_to_char((unsigned char)word[i]), c), err))
            return -1;
    }
    *found = kvd_vocab_find(&m->vocab, w->spelled.s, w->spelled.n, id);
    return 0;
}

int kvd_bpe_encode(const kvd_bpe *m, kvd_bpe_work *w, const char *word, size_t len, bool open,
                   kvd_ids *ids, kvd_err *err)
{
    cached *slot = NULL;
    if (!len)
        return 0;
    /* Waits for more text, because a longer word may be in the vocabulary. */
    if (open)
        return m->ignore_merges && len <= m->vocab.longest
                   ? 0
                   : merge_word(m, w, word, len, true, ids, err);
    if (len <= sizeof slot->word) {
        slot = &w->cache[XXH3_64bits(word, len) & (CACHE_SLOTS - 1)];
        if (slot->len == len && !memcmp(slot->word, word, len)) {
            for (size_t i = 0; i < slot->n; i++)
                if (kvd_ids_push(ids, slot->id[i], err))
                    return -1;
            return 0;
        }
    }
    if (m->ignore_merges) {
        uint32_t id;
        bool found;
        if (whole_word(m, w, word, len, &id, &found, err))
            return -1;
        if (found)
            return kvd_ids_push(ids, id, err);
    }
    const size_t before = ids->n;
    if (merge_word(m, w, word, len, false, ids, err))
        return -1;
    const size_t n = ids->n - before;
    if (slot && n <= sizeof slot->id / sizeof *slot->id) {
        slot->len = (uint8_t)len;
        slot->n = (uint8_t)n;
        memcpy(slot->word, word, len);
        for (size_t i = 0; i < n; i++)
            slot->id[i] = ids->id[before + i];
    }
    return 0;
}
