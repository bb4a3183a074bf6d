/*
 * Sequences that an unfinished kvdim-tasks has generated, in OUT.h5.items or, for one --part,
 * OUT.h5.items.I-of-N. The first line lists the inputs and options of the run. Every further
 * line is a group of sequences that were generated together.
 */
#ifndef KVD_EVALUATE_TASKS_JOURNAL_H
#define KVD_EVALUATE_TASKS_JOURNAL_H

#include <stdio.h>

#include "common/progress.h"
#include "common/run_key.h"
#include "evaluate/generate/generate.h"

typedef struct kvd_journal kvd_journal;

/*
 * Opens a journal and reads the lines of an earlier run; if `parts` is true, also the lines of the
 * journals path.I-of-N of other processes (--part). Fails if the earlier run had another `key`, or
 * if a line other than the last is damaged. On failure returns NULL and fills *err.
 */
kvd_journal *kvd_journal_open(const char *path, bool parts, const kvd_run_key *key, kvd_err *err);
/*
 * kvd_journal_n_saved returns the number of sequences that earlier runs saved. kvd_journal_n_parts
 * returns the number of journals of --part that were read.
 */
size_t kvd_journal_n_saved(const kvd_journal *j);
size_t kvd_journal_n_parts(const kvd_journal *j);
const char *kvd_journal_path(const kvd_journal *j);
/* Removes the journal and the journals of --part. */
int kvd_journal_remove(kvd_journal *j, kvd_err *err);
/*
 * Closes the journal. Removes its file if this run made it and saved no sequence in it, because the
 * next run would fail on a file with the key of a run that was refused.
 */
void kvd_journal_close(kvd_journal *j);

/*
 * Generates as kvd_generate does, but takes the sequences that the journal already has from there,
 * and saves all others in the journal. `run` is the name of the setting and task. If j is NULL,
 * nothing is saved. *progress counts sequences, including those from the journal. `progress` may be
 * NULL. c->advanced is ignored. After SIGINT or SIGTERM the call fails at the end of the current
 * group of sequences.
 */
int kvd_journal_generate(kvd_journal *j, const char *run, kvd_generator *g, const kvd_plan *plan,
                         const kvd_continuations *c, const kvd_continued *out,
                         kvd_stepwise_account *account, kvd_progress *progress, kvd_err *err);

#endif
