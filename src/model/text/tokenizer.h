/* Converts text to token ids and back, as Hugging Face tokenizers (tokenizer.json, BPE models) and
 * llama2.c do.
 *
 * Supported in tokenizer.json; anything else is an error:
 *
 * normalizers      Sequence, Prepend, Replace, Strip, NFC, NFD; Lowercase below U+0100, NFKC and
 * NFKD below U+00A0
 * pre-tokenizers   Sequence, ByteLevel, Split, Punctuation, Metaspace, Digits, Whitespace,
 * WhitespaceSplit
 * model            BPE with unk_token, fuse_unk, byte_fallback, ignore_merges
 * added tokens     special, lstrip, rstrip, single_word, normalized
 * post-processors  Sequence, ByteLevel, TemplateProcessing for one sequence
 * decoders         Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip
 *
 * Without byte fallback and unk_token, a character outside the vocabulary gives no id. */
#ifndef KVD_MODEL_TEXT_TOKENIZER_H
#define KVD_MODEL_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct kvd_tokenizer kvd_tokenizer;

/* list of token ids; a zero-initialised struct is an empty list */
typedef struct {
    uint32_t *id;
    size_t n, capacity;
} kvd_ids;

int kvd_ids_push(kvd_ids *ids, uint32_t id, kvd_err *err);
void kvd_ids_release(kvd_ids *ids);
int kvd_ids_append(kvd_ids *ids, const uint32_t *id, size_t n, kvd_err *err);

/* Opens a tokenizer: JSON, a GGUF file or a llama2.c binary.
 *
 * A llama2.c binary must hold exactly vocab_size tokens. In other files, ids of vocab_size or more
 * are an error, unless vocab_size is 0. */
kvd_tokenizer *kvd_tokenizer_open(const char *path, size_t vocab_size, kvd_err *err);
kvd_tokenizer *kvd_tokenizer_parse(const char *name, const void *bytes, size_t len,
                                   size_t vocab_size, kvd_err *err);
void kvd_tokenizer_free(kvd_tokenizer *t);

/* Returns the largest token id + 1. Smaller ids may be unused. */
size_t kvd_tokenizer_size(const kvd_tokenizer *t);

/* Returns true if the tokenizer has far fewer ids than vocab_size, and writes a warning to
 * *note. */
bool kvd_tokenizer_is_small(const kvd_tokenizer *t, size_t vocab_size, kvd_err *note);

/* Appends the token ids of a document. Invalid UTF-8 is an error, which leaves *ids unchanged.
 * Thread-safe. */
int kvd_tokenizer_encode(const kvd_tokenizer *t, const char *text, size_t len, bool add_special,
                         kvd_ids *ids, kvd_err *err);

/* Tokenizes the beginning of a document. Appends only ids that later text cannot change. */
int kvd_tokenizer_encode_start(const kvd_tokenizer *t, const char *text, size_t len,
                               bool add_special, kvd_ids *ids, kvd_err *err);

/* Returns the allocated text of n token ids; a zero byte follows its *len bytes. If `special` is
 * false, special tokens of tokenizer.json are left out. Ids that tokenizer.json lacks give no
 * text. */
char *kvd_tokenizer_decode(const kvd_tokenizer *t, const uint32_t *id, size_t n, bool special,
                           size_t *len, kvd_err *err);

#endif
