/*
 * Journal of the sequences that an unfinished kvdim-tasks has generated, so that a killed run can
 * be resumed. It is the file OUT.h5.items next to OUT.h5, or OUT.h5.items.I-of-N for a process that
 * generates one --part of the sequences. The first line lists the inputs and options of the run.
 * Every further line is a group of sequences that were generated together, and is appended when the
 * group is done. A killed run loses the group in progress.
 */
#ifndef KVD_EVALUATE_TASKS_JOURNAL_H
#define KVD_EVALUATE_TASKS_JOURNAL_H

#include <stdio.h>

#include "common/run_key.h"
#include "evaluate/generate/generate.h"

typedef struct kvd_journal kvd_journal;

/*
 * Opens a journal, and reads the lines of an earlier run. If `parts`, also reads the journals
 * path.I-of-N. Fails if an earlier run had other inputs or options than `key` ("was X, is now Y").
 * Fails if a line is damaged, except for the last line of a file, which a kill may have cut. On
 * failure returns NULL and fills *err.
 */
kvd_journal *kvd_journal_open(const char *path, bool parts, const kvd_run_key *key, kvd_err *err);
/*
 * Return the number of sequences that earlier runs saved, and the number of journals of --part
 * processes that were read.
 */
size_t kvd_journal_n_saved(const kvd_journal *j);
size_t kvd_journal_n_parts(const kvd_journal *j);
const char *kvd_journal_path(const kvd_journal *j);
/*
 * Removes the journal file and the journals of --part processes. The caller calls it when OUT.h5 is
 * complete.
 */
int kvd_journal_remove(kvd_journal *j, kvd_err *err);
void kvd_journal_close(kvd_journal *j);

/*
 * Generates tokens as kvd_generate does, but takes finished sequences from the journal and saves
 * the others. `run` identifies the compression setting and task. If j is NULL, nothing is saved.
 *
 * The callback `step` is called after every generated group of sequences, as by kvd_generate. It is
 * also called for every group that comes from the journal. Its argument n is then the number of
 * these sequences, `first` is 0 and `account` NULL.
 */
int kvd_journal_generate(kvd_journal *j, const char *run, kvd_generator *g, const kvd_plan *plan,
                         const kvd_continuations *c, const kvd_continued *out,
                         kvd_stepwise_account *account, kvd_generate_step step, void *ctx,
                         kvd_err *err);

#endif
