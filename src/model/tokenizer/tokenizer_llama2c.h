/*
 * The tokenizer.bin of llama2.c: uint32 longest piece, then per piece float32 score, int32
 * length, bytes (little endian). Neighbours whose concatenation is a piece are joined, highest
 * score first, leftmost on ties; a character that is no piece becomes its bytes, ids 3 + byte,
 * whatever the pieces with those ids are (a vocabulary of characters has no byte pieces there).
 */
#ifndef KVD_MODEL_TOKENIZER_TOKENIZER_LLAMA2C_H
#define KVD_MODEL_TOKENIZER_TOKENIZER_LLAMA2C_H

#include "model/tokenizer.h"
#include "model/tokenizer/pieces.h"

typedef struct kvd_llama2c kvd_llama2c;

kvd_llama2c *kvd_llama2c_tok_parse(const void *bytes, size_t len, size_t vocab_size, kvd_err *err);
void kvd_llama2c_tok_free(kvd_llama2c *t);

/* One space stands before a text that is not empty. bos: id 1 first, and it may be joined, too. */
int kvd_llama2c_tok_encode(const kvd_llama2c *t, const char *text, size_t len, bool bos, kvd_ids *ids,
                           kvd_err *err);

/* Appends the bytes of the ids: a space right after id 1 is dropped, <0xNN> is one byte. */
int kvd_llama2c_tok_decode(const kvd_llama2c *t, const uint32_t *id, size_t n, kvd_buffer *out, kvd_err *err);

#endif
