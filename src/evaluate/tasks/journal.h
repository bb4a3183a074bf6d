/*
 * Journal of the sequences that an unfinished kvdim-tasks has generated: OUT.h5.items next to
 * OUT.h5, or OUT.h5.items.I-of-N if it generates one part of them. The first line is the key of the
 * run (its settings). Every further line is a group of sequences that ran together, and is appended
 * when the group is done. A killed run loses the group in progress.
 */
#ifndef KVD_EVALUATE_TASKS_JOURNAL_H
#define KVD_EVALUATE_TASKS_JOURNAL_H

#include <stdio.h>

#include "common/run_key.h"
#include "evaluate/generate/generate.h"

typedef struct kvd_journal kvd_journal;

/*
 * Opens a journal, and reads what an earlier run left; if `parts` is true, also what the journals
 * path.I-of-N hold. Fails if one of these runs had another key ("was X, is now Y"), or if a line
 * other than the last of a file, which a kill may have cut, is damaged. On failure returns NULL and
 * fills *err.
 */
kvd_journal *kvd_journal_open(const char *path, bool parts, const kvd_run_key *key, kvd_err *err);
/*
 * Return the number of sequences that earlier runs saved, and the number of journals of parts that
 * were read.
 */
size_t kvd_journal_n_saved(const kvd_journal *j);
size_t kvd_journal_n_parts(const kvd_journal *j);
const char *kvd_journal_path(const kvd_journal *j);
/* Removes the journal file and the journals of parts. Call it when OUT.h5 is complete. */
int kvd_journal_remove(kvd_journal *j, kvd_err *err);
void kvd_journal_close(kvd_journal *j);

/*
 * Generates as kvd_generate does, but takes sequences from the journal where it has them, and saves
 * the others. `run` is the name of plan and task within this output. If j is NULL, nothing is
 * saved. `step` is called for saved groups too, with their number of sequences, `first` 0 and no
 * account.
 */
int kvd_journal_generate(kvd_journal *j, const char *run, kvd_generator *g, const kvd_plan *plan,
                         const kvd_continuations *c, const kvd_continued *out,
                         kvd_stepwise_account *account, kvd_generate_step step, void *ctx,
                         kvd_err *err);

#endif
