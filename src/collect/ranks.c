/* MPI ranks (processes) of kvdim-collect: divides the sequences of the texts among ranks, adds up
 * the ranks' results, and tells all ranks if one fails. */
#include "collect/collect.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef KVD_MPI
#include <mpi.h>
#endif

/* Returns the value of the first environment variable in the list `name` that holds a number >= 0.
 * Returns -1 if there is none. */
static long launched(const char *const *name)
{
    for (; *name; name++) {
        const char *text = getenv(*name);
        char *end;
        errno = 0;
        const long value = text ? strtol(text, &end, 10) : -1;
        if (text && !errno && end != text && !*end && value >= 0)
            return value;
    }
    return -1;
}

/* environment variables in which Open MPI, PMIx and PMI launchers store the process's rank */
static const char *const rank_names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL};

/* environment variables in which Open MPI, MPICH and Slurm store the index of the process on its
 * machine */
static const char *const local_names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                          "SLURM_LOCALID", NULL};

int kvd_ranks_local(void)
{
    const long local = launched(rank_names) < 0 ? 0 : launched(local_names);
    return local < 0 || local > 1 << 20 ? 0 : (int)local;
}

enum { STREAMS = 2 }; /* stdout and stderr */
static int spoken[STREAMS] = {-1, -1};

/* Exits with status 0, because mpirun ends all ranks if one rank exits with an error status. */
static void leave_silently(void)
{
    if (spoken[0] >= 0 || spoken[1] >= 0)
        _exit(0);
}

void kvd_ranks_mute(void)
{
    if (launched(rank_names) < 1 || atexit(leave_silently))
        return;
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int i = 0; i < STREAMS && nowhere >= 0; i++) {
        spoken[i] = fcntl(i + 1, F_DUPFD_CLOEXEC, 3);
        if (spoken[i] >= 0 && dup2(nowhere, i + 1) < 0) {
            close(spoken[i]);
            spoken[i] = -1;
        }
    }
    if (nowhere >= 0)
        close(nowhere);
}

static int speak(kvd_err *err)
{
    int status = 0;
    for (int i = 0; i < STREAMS; i++) {
        if (spoken[i] < 0)
            continue;
        if (dup2(spoken[i], i + 1) < 0)
            status = kvd_fail_errno(err, "cannot restore output %d", i + 1);
        close(spoken[i]);
        spoken[i] = -1;
    }
    return status;
}

/* Divides the sequences from `sequence` on into batches, and skips batches that begin before token
 * `token`. Returns the index of the next sequence. */
static size_t batch_from(const kvd_corpus *corpus, size_t max_tokens, size_t sequence, size_t token)
{
    while (sequence < kvd_corpus_n_sequences(corpus) && kvd_corpus_offset(corpus, sequence) < token)
        sequence += kvd_corpus_batch(corpus, sequence, max_tokens);
    return sequence;
}

void kvd_ranks_share(const kvd_ranks *r, const kvd_corpus *corpus, size_t max_tokens, size_t *first,
                     size_t *end)
{
    const size_t total = kvd_corpus_n_tokens(corpus), ranks = (size_t)r->n, mine = (size_t)r->rank;
    /* Process number `mine` of `ranks` processes begins near token total * mine / ranks, computed
     * without overflow. */
    const size_t whole = total / ranks, rest = total % ranks;
    *first = batch_from(corpus, max_tokens, 0, whole * mine + rest * mine / ranks);
    *end = batch_from(corpus, max_tokens, *first, whole * (mine + 1) + rest * (mine + 1) / ranks);
}

#ifdef KVD_MPI

/* Returns 0 if the MPI function that returned `code` succeeded. Else returns -1 and fills *err with
 * "MPI cannot WHAT: ...". */
static int check(kvd_ranks *r, int code, const char *what, kvd_err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (code == MPI_SUCCESS)
        return 0;
    r->lost = true;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", code);
    return kvd_fail(err, "MPI cannot %s: %s", what, text);
}

int kvd_ranks_start(kvd_ranks *r, kvd_err *err)
{
    int provided;
    *r = (kvd_ranks){.n = 1};
    if (speak(err))
        return -1;
    if (launched(rank_names) < 0)
        return 0;
    if (check(r, MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "start", err))
        return -1;
    r->started = true;
    if (check(r, MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
              "set its error handler", err) ||
        check(r, MPI_Comm_size(MPI_COMM_WORLD, &r->n), "tell the number of ranks", err) ||
        check(r, MPI_Comm_rank(MPI_COMM_WORLD, &r->rank), "tell the rank", err))
        return -1;
    return provided < MPI_THREAD_FUNNELED ? kvd_fail(err, "this MPI cannot live with threads") : 0;
}

int kvd_ranks_agree(kvd_ranks *r, int status, kvd_err *err)
{
    kvd_err own = {""}, first;
    if (r->n == 1)
        return status;
    const int mine = status ? r->rank : r->n;
    int lowest;
    if (check(r, MPI_Allreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD),
              "ask every rank", &own)) {
        if (!status) /* *err keeps an earlier error of this process. */
            *err = own;
        return -1;
    }
    if (lowest == r->n)
        return 0;
    if (lowest == r->rank)
        kvd_in(err, "rank %d", r->rank);
    first = *err;
    if (check(r, MPI_Bcast(first.msg, sizeof first.msg, MPI_CHAR, lowest, MPI_COMM_WORLD),
              "tell every rank", &own))
        first = status ? *err : own;
    *err = first;
    return -1;
}

int kvd_ranks_same(kvd_ranks *r, const char *what, const char *text, kvd_err *err)
{
    char first[64];
    if (r->n == 1)
        return 0;
    snprintf(first, sizeof first, "%s", text);
    if (check(r, MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD), "compare the ranks",
              err))
        return -1;
    const int differs = strncmp(first, text, sizeof first - 1) != 0;
    if (differs)
        kvd_fail(err, "%s is '%s', on rank 0 it is '%s'", what, text, first);
    return kvd_ranks_agree(r, differs ? -1 : 0, err);
}

int kvd_ranks_max(kvd_ranks *r, size_t *value, kvd_err *err)
{
    unsigned long long mine = *value, largest;
    if (r->n == 1)
        return 0;
    if (check(r, MPI_Allreduce(&mine, &largest, 1, MPI_UNSIGNED_LONG_LONG, MPI_MAX, MPI_COMM_WORLD),
              "ask every rank", err))
        return -1;
    *value = (size_t)largest;
    return 0;
}

int kvd_ranks_sum(kvd_ranks *r, kvd_moments *sums, kvd_err *err)
{
    /* Largest number of elements in an MPI call, because MPI allocates as much as it transfers. */
    enum { MOST = 1 << 26 };
    if (r->n == 1)
        return 0;
    for (int g = KVD_G_Q; g <= KVD_G_K_PRE; g++) {
        const size_t n = kvd_moments_count(sums, (kvd_g)g);
        for (size_t at = 0; at < n; at += MOST) {
            double *x = sums->gram[g] + at;
            const int count = n - at < MOST ? (int)(n - at) : MOST;
            const int code =
                r->rank
                    ? MPI_Reduce(x, NULL, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD)
                    : MPI_Reduce(MPI_IN_PLACE, x, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
            if (check(r, code, "add the sums", err))
                return -1;
        }
    }
    return 0;
}

int kvd_ranks_end(kvd_ranks *r, kvd_err *err)
{
    if (!r->started)
        return 0;
    r->started = false;
    if (r->lost)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return check(r, MPI_Finalize(), "end", err);
}

#else

static const char *const size_names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};

int kvd_ranks_start(kvd_ranks *r, kvd_err *err)
{
    *r = (kvd_ranks){.n = 1};
    const long rank = launched(rank_names), size = launched(size_names);
    /* Fails if mpirun has started several processes, because this build has no MPI. */
    if (rank >= 1 || size > 1)
        return kvd_fail(err, "started on several ranks, but built without MPI");
    return speak(err);
}

int kvd_ranks_agree(kvd_ranks *r, int status, kvd_err *err)
{
    (void)r;
    (void)err;
    return status;
}

int kvd_ranks_same(kvd_ranks *r, const char *what, const char *text, kvd_err *err)
{
    (void)r;
    (void)what;
    (void)text;
    (void)err;
    return 0;
}

int kvd_ranks_max(kvd_ranks *r, size_t *value, kvd_err *err)
{
    (void)r;
    (void)value;
    (void)err;
    return 0;
}

int kvd_ranks_sum(kvd_ranks *r, kvd_moments *sums, kvd_err *err)
{
    (void)r;
    (void)sums;
    (void)err;
    return 0;
}

int kvd_ranks_end(kvd_ranks *r, kvd_err *err)
{
    r->started = false;
    (void)err;
    return 0;
}

#endif
