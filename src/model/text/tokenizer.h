/*
 * Converts text to token ids and back, with the same ids as Hugging Face `tokenizers`
 * (tokenizer.json, BPE models) and llama2.c (tokenizer.bin).
 *
 * Supported in tokenizer.json:
 *   normalizers      Sequence, Prepend, Replace, Strip, NFC, NFD; Lowercase for characters below
 *                    U+0100, NFKC and NFKD for characters below U+00A0: another character is an
 *                    error that names the normalizer and the character
 *   pre-tokenizers   Sequence, ByteLevel (only Split and Digits may follow it), Split, Punctuation,
 *                    Metaspace, Digits, Whitespace, WhitespaceSplit; patterns as
 *                    model/text/tokenizer/regex.h describes
 *   model            BPE with unk_token, fuse_unk, byte_fallback, ignore_merges
 *   added tokens     special, lstrip, rstrip, single_word, normalized
 *   post-processors  Sequence, ByteLevel, TemplateProcessing for one sequence
 *   decoders         Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip
 * Anything else in a file is an error, whose message names it.
 *
 * As in Hugging Face tokenizers, a character outside the vocabulary of a model without byte
 * fallback and without unk_token gives no id.
 */
#ifndef KVD_MODEL_TEXT_TOKENIZER_H
#define KVD_MODEL_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct kvd_tokenizer kvd_tokenizer;

/* List of token ids. A zeroed list is empty. */
typedef struct {
    uint32_t *id;
    size_t n, capacity;
} kvd_ids;

int kvd_ids_push(kvd_ids *ids, uint32_t id, kvd_err *err);
void kvd_ids_release(kvd_ids *ids);

/*
 * kvd_tokenizer_open reads the file `path`. kvd_tokenizer_parse reads `len` bytes in memory, and
 * messages call the file `name`. The contents decide the format: JSON, a GGUF file
 * (gguf_tokenizer.c), or the llama2.c binary. On failure returns NULL and fills *err.
 *
 * A llama2.c binary must hold exactly vocab_size tokens. For the other formats, ids at or above
 * vocab_size are an error; 0 means that the size is not known.
 */
kvd_tokenizer *kvd_tokenizer_open(const char *path, size_t vocab_size, kvd_err *err);
kvd_tokenizer *kvd_tokenizer_parse(const char *name, const void *bytes, size_t len,
                                   size_t vocab_size, kvd_err *err);
void kvd_tokenizer_free(kvd_tokenizer *t);

/* Returns the largest token id + 1; some smaller ids may be unused. */
size_t kvd_tokenizer_size(const kvd_tokenizer *t);

/*
 * Returns true, and writes a warning into *note, if the tokenizer has less than 90 % as many ids as
 * the model. The tokenizer then probably belongs to another model.
 */
bool kvd_tokenizer_is_small(const kvd_tokenizer *t, size_t vocab_size, kvd_err *note);

/*
 * Appends the token ids of one document to *ids. If add_special is true, includes the special
 * tokens of the post-processor (BOS, ...), or BOS for llama2.c. Invalid UTF-8 is an error that
 * states the byte offset; after an error *ids is unchanged. Several threads may use t at the same
 * time. Fails within a second after a request to stop (kvd_interrupted).
 */
int kvd_tokenizer_encode(const kvd_tokenizer *t, const char *text, size_t len, bool add_special,
                         kvd_ids *ids, kvd_err *err);

/*
 * Tokenizes the beginning of a document, which may end inside a character. Appends only those ids
 * that do not depend on the text that follows; there may be none.
 */
int kvd_tokenizer_encode_start(const kvd_tokenizer *t, const char *text, size_t len,
                               bool add_special, kvd_ids *ids, kvd_err *err);

/*
 * Returns *len bytes, allocated with malloc and zero-terminated, with the text of special tokens.
 * With tokenizer.json, an incomplete character becomes U+FFFD; with llama2.c the bytes are
 * unchanged. If an id is not in the vocabulary, returns NULL and fills *err.
 */
char *kvd_tokenizer_decode(const kvd_tokenizer *t, const uint32_t *id, size_t n, size_t *len,
                           kvd_err *err);

#endif
