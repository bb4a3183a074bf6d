/*
 * Converts text to token ids and back, with the same ids as Hugging Face `tokenizers`
 * (tokenizer.json, BPE models) and llama2.c (tokenizer.bin).
 *
 * Supported in tokenizer.json:
 *   normalizers      Sequence, Prepend, Replace, Strip, NFC, NFD; Lowercase on text below U+0100,
 *                    NFKC and NFKD on text below U+00A0: other text is an error that names the
 *                    normalizer and the character
 *   pre-tokenizers   Sequence, ByteLevel (only Split and Digits may follow it), Split, Punctuation,
 *                    Metaspace, Digits, Whitespace, WhitespaceSplit; patterns as
 *                    model/text/tokenizer/regex.h describes
 *   model            BPE with unk_token, fuse_unk, byte_fallback, ignore_merges
 *   added tokens     special, lstrip, rstrip, single_word, normalized
 *   post-processors  Sequence, ByteLevel, TemplateProcessing for one sequence
 *   decoders         Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip
 * Anything else in a file is an error that names it, never skipped: other types, unknown fields,
 * truncation, padding, dropout, subword affixes, and ids of added tokens that Hugging Face
 * tokenizers would number differently.
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

/* Growing list of token ids. A zeroed list is empty. */
typedef struct {
    uint32_t *id;
    size_t n, capacity;
} kvd_ids;

int kvd_ids_push(kvd_ids *ids, uint32_t id, kvd_err *err);
void kvd_ids_release(kvd_ids *ids);

/*
 * Returns the tokenizer in the file `path`, or in `len` bytes in memory, where `name` is the file's
 * name in messages. The contents decide the format: JSON, a GGUF file (gguf_tokenizer.c), or the
 * llama2.c binary. On failure returns NULL and fills *err.
 *
 * The llama2.c binary does not state its vocabulary size, so vocab_size must be that of its model,
 * and the file must hold exactly that many tokens. For the other formats, ids at or above
 * vocab_size are an error; 0 means that the size is not known.
 */
kvd_tokenizer *kvd_tokenizer_open(const char *path, size_t vocab_size, kvd_err *err);
kvd_tokenizer *kvd_tokenizer_parse(const char *name, const void *bytes, size_t len,
                                   size_t vocab_size, kvd_err *err);
void kvd_tokenizer_free(kvd_tokenizer *t);

/* Returns the largest token id + 1. Some smaller ids may be unused. */
size_t kvd_tokenizer_size(const kvd_tokenizer *t);

/*
 * Returns true, and writes a warning into *note, if the tokenizer has less than 90 % as many ids as
 * the model (vocab_size): it is probably another model's tokenizer. Padding makes a model's
 * vocabulary only a few percent larger than its tokenizer.
 */
bool kvd_tokenizer_is_small(const kvd_tokenizer *t, size_t vocab_size, kvd_err *note);

/*
 * Appends the token ids of one document to *ids. If add_special, includes the special tokens of the
 * post-processor (BOS, ...), or BOS for llama2.c; an empty text has at most these ids. Invalid
 * UTF-8 is an error that states the byte offset; after an error *ids is unchanged. Takes O(len log
 * len) time. Several threads may use t at once. Fails within a second after a request to stop
 * (kvd_interrupted).
 */
int kvd_tokenizer_encode(const kvd_tokenizer *t, const char *text, size_t len, bool add_special,
                         kvd_ids *ids, kvd_err *err);

/*
 * Tokenizes the beginning of a document: `text`, of `len` bytes, which may end inside a character.
 * Appends only ids that are certain, whatever text follows. The text that follows may change the
 * last words, so these are usually fewer ids than those of `text` as a whole document, and maybe
 * none.
 */
int kvd_tokenizer_encode_start(const kvd_tokenizer *t, const char *text, size_t len,
                               bool add_special, kvd_ids *ids, kvd_err *err);

/*
 * Returns the text of n token ids, including special tokens: *len bytes, allocated with malloc and
 * zero-terminated. With tokenizer.json the text is valid UTF-8, and an incomplete character becomes
 * U+FFFD. With llama2.c the bytes are unchanged. If an id is not in the vocabulary, returns NULL
 * and fills *err.
 */
char *kvd_tokenizer_decode(const kvd_tokenizer *t, const uint32_t *id, size_t n, size_t *len,
                           kvd_err *err);

#endif
