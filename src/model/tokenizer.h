/*
 * Text to token ids and back, id for id as Hugging Face `tokenizers` (tokenizer.json, BPE
 * models) and llama2.c (tokenizer.bin) do it.
 *
 * tokenizer.json:
 *   normalizers     Sequence, Prepend, Replace, Strip, NFC, NFD; Lowercase on text below U+0100,
 *                   NFKC and NFKD on text below U+00A0: other text is an error that names the
 *                   normalizer and the character
 *   pre-tokenizers  Sequence, ByteLevel (behind it only Split and Digits), Split, Punctuation, Metaspace,
 *                   Digits, Whitespace, WhitespaceSplit; patterns as model/tokenizer/regex.h says
 *   model           BPE with unk_token, fuse_unk, byte_fallback, ignore_merges
 *   added tokens    special, lstrip, rstrip, single_word, normalized
 *   post-processors Sequence, ByteLevel, TemplateProcessing for one sequence
 *   decoders        Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip
 * Anything else in a file is refused by name, never skipped: other types, unknown fields,
 * truncation, padding, dropout, subword affixes, ids of added tokens that Hugging Face
 * tokenizers would number differently.
 *
 * As there, a character outside the vocabulary of a model without byte fallback and without
 * unk_token yields no id.
 */
#ifndef KVD_MODEL_TOKENIZER_H
#define KVD_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct kvd_tokenizer kvd_tokenizer;

/* A growing list; zeroed is empty. */
typedef struct {
    uint32_t *id;
    size_t n, capacity;
} kvd_ids;

int kvd_ids_push(kvd_ids *ids, uint32_t id, kvd_err *err);
void kvd_ids_release(kvd_ids *ids);

/*
 * By content: JSON, a GGUF file (gguf_tokenizer.h), or the llama2.c binary. A .bin needs the vocabulary size of its model
 * (vocab_size > 0), because the file does not state it; it must hold exactly that many pieces.
 * For the others, 0: not known; else ids at or above vocab_size are an error.
 * name: for messages. NULL with *err set on failure.
 */
kvd_tokenizer *kvd_tokenizer_open(const char *path, size_t vocab_size, kvd_err *err);
kvd_tokenizer *kvd_tokenizer_parse(const char *name, const void *bytes, size_t len, size_t vocab_size,
                                   kvd_err *err);
void kvd_tokenizer_free(kvd_tokenizer *t);

/* Largest id + 1; ids below it may be holes. */
size_t kvd_tokenizer_size(const kvd_tokenizer *t);

/*
 * Appends the ids of one document to *ids. add_special: also what the post-processor adds
 * (BOS, ...); for llama2.c, BOS. An empty text has these ids at most. Invalid UTF-8 is an error
 * that gives the byte offset; after an error *ids is as before. Takes O(len log len), threads
 * may share t.
 */
int kvd_tokenizer_encode(const kvd_tokenizer *t, const char *text, size_t len, bool add_special, kvd_ids *ids,
                         kvd_err *err);

/*
 * The text of ids, special ones included; allocated with malloc, zero-terminated, *len bytes.
 * tokenizer.json: valid UTF-8, a character that is cut becomes U+FFFD. llama2.c: the bytes as
 * they are. An id that no piece has is an error (NULL).
 */
char *kvd_tokenizer_decode(const kvd_tokenizer *t, const uint32_t *id, size_t n, size_t *len, kvd_err *err);

#endif
