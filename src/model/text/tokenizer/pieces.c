#include "model/text/tokenizer/pieces.h"

#include <stdlib.h>
#include <string.h>

int kvd_grow(void *array, size_t *capacity, size_t need, size_t size, kvd_err *err)
{
    if (need <= *capacity)
        return 0;
    size_t want = *capacity < 16 ? 16 : *capacity;
    while (want < need)
        want = want > SIZE_MAX / 2 ? need : want * 2;
    size_t bytes;
    void *old;
    memcpy(&old, array, sizeof old);
    void *more = __builtin_mul_overflow(want, size, &bytes) ? NULL : realloc(old, bytes);
    if (!more)
        return kvd_no_memory(err, "the tokenizer", (unsigned long long)want);
    memcpy(array, &more, sizeof more);
    *capacity = want;
    return 0;
}

int kvd_buffer_add(kvd_buffer *b, const char *s, size_t n, kvd_err *err)
{
    if (!n)
        return 0;
    if (n > SIZE_MAX - b->n)
        return kvd_no_memory(err, "text", (unsigned long long)n);
    const bool inside = b->s && s >= b->s && s < b->s + b->n;
    const size_t at = inside ? (size_t)(s - b->s) : 0;
    if (kvd_grow(&b->s, &b->capacity, b->n + n, 1, err))
        return -1;
    memcpy(b->s + b->n, inside ? b->s + at : s, n);
    b->n += n;
    return 0;
}

void kvd_buffer_release(kvd_buffer *b)
{
    free(b->s);
    memset(b, 0, sizeof *b);
}

int kvd_pieces_emit(kvd_pieces *p, kvd_piece piece, kvd_err *err)
{
    if (!piece.is_id && !piece.len)
        return 0;
    if (kvd_grow(&p->next, &p->capacity_next, p->n_next + 1, sizeof *p->next, err))
        return -1;
    p->next[p->n_next++] = piece;
    return 0;
}

int kvd_pieces_emit_part(kvd_pieces *p, const kvd_piece *whole, size_t begin, size_t end,
                         kvd_err *err)
{
    kvd_piece part = {.begin = whole->begin + begin,
                      .len = end - begin,
                      .open = whole->open && end == whole->len};
    if (whole->first > begin)
        part.first = whole->first < end ? whole->first - begin : part.len;
    return kvd_pieces_emit(p, part, err);
}

void kvd_pieces_step(kvd_pieces *p)
{
    kvd_piece *const piece = p->piece;
    const size_t capacity = p->capacity;
    p->piece = p->next;
    p->n = p->n_next;
    p->capacity = p->capacity_next;
    p->next = piece;
    p->n_next = 0;
    p->capacity_next = capacity;
}

int kvd_pieces_start(kvd_pieces *p, const char *text, size_t len, bool open, kvd_err *err)
{
    p->text.n = 0;
    p->n_next = 0;
    if (kvd_buffer_add(&p->text, text, len, err))
        return -1;
    size_t first = 0;
    if (len)
        do
            first++;
        while (first < len && ((unsigned char)text[first] & 0xc0) == 0x80);
    if (kvd_pieces_emit(p, (kvd_piece){.len = len, .first = first, .open = open}, err))
        return -1;
    kvd_pieces_step(p);
    return 0;
}

void kvd_pieces_release(kvd_pieces *p)
{
    kvd_buffer_release(&p->text);
    free(p->piece);
    free(p->next);
    memset(p, 0, sizeof *p);
}

void kvd_splitter_start(kvd_splitter *s, kvd_pieces *pieces, kvd_piece whole,
                        kvd_split_behavior behavior)
{
    memset(s, 0, sizeof *s);
    s->pieces = pieces;
    s->whole = whole;
    s->behavior = behavior;
}

/* Returns true if the next range of bytes must be joined to the range before it. */
static bool glued(const kvd_splitter *s, bool is_match)
{
    switch (s->behavior) {
    case KVD_SPLIT_CONTIGUOUS:
        return is_match == s->last_was_match;
    case KVD_SPLIT_MERGED_WITH_PREVIOUS:
        return is_match && !s->last_was_match;
    case KVD_SPLIT_MERGED_WITH_NEXT:
        return !is_match && s->last_was_match;
    case KVD_SPLIT_REMOVED:
    case KVD_SPLIT_ISOLATED:
        break;
    }
    return false;
}

int kvd_splitter_feed(kvd_splitter *s, size_t begin, size_t end, bool is_match, kvd_err *err)
{
    if (s->behavior == KVD_SPLIT_REMOVED && is_match)
        return kvd_splitter_end(s, err);
    if (s->waiting && glued(s, is_match)) {
        s->end = end;
    } else {
        if (kvd_splitter_end(s, err))
            return -1;
        s->begin = begin;
        s->end = end;
        s->waiting = true;
    }
    s->last_was_match = is_match;
    return 0;
}

int kvd_splitter_end(kvd_splitter *s, kvd_err *err)
{
    if (!s->waiting)
        return 0;
    s->waiting = false;
    return kvd_pieces_emit_part(s->pieces, &s->whole, s->begin, s->end, err);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int kvd_byte_named(const char *s, size_t len)
{
    const bool named = len == 6 && !memcmp(s, "<0x", 3) && s[5] == '>';
    return named && hex(s[3]) >= 0 && hex(s[4]) >= 0 ? hex(s[3]) * 16 + hex(s[4]) : -1;
}

uint32_t kvd_byte_to_char(unsigned char b)
{
    if (b <= 0x20)
        return 0x100u + b;
    if (b >= 0x7f && b <= 0xa0)
        return 0x100u + 33 + (b - 0x7fu);
    if (b == 0xad)
        return 0x100u + 67;
    return b;
}

int kvd_char_to_byte(uint32_t c)
{
    if (c >= 0x100)
        return c <= 0x120   ? (int)c - 0x100
               : c < 0x143  ? (int)c - 0x121 + 0x7f
               : c == 0x143 ? 0xad
                            : -1;
    return c <= 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad ? -1 : (int)c;
}
