/* Oniguruma's pattern syntax, written the way PCRE2 reads it. */
#ifndef KVD_MODEL_TOKENIZER_ONIG_SYNTAX_H
#define KVD_MODEL_TOKENIZER_ONIG_SYNTAX_H

#include "model/tokenizer/pieces.h"

/* Appends the PCRE2 form of a pattern to *out; refuses what has no equal there. */
int kvd_onig_to_pcre2(const char *pattern, size_t len, kvd_buffer *out, kvd_err *err);

#endif
