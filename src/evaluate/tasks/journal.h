/*
 * Sequences of an unfinished kvdim-tasks, in OUT.h5.items or, for one --part, OUT.h5.items.I-of-N.
 * First line: inputs and options; further lines: one generated group each.
 */
#ifndef KVD_EVALUATE_TASKS_JOURNAL_H
#define KVD_EVALUATE_TASKS_JOURNAL_H

#include <stdio.h>

#include "common/progress.h"
#include "common/run_key.h"
#include "evaluate/generate/generate.h"

typedef struct kvd_journal kvd_journal;

/*
 * Opens a journal and reads earlier lines, with `parts` also path.I-of-N. Fails for another `key`
 * or damage before the last line. On failure returns NULL.
 */
kvd_journal *kvd_journal_open(const char *path, bool parts, const kvd_run_key *key, kvd_err *err);
/* Return the sequences that earlier runs saved, and the --part journals read. */
size_t kvd_journal_n_saved(const kvd_journal *j);
size_t kvd_journal_n_parts(const kvd_journal *j);
const char *kvd_journal_path(const kvd_journal *j);
/* Removes the journal and the journals of --part. */
int kvd_journal_remove(kvd_journal *j, kvd_err *err);
/*
 * Removes the file if this run made it and saved nothing: a refused run's key would block the next.
 */
void kvd_journal_close(kvd_journal *j);

/*
 * kvd_generate that takes saved sequences from the journal and saves others. run: setting and task.
 * j NULL: saves nothing. *progress (may be NULL) counts all sequences; c->advanced is ignored.
 * After SIGINT or SIGTERM fails at the end of the group.
 */
int kvd_journal_generate(kvd_journal *j, const char *run, kvd_generator *g, const kvd_plan *plan,
                         const kvd_continuations *c, const kvd_continued *out,
                         kvd_stepwise_account *account, kvd_progress *progress, kvd_err *err);

#endif
