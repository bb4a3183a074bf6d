/*
 * The "added_tokens" of tokenizer.json: strings that become an id before the model sees the
 * text. Where several could match, the leftmost counts, and of those the longest.
 */
#ifndef KVD_MODEL_TOKENIZER_ADDED_TOKENS_H
#define KVD_MODEL_TOKENIZER_ADDED_TOKENS_H

#include <jansson.h>

#include "model/tokenizer/normalize.h"
#include "model/tokenizer/vocab.h"

typedef struct kvd_added_tokens kvd_added_tokens;

/*
 * spec: the array, or NULL. Ids in the file must be the ones that Hugging Face tokenizers would
 * give: the model's id for a string of the vocabulary, else the next free one.
 */
kvd_added_tokens *kvd_added_tokens_parse(const json_t *spec, const kvd_vocab *vocab, const kvd_normalizer *n,
                                         kvd_err *err);
void kvd_added_tokens_free(kvd_added_tokens *a);

/* Cuts the tokens that match before (normalized = false) or after the normalizer out of the pieces. */
int kvd_added_tokens_split(const kvd_added_tokens *a, bool normalized, kvd_pieces *p, kvd_err *err);

/* What an id stands for in decoded text, NULL when it is no added token. */
const char *kvd_added_tokens_text(const kvd_added_tokens *a, uint32_t id, size_t *len);

/* Largest id + 1, 0 when there is none. */
size_t kvd_added_tokens_end(const kvd_added_tokens *a);

#endif
