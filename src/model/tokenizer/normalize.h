/*
 * The "normalizer" of tokenizer.json, applied to each stretch of text between added tokens:
 * Sequence, Prepend, Replace, Strip, NFC and NFD exactly; Lowercase for text below U+0100 and
 * NFKC, NFKD for text below U+00A0, where they are certain: other text is an error that names
 * the normalizer and the character. Other normalizers are refused when the file is read.
 */
#ifndef KVD_MODEL_TOKENIZER_NORMALIZE_H
#define KVD_MODEL_TOKENIZER_NORMALIZE_H

#include <jansson.h>

#include "model/tokenizer/pieces.h"

typedef struct kvd_normalizer kvd_normalizer;

/* spec: the object, or JSON null for none. */
kvd_normalizer *kvd_normalizer_parse(const json_t *spec, kvd_err *err);
void kvd_normalizer_free(kvd_normalizer *n);

/* Whether there is nothing to do. */
bool kvd_normalizer_is_empty(const kvd_normalizer *n);

/*
 * Normalizes *text in place (it grows and shrinks); scratch is clobbered. *first, the bytes that
 * stand for the first character of the document (see kvd_piece), follows; NULL: not wanted.
 */
int kvd_normalizer_apply(const kvd_normalizer *n, kvd_buffer *text, kvd_buffer *scratch, size_t *first,
                         kvd_err *err);

/* The same on the list of pieces: ids stay, texts are normalized. */
int kvd_normalizer_apply_pieces(const kvd_normalizer *n, kvd_pieces *p, kvd_err *err);

#endif
