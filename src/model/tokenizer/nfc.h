/*
 * Canonical normalization of UTF-8 (UAX #15): decomposed (NFD) and composed (NFC).
 */
#ifndef KVD_MODEL_TOKENIZER_NFC_H
#define KVD_MODEL_TOKENIZER_NFC_H

#include "model/tokenizer/pieces.h"

/* Appends the normal form of s (valid UTF-8) to *out; compose: NFC, else NFD. */
int kvd_canonical_form(const char *s, size_t len, bool compose, kvd_buffer *out, kvd_err *err);

#endif
