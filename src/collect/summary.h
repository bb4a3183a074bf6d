/* What kvdim-collect says at its end, on stdout: lines for people, or one JSON object. */
#ifndef KVD_COLLECT_SUMMARY_H
#define KVD_COLLECT_SUMMARY_H

#include "collect/engine.h"
#include "collect/options.h"
#include "collect/outputs.h"
#include "collect/snapshots.h"
#include "model/corpus.h"

/* Numbers of this process: a run that was resumed counts what it did itself. */
typedef struct {
    const kvd_collect_options *cfg;
    const kvd_corpus *corpus;
    const kvd_outputs *out;
    const kvd_snapshots *snapshots;
    kvd_collect_times times;
    double save_s;  /* saving, snapshots, completing the files */
    double start_s; /* before the first batch                  */
    double loop_s;  /* of the loop over batches                */
    double total_s; /* since the start of the program          */
    size_t resumed_tokens;
    bool nothing_to_do;
    const char *device; /* "cpu", "cuda"                   */
    const char *engine; /* what ran; NULL when nothing did */
} kvd_collect_summary;

int kvd_collect_summarise(const char *program, const kvd_collect_summary *s, kvd_err *err);

#endif
