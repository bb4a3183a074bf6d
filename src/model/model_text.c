#include "model/model_text.h"

#include <stdio.h>
#include <stdlib.h>

kvd_tokenizer *kvd_model_tokenizer(const kvd_checkpoint *c, const char *program, kvd_err *err)
{
    const size_t vocab = (size_t)kvd_checkpoint_config(c)->vocab_size;
    char *const path = kvd_checkpoint_tokenizer_path(c, err);
    kvd_tokenizer *const tok = path ? kvd_tokenizer_open(path, vocab, err) : NULL;
    kvd_err note;
    free(path);
    if (tok && program && kvd_tokenizer_is_small(tok, vocab, &note))
        fprintf(stderr, "%s: warning: %s\n", program, note.msg);
    return tok;
}

kvd_corpus *kvd_model_corpus(const kvd_checkpoint *c, const kvd_corpus_spec *spec,
                             const char *program, kvd_err *err)
{
    kvd_tokenizer *const tok = spec->n_text ? kvd_model_tokenizer(c, program, err) : NULL;
    kvd_corpus *const corpus = tok || !spec->n_text ? kvd_corpus_open(spec, tok, err) : NULL;
    kvd_tokenizer_free(tok); /* all ids are known, so the tokenizer's memory is no longer needed */
    return corpus;
}

int kvd_model_seq_len(const kvd_config *model, size_t *seq_len, kvd_err *err)
{
    const size_t longest = (size_t)model->max_positions;
    if (!*seq_len)
        *seq_len = longest < 512 ? longest : 512;
    return *seq_len > longest
               ? kvd_fail(err, "--seq-len %zu: the model was made for at most %zu positions",
                          *seq_len, longest)
               : 0;
}
