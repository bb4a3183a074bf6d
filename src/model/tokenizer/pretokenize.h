/*
 * The "pre_tokenizer" of tokenizer.json: cuts text into the words that the model sees.
 * ByteLevel, Split, Punctuation, Metaspace, Digits, Whitespace, WhitespaceSplit and Sequence of them;
 * Split and Digits also behind ByteLevel, where they see its alphabet and may cut inside a character.
 */
#ifndef KVD_MODEL_TOKENIZER_PRETOKENIZE_H
#define KVD_MODEL_TOKENIZER_PRETOKENIZE_H

#include <jansson.h>

#include "model/tokenizer/pieces.h"

typedef struct kvd_pretokenizer kvd_pretokenizer;

/* spec: the object, or JSON null for none (a whole document is then one word). */
kvd_pretokenizer *kvd_pretokenizer_parse(const json_t *spec, kvd_err *err);
void kvd_pretokenizer_free(kvd_pretokenizer *p);

/*
 * Whether ByteLevel is part of it: the model then works on bytes. The pieces keep their bytes
 * as they are; spelling them in ByteLevel's alphabet is left to the model's tables.
 */
bool kvd_pretokenizer_byte_level(const kvd_pretokenizer *p);

int kvd_pretokenizer_apply(const kvd_pretokenizer *p, kvd_pieces *pieces, kvd_err *err);

#endif
