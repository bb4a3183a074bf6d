/*
 * The "decoder" of tokenizer.json: strings of ids, in order, become text. ByteLevel, Metaspace,
 * Replace, ByteFallback, Fuse, Strip, and a Sequence of them.
 */
#ifndef KVD_MODEL_TOKENIZER_TOKEN_DECODER_H
#define KVD_MODEL_TOKENIZER_TOKEN_DECODER_H

#include <jansson.h>

#include "model/tokenizer/pieces.h"

typedef struct kvd_token_decoder kvd_token_decoder;

/* A list of strings, end to end: string i is text.s[end[i - 1]..end[i]), end[-1] = 0. */
typedef struct {
    kvd_buffer text;
    size_t *end;
    size_t n, capacity;
} kvd_strings;

int kvd_strings_add(kvd_strings *l, const char *s, size_t len, kvd_err *err);
void kvd_strings_release(kvd_strings *l);

/* spec: the object, or JSON null: strings are joined with spaces. */
kvd_token_decoder *kvd_token_decoder_parse(const json_t *spec, kvd_err *err);
void kvd_token_decoder_free(kvd_token_decoder *d);

/* Appends the text of the strings to *out; strings is clobbered. */
int kvd_token_decoder_apply(const kvd_token_decoder *d, kvd_strings *strings, kvd_buffer *out, kvd_err *err);

#endif
