/*
 * A text that is being tokenized: a growing buffer of bytes, and the list of pieces into which the
 * text is cut so far. A piece is a range of the buffer, or the id of an added token.
 */
#ifndef KVD_MODEL_TEXT_TOKENIZER_PIECES_H
#define KVD_MODEL_TEXT_TOKENIZER_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/*
 * Grows *array, whose capacity is *capacity elements of `size` bytes, to room for at least `need`
 * elements.
 */
int kvd_grow(void **array, size_t *capacity, size_t need, size_t size, kvd_err *err);

typedef struct {
    char *s;
    size_t n, capacity;
} kvd_buffer;

int kvd_buffer_add(kvd_buffer *b, const char *s, size_t n, kvd_err *err);
void kvd_buffer_release(kvd_buffer *b);

typedef struct {
    size_t begin, len; /* range of the piece in the buffer; unused if is_id */
    /*
     * Number of leading bytes of the piece that come from the first character of the document,
     * including bytes inserted before that character. Used by the pre-tokenizer Metaspace with
     * prepend_scheme "first".
     */
    size_t first;
    uint32_t id;
    bool is_id;
    /*
     * True if the text of the piece continues beyond the known bytes. Only the last piece of a list
     * can be open, and only if the text is the beginning of a longer document.
     */
    bool open;
} kvd_piece;

typedef struct {
    kvd_buffer text;
    /*
     * A step of the tokenizer reads the list of pieces piece[0 .. n) and writes a new list next[0
     * .. n_next), which replaces it for the next step.
     */
    kvd_piece *piece, *next;
    size_t n, n_next, capacity, capacity_next;
} kvd_pieces;

/*
 * Makes the document `text` the only piece of the list (no piece if it is empty). If `open`, it is
 * the beginning of a longer document. Memory is kept between documents.
 */
int kvd_pieces_start(kvd_pieces *p, const char *text, size_t len, bool open, kvd_err *err);
void kvd_pieces_release(kvd_pieces *p);

/* Appends a piece of the text to the list p->next, unless the piece is empty. */
int kvd_pieces_emit(kvd_pieces *p, kvd_piece piece, kvd_err *err);

/*
 * Appends bytes [begin, end) of the piece *whole, counted from its beginning, as a new piece to the
 * list p->next. The field `open` of the new piece is set if *whole is open (its text continues
 * beyond the known bytes) and `end` is the end of *whole.
 */
int kvd_pieces_emit_part(kvd_pieces *p, const kvd_piece *whole, size_t begin, size_t end,
                         kvd_err *err);

/*
 * Ends a step of the tokenizer: the list p->next, which the step has filled, becomes p->piece,
 * which the next step reads.
 */
void kvd_pieces_step(kvd_pieces *p);

/*
 * Treatment of the matches of a pattern at which a text is cut, as the field "behavior" of
 * tokenizer.json says.
 */
typedef enum {
    KVD_SPLIT_REMOVED,
    KVD_SPLIT_ISOLATED,
    KVD_SPLIT_MERGED_WITH_PREVIOUS,
    KVD_SPLIT_MERGED_WITH_NEXT,
    KVD_SPLIT_CONTIGUOUS
} kvd_split_behavior;

/*
 * State of cutting the piece `whole` at the matches of a pattern. kvd_splitter_feed receives the
 * matches and the text between matches in order, and emits pieces according to `behavior`.
 */
typedef struct {
    kvd_pieces *pieces;
    kvd_piece whole;
    kvd_split_behavior behavior;
    /*
     * waiting: bytes [begin, end) of `whole` are not yet emitted as a piece, because the next range
     * of bytes given to kvd_splitter_feed may extend the piece. last_was_match: the last range
     * given was a match of the pattern, not text between matches.
     */
    bool waiting, last_was_match;
    size_t begin, end;
} kvd_splitter;

void kvd_splitter_start(kvd_splitter *s, kvd_pieces *pieces, kvd_piece whole,
                        kvd_split_behavior behavior);
int kvd_splitter_feed(kvd_splitter *s, size_t begin, size_t end, bool is_match, kvd_err *err);
int kvd_splitter_end(kvd_splitter *s, kvd_err *err);

/*
 * Returns the character that represents a byte in the alphabet of byte-level BPE (GPT-2), which
 * writes each byte as one printable character. A printable byte is its own character; the others
 * are numbered in order from U+0100 on.
 */
uint32_t kvd_byte_to_char(unsigned char byte);

/*
 * Inverse of kvd_byte_to_char: returns the byte that a character represents in byte-level BPE
 * (GPT-2), or -1 if the character represents none.
 */
int kvd_char_to_byte(uint32_t code_point);

#endif
