/*
 * Text to token ids and back, id for id as Hugging Face `tokenizers` (tokenizer.json, BPE
 * models) and llama2.c (tokenizer.bin) do it.
 *
 * tokenizer.json: normalizers NFC/NFD/NFKC/NFKD are refused unless the text is ASCII-only
 * safe (see docs), Prepend, Replace, Lowercase-free Sequence, Strip are applied; pre-tokenizers
 * ByteLevel (GPT-2 pattern), Split (any PCRE2-compatible pattern: Llama 3, Qwen), Metaspace,
 * Digits, Sequence; BPE with byte_fallback, fuse_unk, ignore_merges; added tokens with
 * lstrip, rstrip, single_word, normalized; TemplateProcessing, ByteLevel and Sequence
 * post-processors. Anything else in a file is refused by name, never skipped.
 */
#ifndef KVD_MODEL_TOKENIZER_H
#define KVD_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct kvd_tokenizer kvd_tokenizer;

typedef struct {
    uint32_t *id;
    size_t n, capacity;
} kvd_ids;

int kvd_ids_push(kvd_ids *ids, uint32_t id, kvd_err *err);
void kvd_ids_release(kvd_ids *ids);

/* By content: JSON, or the llama2.c binary. A .bin needs the vocabulary size of its model
 * (vocab_size > 0), because the file does not state it; tokenizer.json may pass 0. */
kvd_tokenizer *kvd_tokenizer_open(const char *path, size_t vocab_size, kvd_err *err);
kvd_tokenizer *kvd_tokenizer_parse(const char *name, const void *bytes, size_t len, size_t vocab_size,
                                   kvd_err *err);
void kvd_tokenizer_free(kvd_tokenizer *t);

/* Largest id + 1. */
size_t kvd_tokenizer_size(const kvd_tokenizer *t);

/*
 * Appends the ids of one document to *ids. add_special: also what the post-processor adds
 * (BOS, ...). Invalid UTF-8 is an error that gives the byte offset. Thread-safe on one t.
 */
int kvd_tokenizer_encode(const kvd_tokenizer *t, const char *text, size_t len, bool add_special, kvd_ids *ids,
                         kvd_err *err);

/* The text of ids, allocated, zero-terminated, *len bytes; an id out of range is an error. */
char *kvd_tokenizer_decode(const kvd_tokenizer *t, const uint32_t *id, size_t n, size_t *len, kvd_err *err);

#endif
