/* Pieces and their ids, both ways. Ids may have holes; memory follows the number of pieces. */
#ifndef KVD_MODEL_TOKENIZER_VOCAB_H
#define KVD_MODEL_TOKENIZER_VOCAB_H

#include "model/tokenizer/pieces.h"

typedef struct {
    size_t begin; /* in text */
    uint32_t len, id;
} kvd_vocab_entry;

typedef struct {
    kvd_buffer text;
    kvd_vocab_entry *entry; /* by id, once it is built */
    size_t n, capacity;
    uint32_t *slot; /* hash table of entry index + 1 */
    size_t n_slots; /* a power of two */
    size_t longest; /* piece, bytes */
} kvd_vocab;

/* Adds one piece; kvd_vocab_build makes the tables and refuses what is there twice. */
int kvd_vocab_add(kvd_vocab *v, const char *piece, size_t len, uint32_t id, kvd_err *err);
int kvd_vocab_build(kvd_vocab *v, kvd_err *err);
void kvd_vocab_release(kvd_vocab *v);

bool kvd_vocab_find(const kvd_vocab *v, const char *piece, size_t len, uint32_t *id);
/* Not zero-terminated; NULL when no piece has the id. */
const char *kvd_vocab_piece(const kvd_vocab *v, uint32_t id, size_t *len);
/* Largest id + 1, 0 when empty. */
size_t kvd_vocab_end(const kvd_vocab *v);

#endif
