/*
 * Sequences of an unfinished kvdim-tasks, in OUT.h5.items, or OUT.h5.items.I-of-N of one --part: a
 * line of options, then a line per generated group.
 */
#ifndef KVD_EVALUATE_TASKS_JOURNAL_H
#define KVD_EVALUATE_TASKS_JOURNAL_H

#include <stdio.h>

#include "common/progress.h"
#include "common/run_key.h"
#include "evaluate/generate/generate.h"

typedef struct kvd_journal kvd_journal;

/*
 * Opens a journal, with `parts` also path.I-of-N. Fails for another `key` or damage before the last
 * line. NULL on failure.
 */
kvd_journal *kvd_journal_open(const char *path, bool parts, const kvd_run_key *key, kvd_err *err);
/* Return the saved sequences, and the --part journals read. */
size_t kvd_journal_n_saved(const kvd_journal *j);
size_t kvd_journal_n_parts(const kvd_journal *j);
const char *kvd_journal_path(const kvd_journal *j);
/* Removes the journal and the journals of --part. */
int kvd_journal_remove(kvd_journal *j, kvd_err *err);
/* Removes an empty file that this run made, whose key would block the next run. */
void kvd_journal_close(kvd_journal *j);

/*
 * kvd_generate with saved sequences from the journal; saves the others. run: setting and task. j
 * NULL: saves nothing. *progress (may be NULL) counts all; c->advanced is ignored. SIGINT or
 * SIGTERM fail after the group.
 */
int kvd_journal_generate(kvd_journal *j, const char *run, kvd_generator *g, const kvd_plan *plan,
                         const kvd_continuations *c, const kvd_continued *out,
                         kvd_stepwise_account *account, kvd_progress *progress, kvd_err *err);

#endif
