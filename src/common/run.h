/*
 * State of a program's run: what /provenance records, the number of threads, and whether the user
 * has asked the program to stop.
 */
#ifndef KVD_COMMON_RUN_H
#define KVD_COMMON_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "common/options.h"

typedef struct {
    char *path; /* path of the input, as given on the command line */
    /*
     * Size in bytes of the input file, or of all files of an input folder; 0 for an input that is
     * not a file.
     */
    uint64_t bytes;
    char hash[40]; /* content hash of the input: "xxh3:" + 32 hex digits (XXH3-128) */
    /* Schema of the input file, such as "kvdim/moments"; "" if kvdim did not make the file. */
    char *schema;
    char *made_by;  /* git revision of the program that wrote the input file, or "" */
    double seconds; /* seconds that writing the input file took (its elapsed_s); 0 if unknown */
} kvd_run_input;

typedef struct {
    const char *program; /* name of the running program: "kvdim-collect" */
    char *command_line;  /* command line of the run, quoted for the shell */
    uint64_t seed;
    int threads;
    double started;       /* clock reading at the start of the run, in seconds (kvd_clock_s) */
    char started_utc[32]; /* time of day at the start of the run, such as 2026-01-31T12:00:00Z */
    /*
     * Name of the GPU and version of its driver, such as "NVIDIA H200" and "580.95.05"; "" without
     * a GPU.
     */
    char gpu[128], driver[80];
    kvd_run_input *inputs;
    int n_inputs;
    /* Name and value, as texts, of every option with the value that the run uses. */
    char (*parameters)[2][512];
    int n_parameters;
} kvd_run;

/*
 * Starts a run: records the command line and the time, applies --threads to OpenBLAS and OpenMP,
 * silences HDF5's own error stack, and installs a handler for SIGINT and SIGTERM. The first signal
 * sets a flag; another one half a second later or more ends the program at once.
 * Call it once, from main, after parsing. The strings of argv must outlive *run.
 */
int kvd_run_start(kvd_run *run, const char *program, int argc, char **argv, kvd_common_options *opt,
                  kvd_err *err);
void kvd_run_release(kvd_run *run);

/*
 * Hashes an input file and adds it to the run's list of inputs. A folder is ignored, because the
 * reader of the file refuses it with its own message.
 */
int kvd_run_add_input(kvd_run *run, const char *path, kvd_err *err);
/*
 * Hashes a checkpoint and adds it to the run's list of inputs. It is a file, or all regular files
 * of a directory in the order of names, without files that start with a dot and without folders.
 */
int kvd_run_add_model(kvd_run *run, const char *path, kvd_err *err);

/*
 * Adds an input that is not a file to the run's list of inputs. `hash` is the hash of its content,
 * "xxh3:...". Its size is recorded as 0.
 */
int kvd_run_add_made_input(kvd_run *run, const char *name, const char *hash, kvd_err *err);

/*
 * Fails if the output `path`, or the file that it links to, is an input of the run, or would become
 * part of an input folder. Writing there would destroy the input or change the hash of a
 * checkpoint.
 */
int kvd_run_not_an_input(const kvd_run *run, const char *path, kvd_err *err);
/*
 * Fails if the output `path` is the input `input`, or would become part of the folder `input`.
 * Unlike kvd_run_not_an_input, does not look at the run's list of inputs.
 */
int kvd_run_not_the_input(const char *path, const char *input, kvd_err *err);

/*
 * Records the value of one program option for the result's /parameters. `fmt` formats the value as
 * text, which is cut with "..." after 511 bytes.
 */
int kvd_run_parameter(kvd_run *run, const char *name, kvd_err *err, const char *fmt, ...)
    KVD_PRINTF(4, 5);

/* Returns the seconds since kvd_run_start. */
double kvd_run_elapsed(const kvd_run *run);

/*
 * Returns true if the user has interrupted the program (SIGINT or SIGTERM). Long loops call it
 * between pieces of work.
 */
bool kvd_interrupted(void);

/* Stores the message "interrupted" in *err and returns -1. */
int kvd_fail_interrupted(kvd_err *err);

/*
 * Ends every main: if `status` is not 0, prints *err as "PROGRAM: message". Flushes stdout; a
 * failure to write there, such as a full disk, is an error too. Returns the exit status of the
 * program: 0, 1, or 2 after kvd_run_fail_as_usage.
 */
int kvd_run_exit(const char *program, int status, kvd_err *err);

/*
 * Makes a failing run end with status 2, as a wrong command line does. For errors in what the user
 * gave that only the run could find. Thread-safe.
 */
void kvd_run_fail_as_usage(void);

/*
 * Return facts about this build and machine: version, git revision, name of the CPU. Used for
 * provenance and --version.
 */
const char *kvd_version(void); /* version of kvdim: "1.0.0" */
const char *kvd_git_revision(void);
const char *kvd_cpu_name(void);

#endif
