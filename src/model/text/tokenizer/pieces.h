/* Text that is being tokenized, in pieces. A piece is a range of bytes, or the id of an added
 * token. */
#ifndef KVD_MODEL_TEXT_TOKENIZER_PIECES_H
#define KVD_MODEL_TEXT_TOKENIZER_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Makes room in *array for `need` elements of `size` bytes. */
int kvd_grow(void *array, size_t *capacity, size_t need, size_t size, kvd_err *err);

typedef struct {
    char *s;
    size_t n, capacity;
} kvd_buffer;

int kvd_buffer_add(kvd_buffer *b, const char *s, size_t n, kvd_err *err);
void kvd_buffer_release(kvd_buffer *b);

typedef struct {
    size_t begin, len; /* range in the buffer; unused if is_id */
    /* number of leading bytes in this piece that belong to the first character of the document */
    size_t first;
    uint32_t id;
    bool is_id;
    /* true if this piece of text may become longer when more of the document is read */
    bool open;
} kvd_piece;

typedef struct {
    kvd_buffer text;
    /* Text pieces: `piece` [n] is the input of the current tokenizer step, `next` [n_next] its
     * output. */
    kvd_piece *piece, *next;
    size_t n, n_next, capacity, capacity_next;
} kvd_pieces;

/* Starts to tokenize `text`, as a single piece that later steps will split. `open`: true if more of
 * the document may follow. */
int kvd_pieces_start(kvd_pieces *p, const char *text, size_t len, bool open, kvd_err *err);
void kvd_pieces_release(kvd_pieces *p);

/* Appends a piece of text to the output of the current tokenizer step, unless the piece is
 * empty. */
int kvd_pieces_emit(kvd_pieces *p, kvd_piece piece, kvd_err *err);

int kvd_pieces_emit_part(kvd_pieces *p, const kvd_piece *whole, size_t begin, size_t end,
                         kvd_err *err);

/* Ends a tokenizer step: the pieces that the step has written become the input of the next step. */
void kvd_pieces_step(kvd_pieces *p);

/* ways to split a text at the matches of a pattern, for example to remove the matches (field
 * "behavior" of tokenizer.json) */
typedef enum {
    KVD_SPLIT_REMOVED,
    KVD_SPLIT_ISOLATED,
    KVD_SPLIT_MERGED_WITH_PREVIOUS,
    KVD_SPLIT_MERGED_WITH_NEXT,
    KVD_SPLIT_CONTIGUOUS
} kvd_split_behavior;

/* state while a piece of text, `whole`, is cut at the matches of a pattern */
typedef struct {
    kvd_pieces *pieces;
    kvd_piece whole;
    kvd_split_behavior behavior;
    /* waiting: true if bytes begin .. end - 1 are not yet added to `pieces`, because later bytes
     * may join them. last_was_match: true if the latest range of bytes matches the pattern. */
    bool waiting, last_was_match;
    size_t begin, end;
} kvd_splitter;

void kvd_splitter_start(kvd_splitter *s, kvd_pieces *pieces, kvd_piece whole,
                        kvd_split_behavior behavior);
int kvd_splitter_feed(kvd_splitter *s, size_t begin, size_t end, bool is_match, kvd_err *err);
int kvd_splitter_end(kvd_splitter *s, kvd_err *err);

/* Returns 0xNN for the text "<0xNN>", otherwise -1. */
int kvd_byte_named(const char *s, size_t len);

/* Returns the printable character of a byte in byte-level BPE (GPT-2). */
uint32_t kvd_byte_to_char(unsigned char byte);

/* Returns the byte that byte-level BPE writes as this character, or -1 if there is no such byte. */
int kvd_char_to_byte(uint32_t code_point);

#endif
