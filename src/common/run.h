/* State of a running program: number of threads, whether a signal asks the program to stop, and
 * data that result files record in HDF5 group /provenance. */
#ifndef KVD_COMMON_RUN_H
#define KVD_COMMON_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/err.h"
#include "common/options.h"

/* bytes of "xxh3:", 32 hex digits and a zero byte, rounded up */
enum { KVD_HASH_TEXT = 40 };

/* Bytes of the content hash of tokenized texts, rounded up: "xxh3:", 32 hex digits of all tokens
 * and, for texts of at least 256 bytes, '+' and 16 hex digits of the first 256 bytes. */
enum { KVD_CORPUS_HASH_TEXT = 56 };
/* Returns true if two hashes are of texts with the same tokens and the same division into
 * sequences. */
bool kvd_corpus_hash_same(const char *a, const char *b);
/* Returns true if both corpus hashes have a part after '+' (hash of the texts' first 256 bytes) and
 * these parts differ. */
bool kvd_corpus_hash_begins_differently(const char *a, const char *b);
/* Returns true if the texts with these hashes begin with the same 256 bytes. Returns false if a
 * hash lacks this information. */
bool kvd_corpus_hash_begins_alike(const char *a, const char *b);

typedef struct {
    char *path;
    /* size of a file, or of all files of a folder, in bytes; 0 for other inputs */
    uint64_t bytes;
    char hash[KVD_HASH_TEXT];
    char *schema;   /* schema of the input file, such as "kvdim/moments", or "" */
    char *made_by;  /* git revision of the program that wrote the input, or "" */
    double seconds; /* seconds that writing the input took; 0 if unknown */
} kvd_run_input;

typedef struct {
    const char *program;
    char *command_line;
    uint64_t seed;
    int threads;
    double started;
    char started_utc[32]; /* time of the start, such as 2026-01-31T12:00:00Z */
    /* GPU and driver, such as "NVIDIA H200" and "580.95.05"; "" if no GPU is used */
    char gpu[128], driver[80];
    kvd_run_input *inputs;
    int n_inputs;
    /* name and value of every option, recorded for result files */
    char (*parameters)[2][512];
    int n_parameters;
} kvd_run;

/* Starts a run: records the command, starts threads, handles signals. Call once, in main.
 * opt->threads receives the number of threads. argv must outlive *run. */
int kvd_run_start(kvd_run *run, const char *program, int argc, char **argv, kvd_common_options *opt,
                  kvd_err *err);
void kvd_run_release(kvd_run *run);

/* Returns the arguments as one shell command line, which the caller frees. */
char *kvd_run_quote(int argc, const char *const *argv, kvd_err *err);

/* Hashes an input file, and lists the file in *run as an input. Does nothing if `path` is a
 * folder. */
int kvd_run_add_input(kvd_run *run, const char *path, kvd_err *err);
/* Hashes n input files, and lists the files in *run as inputs. Skips NULL paths. */
int kvd_run_add_inputs(kvd_run *run, const char *const *path, size_t n, kvd_err *err);
/* Hashes the files of a checkpoint, and lists the checkpoint in *run as an input. Leaves out hidden
 * files, subfolders and archives (.tar.xz), from which the build may have extracted the other
 * files. */
int kvd_run_add_model(kvd_run *run, const char *path, kvd_err *err);

/* Opens a regular file for reading, which the caller closes. On failure returns NULL. */
FILE *kvd_run_open_input(const char *path, kvd_err *err);

/* Writes the hash of a file's bytes as text, "xxh3:" and 32 hexadecimal digits. */
int kvd_run_hash_file(const char *path, char hash[KVD_HASH_TEXT], kvd_err *err);

/* Adds an input that is not a file, with the hash of its content ("xxh3:..."). */
int kvd_run_add_made_input(kvd_run *run, const char *name, const char *hash, kvd_err *err);

/* Fails if the output `path` is an input or in an input folder. */
int kvd_run_not_an_input(const kvd_run *run, const char *path, kvd_err *err);
/* Fails if the output `path` is `input` or in the folder `input`. */
int kvd_run_not_the_input(const char *path, const char *input, kvd_err *err);

/* Records the value of an option for result files. Cuts it after 511 bytes. */
int kvd_run_parameter(kvd_run *run, const char *name, kvd_err *err, const char *fmt, ...)
    KVD_PRINTF(4, 5);

double kvd_run_elapsed(const kvd_run *run);

/* Returns true if the process has received SIGINT, SIGTERM or SIGHUP. */
bool kvd_interrupted(void);

int kvd_fail_interrupted(kvd_err *err);
/* Adds to the message *err of a failed run that n results are kept in file `path`, from which the
 * same command can continue. If n is 0 and the run was interrupted, adds that nothing is kept.
 * Returns -1.
 *
 * - result: noun such as "row"
 * - path: NULL before the file is opened
 * - resume: true with --resume */
int kvd_in_kept(kvd_err *err, size_t n, const char *result, const char *path, bool resume);

/* Ends main: prints *err if `status` is not 0. Returns the exit status. */
int kvd_run_exit(const char *program, int status, kvd_err *err);

/* Makes a failing run exit with status 2, as wrong usage does. Thread-safe. */
void kvd_run_fail_as_usage(void);

const char *kvd_version(void); /* such as "1.0.0" */
const char *kvd_git_revision(void);
const char *kvd_cpu_name(void);

#endif
