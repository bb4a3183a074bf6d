/*
 * The "model" of tokenizer.json: BPE. A word becomes its characters (or, byte-level, its
 * bytes), then neighbours are joined by the list of merges, first merge first.
 */
#ifndef KVD_MODEL_TOKENIZER_BPE_H
#define KVD_MODEL_TOKENIZER_BPE_H

#include <jansson.h>

#include "model/tokenizer.h"
#include "model/tokenizer/vocab.h"

typedef struct kvd_bpe kvd_bpe;
typedef struct kvd_bpe_work kvd_bpe_work; /* buffers and a cache of words, one per thread */

/* byte_level: words come as bytes, the vocabulary spells them in kvd_byte_to_char. */
kvd_bpe *kvd_bpe_parse(const json_t *model, bool byte_level, kvd_err *err);
void kvd_bpe_free(kvd_bpe *m);

/* Belongs to m. */
const kvd_vocab *kvd_bpe_vocab(const kvd_bpe *m);

kvd_bpe_work *kvd_bpe_work_new(const kvd_bpe *m, kvd_err *err);
void kvd_bpe_work_free(kvd_bpe_work *w);

/*
 * Appends the ids of one word (valid UTF-8, or with byte_level any bytes). A character that is neither in the vocabulary nor
 * spelled by byte fallback becomes unk_token; without an unk_token it is left out, as Hugging
 * Face tokenizers does.
 */
int kvd_bpe_encode(const kvd_bpe *m, kvd_bpe_work *w, const char *word, size_t len, kvd_ids *ids,
                   kvd_err *err);

#endif
