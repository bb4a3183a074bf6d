/* What kvdim-eval says of its inputs: all of it is allowed, and none of it should be done unawares. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "analysis/eval_run.h"

static void same_text(kvd_eval_run *v, const char *program, const char *path, const char *hash)
{
    if (strcmp(hash, kvd_corpus_hash(v->corpus)))
        return;
    if (!v->same_text)
        fprintf(stderr, "%s: warning: '%s' was calibrated on the very text that is evaluated\n", program,
                path);
    v->same_text = true;
}

/* Widths for other bases can be used, to see what that costs. */
static int other_bases(const char *program, const kvd_point_source *s, kvd_err *err)
{
    char hash[KVD_BASES_HASH];
    if (s->table && !s->table->bases_hash[0])
        fprintf(stderr, "%s: warning: '%s' does not say which bases it was measured with\n", program,
                s->table_path);
    if (!s->rates || kvd_method_has_point(s->method) || s->method->dims->one_p)
        return 0;
    if (kvd_spectrum_bases_hash(s->spectrum, s->rates->pair, hash, err))
        return -1;
    if (s->rates->bases_hash[0] && strcmp(hash, s->rates->bases_hash))
        fprintf(stderr, "%s: warning: '%s' was fitted to other bases of %s and %s than '%s' holds\n", program,
                s->rates_path, kvd_pair_name[s->rates->pair[0]], kvd_pair_name[s->rates->pair[1]],
                s->spectrum_path);
    return 0;
}

/* A file that is given is read by somebody, or it is said. */
static void unused_files(const kvd_eval_run *v, const char *program)
{
    const kvd_eval_options *const cfg = v->cfg;
    bool calibration = false, fisher = false, table = false, draws = false;
    bool spectrum[KVD_EVAL_FILES] = {false}, rates[KVD_EVAL_FILES] = {false};
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_method *const m = &cfg->method[i];
        const kvd_point_source *const s = &v->source[i];
        calibration |= (kvd_method_needs(m) & KVD_NEEDS_ACTIVATIONS) != 0;
        fisher |= kvd_method_reads_fisher(m);
        draws |= m->tokens && m->tokens->regularise;
        table |= s->table != NULL;
        for (size_t k = 0; k < cfg->n_spectra; k++)
            spectrum[k] |= s->spectrum == &v->spectrum[k];
        for (size_t k = 0; k < cfg->n_rates; k++)
            rates[k] |= s->rates == &v->rates[k] && !kvd_method_has_point(m);
    }
    const char *const said = "%s: warning: no method here has a use for %s '%s'\n";
    for (size_t k = 0; k < cfg->n_spectra; k++)
        if (!spectrum[k])
            fprintf(stderr, said, program, "--spectrum", cfg->spectrum[k]);
    for (size_t k = 0; k < cfg->n_rates; k++)
        if (!rates[k])
            fprintf(stderr, said, program, "--rates", cfg->rates[k]);
    if (cfg->calibration && !calibration)
        fprintf(stderr, said, program, "--calibration", cfg->calibration);
    if (cfg->fisher && !fisher)
        fprintf(stderr, said, program, "--fisher", cfg->fisher);
    if (cfg->table && !table)
        fprintf(stderr, said, program, "--error-table", cfg->table);
    if (cfg->seeds > 1 && !draws)
        fprintf(stderr, "%s: warning: no method here draws random numbers: --seeds %zu changes nothing\n",
                program, cfg->seeds);
}

int kvd_eval_warn(kvd_eval_run *v, const char *program, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_point_source *const s = &v->source[i];
        if (s->spectrum)
            same_text(v, program, s->spectrum_path, s->spectrum->corpus_hash);
        if (kvd_method_needs(&cfg->method[i]) & KVD_NEEDS_ACTIVATIONS && cfg->calibration)
            same_text(v, program, cfg->calibration, v->calibration.corpus_hash);
        if (kvd_method_reads_fisher(&cfg->method[i]) && cfg->fisher)
            same_text(v, program, cfg->fisher, v->fisher.corpus_hash);
        if (other_bases(program, s, err))
            return -1;
    }
    unused_files(v, program);
    return 0;
}
