/* A text being tokenized, cut into pieces: ranges of bytes, or ids of added tokens. */
#ifndef KVD_MODEL_TEXT_TOKENIZER_PIECES_H
#define KVD_MODEL_TEXT_TOKENIZER_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Grows the array to which *array points to room for at least `need` elements of `size` bytes. */
int kvd_grow(void *array, size_t *capacity, size_t need, size_t size, kvd_err *err);

typedef struct {
    char *s;
    size_t n, capacity;
} kvd_buffer;

int kvd_buffer_add(kvd_buffer *b, const char *s, size_t n, kvd_err *err);
void kvd_buffer_release(kvd_buffer *b);

typedef struct {
    size_t begin, len; /* range in the buffer; unused if is_id */
    /* Leading bytes of the piece that come from the document's first character. */
    size_t first;
    uint32_t id;
    bool is_id;
    /* True if the text of the piece may continue. */
    bool open;
} kvd_piece;

typedef struct {
    kvd_buffer text;
    /* A step of the tokenizer reads piece [n] and writes next [n_next]. */
    kvd_piece *piece, *next;
    size_t n, n_next, capacity, capacity_next;
} kvd_pieces;

/* Makes `text` the only piece; if `open`, it is the beginning of a longer document. */
int kvd_pieces_start(kvd_pieces *p, const char *text, size_t len, bool open, kvd_err *err);
void kvd_pieces_release(kvd_pieces *p);

/* Appends a piece to p->next, unless it is empty. */
int kvd_pieces_emit(kvd_pieces *p, kvd_piece piece, kvd_err *err);

int kvd_pieces_emit_part(kvd_pieces *p, const kvd_piece *whole, size_t begin, size_t end,
                         kvd_err *err);

/* Ends a step of the tokenizer: p->next becomes the list p->piece. */
void kvd_pieces_step(kvd_pieces *p);

/* Treatment of the matches of a pattern (field "behavior" of tokenizer.json). */
typedef enum {
    KVD_SPLIT_REMOVED,
    KVD_SPLIT_ISOLATED,
    KVD_SPLIT_MERGED_WITH_PREVIOUS,
    KVD_SPLIT_MERGED_WITH_NEXT,
    KVD_SPLIT_CONTIGUOUS
} kvd_split_behavior;

/* State while the piece `whole` is cut at the matches of a pattern. */
typedef struct {
    kvd_pieces *pieces;
    kvd_piece whole;
    kvd_split_behavior behavior;
    /* `waiting` is true if the next range may be joined to bytes begin .. end - 1. */
    bool waiting, last_was_match;
    size_t begin, end;
} kvd_splitter;

void kvd_splitter_start(kvd_splitter *s, kvd_pieces *pieces, kvd_piece whole,
                        kvd_split_behavior behavior);
int kvd_splitter_feed(kvd_splitter *s, size_t begin, size_t end, bool is_match, kvd_err *err);
int kvd_splitter_end(kvd_splitter *s, kvd_err *err);

/* Returns the byte 0xNN if s is "<0xNN>", else -1. */
int kvd_byte_named(const char *s, size_t len);

/* Returns the printable character that represents a byte in byte-level BPE (GPT-2). */
uint32_t kvd_byte_to_char(unsigned char byte);

/* Returns the byte that the character represents, or -1 if none. */
int kvd_char_to_byte(uint32_t code_point);

#endif
