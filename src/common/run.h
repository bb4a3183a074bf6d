/*
 * State of a program's run: data for /provenance of result files, number of threads, requests to
 * stop.
 */
#ifndef KVD_COMMON_RUN_H
#define KVD_COMMON_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "common/options.h"

/* Bytes of a hash as text: "xxh3:", 32 hex digits (XXH3-128) and a zero byte, rounded up. */
enum { KVD_HASH_TEXT = 40 };

typedef struct {
    char *path;
    /* Size of a file, or of all files of a folder, in bytes; 0 for other inputs. */
    uint64_t bytes;
    char hash[KVD_HASH_TEXT];
    /* Schema of the input file, such as "kvdim/moments"; "" for a file not made by kvdim. */
    char *schema;
    char *made_by;  /* git revision of the program that wrote the input, or "" */
    double seconds; /* seconds that writing the input file took; 0 if unknown */
} kvd_run_input;

typedef struct {
    const char *program;
    char *command_line;
    uint64_t seed;
    int threads;
    double started;       /* value of kvd_clock_s at the start */
    char started_utc[32]; /* time of the start, such as 2026-01-31T12:00:00Z */
    /*
     * Name of the GPU and driver version, such as "NVIDIA H200" and "580.95.05"; "" if no GPU is
     * used.
     */
    char gpu[128], driver[80];
    kvd_run_input *inputs;
    int n_inputs;
    /* Name and value of every option, as texts. */
    char (*parameters)[2][512];
    int n_parameters;
} kvd_run;

/*
 * Starts a run: records command line and time, applies --threads to OpenBLAS and OpenMP, silences
 * HDF5's own messages, and handles SIGINT, SIGTERM and SIGHUP. opt->threads receives the number of
 * threads in use. The first of these signals asks the run to stop; another one, half a second or
 * more later, ends the program at once. SIGPIPE no longer ends the program. Must be called once,
 * from main, after the options are parsed. The strings of argv must outlive *run.
 */
int kvd_run_start(kvd_run *run, const char *program, int argc, char **argv, kvd_common_options *opt,
                  kvd_err *err);
void kvd_run_release(kvd_run *run);

/*
 * Returns the arguments as one line that a shell parses into the same arguments. The caller frees
 * it. If memory runs out, returns NULL and fills *err.
 */
char *kvd_run_quote(int argc, const char *const *argv, kvd_err *err);

/*
 * Hashes an input file and adds it to the run. Ignores a folder, which the reader of the file
 * refuses later.
 */
int kvd_run_add_input(kvd_run *run, const char *path, kvd_err *err);
/*
 * Hashes a checkpoint and adds it to the inputs. The checkpoint is a file or a directory. In a
 * directory, all regular files are hashed in the order of their names, without hidden files and
 * subfolders.
 */
int kvd_run_add_model(kvd_run *run, const char *path, kvd_err *err);

/* Writes the hash of the bytes of a file, as it is recorded for an input. */
int kvd_run_hash_file(const char *path, char hash[KVD_HASH_TEXT], kvd_err *err);

/* Adds an input that is not a file. `hash` is the hash of its content, "xxh3:...". */
int kvd_run_add_made_input(kvd_run *run, const char *name, const char *hash, kvd_err *err);

/*
 * Fails if the output `path`, or the file that it links to, is an input of the run or would be in
 * an input folder.
 */
int kvd_run_not_an_input(const kvd_run *run, const char *path, kvd_err *err);
/* Fails if the output `path` is `input` or would be in the folder `input`. */
int kvd_run_not_the_input(const char *path, const char *input, kvd_err *err);

/*
 * Records one option for /parameters of result files. The text is cut with "..." after 511 bytes.
 */
int kvd_run_parameter(kvd_run *run, const char *name, kvd_err *err, const char *fmt, ...)
    KVD_PRINTF(4, 5);

double kvd_run_elapsed(const kvd_run *run);

/* Returns true after SIGINT, SIGTERM or SIGHUP. */
bool kvd_interrupted(void);

int kvd_fail_interrupted(kvd_err *err);

/*
 * Prints *err as "PROGRAM: message" if `status` is not 0, and flushes stdout. A failure to write to
 * stdout is an error too. Every main must end with this call. Returns the exit status: 0, 1, or 2
 * after kvd_run_fail_as_usage.
 */
int kvd_run_exit(const char *program, int status, kvd_err *err);

/* Makes a failing run end with status 2, as wrong usage does. Thread-safe. */
void kvd_run_fail_as_usage(void);

/*
 * Return the version of kvdim, the git revision of this build, and the name of this machine's CPU.
 */
const char *kvd_version(void); /* such as "1.0.0" */
const char *kvd_git_revision(void);
const char *kvd_cpu_name(void);

#endif
