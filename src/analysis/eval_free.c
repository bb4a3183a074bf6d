#include "analysis/eval_free.h"

int kvd_eval_free_items(const kvd_eval_options *cfg, kvd_corpus *corpus, const kvd_tokenizer *tok,
                        uint64_t seed, kvd_free_run *f, kvd_err *err)
{
    const kvd_free_documents documents = {.text = cfg->text,
                                          .n_text = cfg->n_text,
                                          .field = cfg->field,
                                          .ask = cfg->ask,
                                          .no_special = cfg->no_special,
                                          .max_len = cfg->seq_len,
                                          .most = cfg->items};
    kvd_free_items *const generate = &f->items[KVD_FREE_GENERATE];
    if (cfg->reference &&
        kvd_free_items_references(generate, &documents, cfg->reference, tok, cfg->generate, err))
        return kvd_in(err, "--reference %s", cfg->reference);
    if (cfg->generate && !cfg->reference &&
        kvd_free_items_corpus(generate, corpus, tok, cfg->prompt, cfg->generate, cfg->items, err))
        return kvd_in(err, "--generate %zu", cfg->generate);
    if (cfg->needle && kvd_free_items_needles(&f->items[KVD_FREE_NEEDLE], corpus, tok, cfg->needle,
                                              cfg->seq_len, cfg->items, seed, err))
        return kvd_in(err, "--needle %zu", cfg->needle);
    if (cfg->classify && kvd_free_items_classes(&f->items[KVD_FREE_CLASSIFY], &documents, cfg->classify,
                                                cfg->classes, tok, err))
        return kvd_in(err, "--classify %s", cfg->classify);
    return 0;
}
