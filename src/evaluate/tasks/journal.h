/*
 * File of the sequences that an unfinished kvdim-tasks has generated: OUT.h5.items, or
 * OUT.h5.items.I-of-N of a run with --part. The first line holds the options, each later line a
 * group of sequences.
 */
#ifndef KVD_EVALUATE_TASKS_JOURNAL_H
#define KVD_EVALUATE_TASKS_JOURNAL_H

#include <stdio.h>

#include "common/progress.h"
#include "common/run_key.h"
#include "evaluate/generate/generate.h"

typedef struct kvd_journal kvd_journal;

/*
 * Opens the journal `path`. With `parts`, also reads path.I-of-N of all parts. Returns NULL if the
 * options (`key`) differ, or if a line before the last one is damaged.
 */
kvd_journal *kvd_journal_open(const char *path, bool parts, const kvd_run_key *key, kvd_err *err);
/* Return the number of saved sequences, and the number of journals of parts that were read. */
size_t kvd_journal_n_saved(const kvd_journal *j);
size_t kvd_journal_n_parts(const kvd_journal *j);
const char *kvd_journal_path(const kvd_journal *j);
/* Deletes the journal file and those of all parts. */
int kvd_journal_remove(kvd_journal *j, kvd_err *err);
/*
 * Closes the journal. Deletes its file if this run created it and saved nothing, because its
 * options would block the next run.
 */
void kvd_journal_close(kvd_journal *j);

/*
 * Like kvd_generate, but takes saved sequences from the journal and saves the others. `run` names
 * the method and the task. With j NULL, saves nothing. *progress (may be NULL) counts all
 * sequences. c->advanced is ignored. After SIGINT or SIGTERM, fails when the group is done.
 */
int kvd_journal_generate(kvd_journal *j, const char *run, kvd_generator *g, const kvd_plan *plan,
                         const kvd_continuations *c, const kvd_continued *out,
                         kvd_stepwise_account *account, kvd_progress *progress, kvd_err *err);

#endif
