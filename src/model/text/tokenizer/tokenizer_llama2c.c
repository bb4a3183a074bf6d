/* Tokenizers of llama2.c (files tokenizer.bin). */
#include "model/text/tokenizer/steps.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

#define BOS        1
#define FIRST_BYTE 3
/* Two tokens are merged only if the score of the resulting token is above this number. */
#define WORST_SCORE (-1e10f)

struct kvd_llama2c {
    kvd_vocab vocab;
    /* priority of the merges that make each token, smallest first; UINT32_MAX for a token that no
     * merge makes */
    uint32_t *priority;
    uint32_t space;
    kvd_pair_set *pairs;
};

/* Returns an unsigned number that is smaller for higher scores. */
static uint32_t priority_of(float score)
{
    uint32_t bits;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? bits : 0x7fffffffu - bits;
}

static int parse_pieces(kvd_llama2c *t, const unsigned char *p, size_t len, size_t vocab_size,
                        kvd_err *err)
{
    uint32_t longest;
    size_t at = sizeof longest;
    if (len < at)
        return kvd_fail(err, "%zu bytes, too short for a llama2.c tokenizer", len);
    memcpy(&longest, p, sizeof longest);
    for (size_t i = 0; i < vocab_size; i++) {
        float score;
        int32_t n;
        if (len - at < sizeof score + sizeof n)
            return kvd_fail(err, "ends at byte %zu, in piece %zu of %zu", len, i, vocab_size);
        memcpy(&score, p + at, sizeof score);
        memcpy(&n, p + at + sizeof score, sizeof n);
        at += sizeof score + sizeof n;
        if (n <= 0 || (uint32_t)n > longest)
            return kvd_fail(err, "piece %zu has length %d, the longest is said to be %u", i, n,
                            longest);
        if ((size_t)n > len - at)
            return kvd_fail(err, "ends at byte %zu, in piece %zu of %zu", len, i, vocab_size);
        if (memchr(p + at, 0, (size_t)n))
            return kvd_fail(err, "piece %zu holds a zero byte", i);
        if (score != score)
            return kvd_fail(err, "piece %zu has no number as its score", i);
        if (kvd_vocab_add(&t->vocab, (const char *)p + at, (size_t)n, (uint32_t)i, err))
            return -1;
        t->priority[i] = score > WORST_SCORE ? priority_of(score) : UINT32_MAX;
        kvd_pair_set_add(t->pairs, (const char *)p + at, (size_t)n);
        at += (size_t)n;
    }
    if (at != len)
        return kvd_fail(err, "%zu bytes follow piece %zu, the last one of the vocabulary", len - at,
                        vocab_size - 1);
    return kvd_vocab_build(&t->vocab, err);
}

kvd_llama2c *kvd_llama2c_tok_parse(const void *bytes, size_t len, size_t vocab_size, kvd_err *err)
{
    /* Refuses vocab_size if the file is too short: every token takes at least nine bytes. */
    if (vocab_size <= BOS || vocab_size > len / 9) {
        kvd_fail(err, "%zu bytes cannot hold a llama2.c tokenizer of %zu pieces", len, vocab_size);
        return NULL;
    }
    kvd_llama2c *t = calloc(1, sizeof *t);
    if (t)
        t->priority = malloc(vocab_size * sizeof *t->priority);
    if (!t || !t->priority) {
        kvd_no_memory(err, "the vocabulary", vocab_size * sizeof *t->priority);
        goto fail;
    }
    if (!(t->pairs = kvd_pair_set_new(err)) || parse_pieces(t, bytes, len, vocab_size, err))
        goto fail;
    if (!kvd_vocab_find(&t->vocab, " ", 1, &t->space)) {
        kvd_fail(err, "no piece is a space, which precedes every text");
        goto fail;
    }
    return t;
fail:
    kvd_llama2c_tok_free(t);
    return NULL;
}

void kvd_llama2c_tok_free(kvd_llama2c *t)
{
    if (!t)
        return;
    kvd_vocab_release(&t->vocab);
    kvd_pair_set_free(t->pairs);
    free(t->priority);
    free(t);
}

typedef struct {
    const kvd_llama2c *t;
    char *both;
} pair_room;

static bool may_merge(const void *context, uint32_t left, uint32_t right, uint32_t *priority,
                      uint32_t *id)
{
    const pair_room *room = context;
    const kvd_vocab *v = &room->t->vocab;
    size_t n_left, n_right;
    const char *l = kvd_vocab_piece(v, left, &n_left), *r = kvd_vocab_piece(v, right, &n_right);
    if (n_left + n_right > v->longest)
        return false;
    memcpy(room->both, l, n_left);
    memcpy(room->both + n_left, r, n_right);
    if (!kvd_vocab_find(v, room->both, n_left + n_right, id))
        return false;
    *priority = room->t->priority[*id];
    return *priority != UINT32_MAX;
}

static int start_symbols(const kvd_llama2c *t, kvd_merge_work *w, const char *text, size_t len,
                         bool bos, kvd_err *err)
{
    if (bos && kvd_merge_add(w, BOS, err))
        return -1;
    if (len && kvd_merge_add(w, t->space, err))
        return -1;
    for (size_t i = 0; i < len;) {
        const unsigned width = kvd_utf8_width(text[i]);
        uint32_t id;
        if (kvd_vocab_find(&t->vocab, text + i, width, &id)) {
            if (kvd_merge_add(w, id, err))
                return -1;
        } else {
            for (unsigned k = 0; k < width; k++) {
                id = FIRST_BYTE + (uint32_t)(unsigned char)text[i + k];
                if (id >= t->vocab.n)
                    return kvd_fail(
                        err,
                        "the character at byte %zu is no piece, and its byte would have id %u of %zu",
                        i, id, t->vocab.n);
                if (kvd_merge_add(w, id, err))
                    return -1;
            }
        }
        i += width;
    }
    return 0;
}

int kvd_llama2c_tok_encode(const kvd_llama2c *t, const char *text, size_t len, bool open, bool bos,
                           kvd_ids *ids, kvd_err *err)
{
    kvd_merge_work w = {0};
    pair_room room = {t, malloc(t->vocab.longest)};
    const kvd_merge_model merge = {
        .rule = may_merge, .context = &room, .vocab = &t->vocab, .pairs = t->pairs};
    int rc = -1;
    if (!room.both) {
        kvd_no_memory(err, "a piece", t->vocab.longest);
        goto done;
    }
    kvd_merge_start(&w, &merge, ids);
    rc = start_symbols(t, &w, text, len, bos, err) || kvd_merge_end(&w, open, err) ? -1 : 0;
done:
    kvd_merge_release(&w);
    free(room.both);
    return rc;
}

int kvd_llama2c_tok_decode(const kvd_llama2c *t, const uint32_t *id, size_t n, kvd_buffer *out,
                           kvd_err *err)
{
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *piece = kvd_vocab_piece(&t->vocab, id[i], &len);
        if (!piece)
            return kvd_fail(err, "id %u at position %zu is not in the vocabulary of %zu", id[i], i,
                            t->vocab.n);
        if (i && id[i - 1] == BOS && piece[0] == ' ') {
            piece++;
            len--;
        }
        char byte;
        if (kvd_byte_named(piece, len) >= 0) {
            byte = (char)kvd_byte_named(piece, len);
            piece = &byte;
            len = 1;
        }
        if (kvd_buffer_add(out, piece, len, err))
            return -1;
    }
    return 0;
}
