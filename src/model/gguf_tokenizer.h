/* The tokenizer in a GGUF file, as the tokenizer.json that its model had. */
#ifndef KVD_MODEL_GGUF_TOKENIZER_H
#define KVD_MODEL_GGUF_TOKENIZER_H

#include "model/gguf.h"

struct json_t; /* of jansson */

/*
 * tokenizer.ggml.model `llama` (SentencePiece BPE with byte fallback) or `gpt2` (byte-level BPE, cut
 * into words as tokenizer.ggml.pre says). A vocabulary of SentencePiece has scores where BPE has
 * merges: the merges are all pairs of pieces whose product is a piece, the best product first, as
 * Transformers makes them. BOS and EOS are added where the file says so; where it says nothing, where
 * llama.cpp adds them.
 *
 * The caller owns the result; NULL with *err: no tokenizer, one of another kind, lists that do not
 * fit each other.
 */
struct json_t *kvd_gguf_tokenizer(const kvd_gguf *g, kvd_err *err);

#endif
