/* Journal: a file of the sequences that an unfinished run of kvdim-tasks has generated. Its first
 * line has the run's options, each later line a group of sequences. */
#ifndef KVD_EVALUATE_TASKS_JOURNAL_H
#define KVD_EVALUATE_TASKS_JOURNAL_H

#include <stdio.h>

#include "common/progress.h"
#include "common/run_key.h"
#include "evaluate/generate/generate.h"

typedef struct kvd_journal kvd_journal;

/* Opens the journal at `path`, a file of generated sequences. If `parts` is true, also reads the
 * files path.I-of-N, which runs with --part have written. Returns NULL on failure, for example if a
 * journal is damaged or was written with other options than *key. */
kvd_journal *kvd_journal_open(const char *path, bool parts, const kvd_run_key *key, kvd_err *err);
/* Returns the number of sequences whose generated tokens the journal has. */
size_t kvd_journal_n_saved(const kvd_journal *j);
/* Returns how many journals (files of generated sequences) of runs with --part were read. */
size_t kvd_journal_n_parts(const kvd_journal *j);
const char *kvd_journal_path(const kvd_journal *j);
/* Deletes the journal, and the journals of all parts of the run (--part). */
int kvd_journal_remove(kvd_journal *j, kvd_err *err);
/* Closes the journal. Deletes it if this run created it and saved nothing, because the options
 * recorded in it would make later runs with other options fail. */
void kvd_journal_close(kvd_journal *j);

/* Generates sequences as kvd_generate does, except those that the journal has: copies these from
 * the journal, and saves the others in it. `run`: name of method and task.
 *
 * If j is NULL, saves nothing. *progress (or NULL) counts all sequences. Fails after SIGINT or
 * SIGTERM. */
int kvd_journal_generate(kvd_journal *j, const char *run, kvd_generator *g, const kvd_plan *plan,
                         const kvd_continuations *c, const kvd_continued *out,
                         kvd_stepwise_account *account, kvd_progress *progress, kvd_err *err);

#endif
